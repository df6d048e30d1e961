package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Size of a sim host unless told otherwise.
const (
	VCPUs     = 16
	MemoryMiB = 65536
)

// Config is what a sim host is made of.
type Config struct {
	Mac       bool  // pose as a Mac: run macOS guests
	MemoryMiB int64 // of the host; 0: MemoryMiB
}

// Driver runs machines that are only times.
type Driver struct {
	cfg Config
	*controls

	count   sync.Mutex      // guards what follows
	guests  map[*guest]bool // those that run
	memUsed int64           // MiB of the guests that run
}

// New makes a driver. It does no I/O.
func New(cfg Config) *Driver {
	if cfg.MemoryMiB == 0 {
		cfg.MemoryMiB = MemoryMiB
	}
	return &Driver{cfg: cfg, controls: newControls(), guests: map[*guest]bool{}}
}

// Name is the backend's name.
func (d *Driver) Name() string { return api.BackendSim }

// Features are those of a sim host.
func (d *Driver) Features() machine.Features {
	return machine.Features{MacOS: d.cfg.Mac, Agent: true, Pause: true, Balloon: true, BalloonReclaims: true, Survives: true}
}

// Check refuses images it cannot read, and what it was told to refuse.
func (d *Driver) Check(spec machine.Spec) error {
	img, err := parseImage(spec.Image)
	switch message := d.refusal(); {
	case err != nil:
		return err
	case spec.SecurityProfile != "" && spec.SecurityProfile != "standard":
		return api.Invalid("security_profile", "the sim backend has security_profile standard only")
	case message != nil:
		return api.Errorf(api.CodeUnavailable, "%s", *message)
	case img.fail == failRefuse:
		return api.Errorf(api.CodeUnavailable, "the image says fail=refuse, so the create is refused")
	}
	return nil
}

// Start waits as long as the image takes to boot.
func (d *Driver) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	img, err := parseImage(spec.Image)
	if err != nil {
		return nil, err
	}
	boot := time.NewTimer(img.boot)
	defer boot.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-boot.C:
	}
	if img.fail == failBoot {
		return nil, errors.New("the image says fail=boot")
	}
	g := d.newGuest(spec, img, dir, life{RunningSince: time.Now()})
	if err := g.save(); err != nil {
		return nil, err
	}
	g.run()
	return g, nil
}

// Adopt goes on with a machine from what is written of it.
func (d *Driver) Adopt(_ context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	raw, err := os.ReadFile(filepath.Join(dir, lifeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, machine.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("reading the sim machine: %w", err)
	}
	var l life
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("reading the sim machine: %w", err)
	}
	img, err := parseImage(spec.Image)
	if err != nil {
		return nil, err
	}
	if img.fail == failCrash && time.Since(l.RunningSince) >= img.crashAfter {
		return nil, machine.ErrGone
	}
	g := d.newGuest(spec, img, dir, l)
	g.run()
	return g, nil
}

// LastConsole tells why the machine ended, as far as its image says.
func (d *Driver) LastConsole(spec machine.Spec, _ string, limit int) ([]byte, error) {
	text := []byte("this machine was simulated; its image is " + spec.Image + "\n")
	return text[max(0, len(text)-limit):], nil
}

// Remove has nothing to free outside dir.
func (d *Driver) Remove(machine.Spec, string) error { return nil }

// Scrub has nothing to remove, and fails where it was told to.
func (d *Driver) Scrub() error {
	if message := d.read().FailScrub; message != nil {
		return errors.New(*message)
	}
	return nil
}

// Memory is the host's: what was set, else what its machines leave.
func (d *Driver) Memory() api.HostMemory {
	set := d.read()
	out := api.HostMemory{MemTotalMiB: d.cfg.MemoryMiB, PressureLevel: set.PressureLevel}
	if set.MemAvailableMiB != nil {
		out.MemAvailableMiB = min(*set.MemAvailableMiB, d.cfg.MemoryMiB)
		return out
	}
	d.count.Lock()
	defer d.count.Unlock()
	out.MemAvailableMiB = max(1, d.cfg.MemoryMiB-d.memUsed)
	return out
}
