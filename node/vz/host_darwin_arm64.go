//go:build cgo

package vz

import (
	"errors"
	"fmt"
	"net"
	"os"

	apple "github.com/Code-Hex/vz/v3"
)

// Where our numbers are not the framework's, this does not compile.
var (
	_ = [1]struct{}{}[codeInvalidConfiguration-apple.ErrorInvalidVirtualMachineConfiguration]
	_ = [1]struct{}{}[codeLimitExceeded-apple.ErrorVirtualMachineLimitExceeded]
	_ = [1]struct{}{}[codeOutOfDiskSpace-apple.ErrorOutOfDiskSpace]
	_ = [1]struct{}{}[codeNotSupported-apple.ErrorNotSupported]
)

// Host is the framework of this Mac with the limits of its guests.
func Host() (Framework, Limits, error) {
	if _, err := apple.NewMacKeyboardConfiguration(); err != nil { // the newest of what each guest needs
		return nil, Limits{}, fmt.Errorf("vz needs macOS 14 or later, and a program that was built there: %w", err)
	}
	return host{}, Limits{
		MinVCPUs:     int(apple.VirtualMachineConfigurationMinimumAllowedCPUCount()),
		MaxVCPUs:     int(apple.VirtualMachineConfigurationMaximumAllowedCPUCount()),
		MinMemoryMiB: int64(apple.VirtualMachineConfigurationMinimumAllowedMemorySize() >> 20),
		MaxMemoryMiB: int64(apple.VirtualMachineConfigurationMaximumAllowedMemorySize() >> 20),
		Rosetta:      apple.LinuxRosettaDirectoryShareAvailability() == apple.LinuxRosettaAvailabilityInstalled,
		Nested:       apple.IsNestedVirtualizationSupported(),
	}, nil
}

type host struct{}

func (host) Identifier(kind BootKind) ([]byte, error) {
	if kind == BootMacOS {
		id, err := apple.NewMacMachineIdentifier()
		if err != nil {
			return nil, translated(err)
		}
		return id.DataRepresentation(), nil
	}
	id, err := apple.NewGenericMachineIdentifier()
	if err != nil {
		return nil, translated(err)
	}
	return id.DataRepresentation(), nil
}

func (host) New(p Plan, serial *os.File) (Guest, error) {
	config, silence, err := configure(p, serial)
	if err != nil {
		return nil, noted(err)
	}
	if _, err := config.Validate(); err != nil {
		return nil, noted(err)
	}
	vm, err := apple.NewVirtualMachine(config)
	if err != nil {
		return nil, noted(err)
	}
	g := &appleGuest{vm: vm, silence: silence, sockets: vm.SocketDevices(), balloons: vm.MemoryBalloonDevices(), ended: make(chan error, 1)}
	go g.follow()
	return g, nil
}

// configure turns the plan into the framework's words. silence are the ends of a pipe from which the guest reads its serial
// port: nothing, and no end. The framework reads it by itself, so both must stay open.
func configure(p Plan, serial *os.File) (config *apple.VirtualMachineConfiguration, silence [2]*os.File, err error) {
	loader, platform, err := boot(p)
	if err != nil {
		return nil, silence, err
	}
	if config, err = apple.NewVirtualMachineConfiguration(loader, p.VCPUs, p.MemoryMiB<<20); err != nil {
		return nil, silence, err
	}
	config.SetPlatformVirtualMachineConfiguration(platform)
	if silence[0], silence[1], err = os.Pipe(); err != nil {
		return nil, silence, err
	}
	port, err := apple.NewFileHandleSerialPortAttachment(silence[0], serial)
	if err != nil {
		return nil, silence, err
	}
	console, err := apple.NewVirtioConsoleDeviceSerialPortConfiguration(port)
	if err != nil {
		return nil, silence, err
	}
	config.SetSerialPortsVirtualMachineConfiguration([]*apple.VirtioConsoleDeviceSerialPortConfiguration{console})
	for _, add := range []func(*apple.VirtualMachineConfiguration, Plan) error{addBasics, addDisks, addNetwork, addShares, addDisplay} {
		if err := add(config, p); err != nil {
			return nil, silence, err
		}
	}
	return config, silence, nil
}

func boot(p Plan) (apple.BootLoader, apple.PlatformConfiguration, error) {
	if p.Boot.Kind == BootMacOS {
		return bootMacOS(p)
	}
	id, err := apple.NewGenericMachineIdentifierWithDataPath(p.Boot.Identifier)
	if err != nil {
		return nil, nil, err
	}
	platform, err := apple.NewGenericPlatformConfiguration(apple.WithGenericMachineIdentifier(id))
	if err != nil {
		return nil, nil, err
	}
	if p.Nested {
		if err := platform.SetNestedVirtualizationEnabled(true); err != nil {
			return nil, nil, err
		}
	}
	if p.Boot.Kind == BootLinux {
		options := []apple.LinuxBootLoaderOption{apple.WithCommandLine(p.Boot.Cmdline)}
		if p.Boot.Initrd != "" {
			options = append(options, apple.WithInitrd(p.Boot.Initrd))
		}
		loader, err := apple.NewLinuxBootLoader(p.Boot.Kernel, options...)
		return loader, platform, err
	}
	var options []apple.NewEFIVariableStoreOption
	if p.Boot.NewVariables {
		options = append(options, apple.WithCreatingEFIVariableStore())
	}
	variables, err := apple.NewEFIVariableStore(p.Boot.Variables, options...)
	if err != nil {
		return nil, nil, err
	}
	loader, err := apple.NewEFIBootLoader(apple.WithEFIVariableStore(variables))
	return loader, platform, err
}

func bootMacOS(p Plan) (apple.BootLoader, apple.PlatformConfiguration, error) {
	model, err := apple.NewMacHardwareModelWithDataPath(p.Boot.HardwareModel)
	if err != nil {
		return nil, nil, err
	}
	if !model.Supported() {
		return nil, nil, errors.New("this Mac cannot run the image's macOS: its hardware model is too new; update the Mac, or use an image of an older macOS")
	}
	id, err := apple.NewMacMachineIdentifierWithDataPath(p.Boot.Identifier)
	if err != nil {
		return nil, nil, err
	}
	auxiliary, err := apple.NewMacAuxiliaryStorage(p.Boot.Auxiliary)
	if err != nil {
		return nil, nil, err
	}
	platform, err := apple.NewMacPlatformConfiguration(
		apple.WithMacHardwareModel(model), apple.WithMacMachineIdentifier(id), apple.WithMacAuxiliaryStorage(auxiliary))
	if err != nil {
		return nil, nil, err
	}
	loader, err := apple.NewMacOSBootLoader()
	return loader, platform, err
}

// addBasics adds what every guest has, and a source of randomness where the plan has one.
func addBasics(config *apple.VirtualMachineConfiguration, p Plan) error {
	if p.Entropy {
		entropy, err := apple.NewVirtioEntropyDeviceConfiguration()
		if err != nil {
			return err
		}
		config.SetEntropyDevicesVirtualMachineConfiguration([]*apple.VirtioEntropyDeviceConfiguration{entropy})
	}
	balloon, err := apple.NewVirtioTraditionalMemoryBalloonDeviceConfiguration()
	if err != nil {
		return err
	}
	config.SetMemoryBalloonDevicesVirtualMachineConfiguration([]apple.MemoryBalloonDeviceConfiguration{balloon})
	socket, err := apple.NewVirtioSocketDeviceConfiguration()
	if err != nil {
		return err
	}
	config.SetSocketDevicesVirtualMachineConfiguration([]apple.SocketDeviceConfiguration{socket})
	return nil
}

func addDisks(config *apple.VirtualMachineConfiguration, p Plan) error {
	caching := apple.DiskImageCachingModeAutomatic
	if p.Cached {
		caching = apple.DiskImageCachingModeCached
	}
	var disks []apple.StorageDeviceConfiguration
	for _, path := range p.Disks {
		attachment, err := apple.NewDiskImageStorageDeviceAttachmentWithCacheAndSync(path, false, caching, apple.DiskImageSynchronizationModeFsync)
		if err != nil {
			return fmt.Errorf("attaching %s: %w", path, err)
		}
		disk, err := apple.NewVirtioBlockDeviceConfiguration(attachment)
		if err != nil {
			return err
		}
		disks = append(disks, disk)
	}
	config.SetStorageDevicesVirtualMachineConfiguration(disks)
	return nil
}

func addNetwork(config *apple.VirtualMachineConfiguration, p Plan) error {
	if p.MAC == "" {
		return nil
	}
	hardware, err := net.ParseMAC(p.MAC)
	if err != nil {
		return err
	}
	mac, err := apple.NewMACAddress(hardware)
	if err != nil {
		return err
	}
	nat, err := apple.NewNATNetworkDeviceAttachment()
	if err != nil {
		return err
	}
	device, err := apple.NewVirtioNetworkDeviceConfiguration(nat)
	if err != nil {
		return err
	}
	device.SetMACAddress(mac)
	config.SetNetworkDevicesVirtualMachineConfiguration([]*apple.VirtioNetworkDeviceConfiguration{device})
	return nil
}

func addShares(config *apple.VirtualMachineConfiguration, p Plan) error {
	var devices []apple.DirectorySharingDeviceConfiguration
	add := func(tag string, share apple.DirectoryShare) error {
		device, err := apple.NewVirtioFileSystemDeviceConfiguration(tag)
		if err != nil {
			return err
		}
		device.SetDirectoryShare(share)
		devices = append(devices, device)
		return nil
	}
	for _, s := range p.Shares {
		dir, err := apple.NewSharedDirectory(s.Path, true)
		if err != nil {
			return err
		}
		share, err := apple.NewSingleDirectoryShare(dir)
		if err != nil {
			return err
		}
		if err := add(s.Tag, share); err != nil {
			return err
		}
	}
	if p.Rosetta {
		share, err := apple.NewLinuxRosettaDirectoryShare()
		if err != nil {
			return err
		}
		if err := add(rosettaTag, share); err != nil {
			return err
		}
	}
	config.SetDirectorySharingDevicesVirtualMachineConfiguration(devices)
	return nil
}

func addDisplay(config *apple.VirtualMachineConfiguration, p Plan) error {
	if p.Display == nil {
		return nil
	}
	display, err := apple.NewMacGraphicsDisplayConfiguration(p.Display.Width, p.Display.Height, p.Display.PixelsPerInch)
	if err != nil {
		return err
	}
	graphics, err := apple.NewMacGraphicsDeviceConfiguration()
	if err != nil {
		return err
	}
	graphics.SetDisplays(display)
	config.SetGraphicsDevicesVirtualMachineConfiguration([]apple.GraphicsDeviceConfiguration{graphics})
	// A Mac's own, not those on a USB bus, with which the framework saves no guest.
	keyboard, err := apple.NewMacKeyboardConfiguration()
	if err != nil {
		return err
	}
	config.SetKeyboardsVirtualMachineConfiguration([]apple.KeyboardConfiguration{keyboard})
	trackpad, err := apple.NewMacTrackpadConfiguration()
	if err != nil {
		return err
	}
	config.SetPointingDevicesVirtualMachineConfiguration([]apple.PointingDeviceConfiguration{trackpad})
	return nil
}

// appleGuest is one virtual machine of the framework. Its devices are asked for once and kept: vz lets go of the framework's
// balloon, which it was only lent, whenever a balloon that it gave is collected.
type appleGuest struct {
	vm       *apple.VirtualMachine
	silence  [2]*os.File
	sockets  []*apple.VirtioSocketDevice
	balloons []apple.MemoryBalloonDevice
	ended    chan error
}

// follow tells of the end. It goes with the process, which ends with its one guest.
func (g *appleGuest) follow() {
	for state := range g.vm.StateChangedNotify() {
		switch state {
		case apple.VirtualMachineStateStopped:
			g.ended <- nil
			return
		case apple.VirtualMachineStateError:
			g.ended <- &FrameworkError{Text: "the framework stopped the guest because of an error of its own"}
			return
		}
	}
}

func (g *appleGuest) Start() error           { return noted(g.vm.Start()) }
func (g *appleGuest) Pause() error           { return translated(g.vm.Pause()) }
func (g *appleGuest) Resume() error          { return translated(g.vm.Resume()) }
func (g *appleGuest) Stop() error            { return translated(g.vm.Stop()) }
func (g *appleGuest) Save(path string) error { return noted(g.vm.SaveMachineStateToPath(path)) }
func (g *appleGuest) Ended() <-chan error    { return g.ended }
func (g *appleGuest) Restore(path string) error {
	return noted(g.vm.RestoreMachineStateFromURL(path))
}

func (g *appleGuest) Ask() error {
	_, err := g.vm.RequestStop()
	return translated(err)
}

func (g *appleGuest) SetMemory(mib uint64) error {
	for _, device := range g.balloons {
		if balloon := apple.AsVirtioTraditionalMemoryBalloonDevice(device); balloon != nil {
			balloon.SetTargetVirtualMachineMemorySize(mib << 20)
			return nil
		}
	}
	return errors.New("the guest has no balloon")
}

func (g *appleGuest) Connect(port uint32) (net.Conn, error) {
	for _, device := range g.sockets {
		conn, err := device.Connect(port)
		if err != nil {
			return nil, translated(err)
		}
		return conn, nil
	}
	return nil, errors.New("the guest has no vsock device")
}

// noted is translated, with all that the framework says in the helper's log. It is for what is done once, not for what is
// tried again and again.
func noted(err error) error {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
	}
	return translated(err)
}

// translated keeps an NSError's domain and number, by which explained knows it.
func translated(err error) error {
	var ns *apple.NSError
	if errors.As(err, &ns) {
		return &FrameworkError{Domain: ns.Domain, Code: ns.Code, Text: ns.LocalizedDescription}
	}
	return err
}
