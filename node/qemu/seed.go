//go:build linux

package qemu

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// seedLabel is the volume's name by which cloud-init knows a NoCloud seed.
const seedLabel = "cidata"

// seedFile is one file of a seed.
type seedFile struct{ name, text string }

// writeSeed writes what cloud-init is to do at the guest's first boot. It may hold secrets.
func writeSeed(path string, spec machine.Spec) error {
	files, err := seedOf(spec)
	if err != nil {
		return fmt.Errorf("writing the cloud-init seed: %w", err)
	}
	if err := os.WriteFile(path, seedDisk(files), 0o600); err != nil {
		return fmt.Errorf("writing the cloud-init seed: %w", err)
	}
	return nil
}

// seedOf are the files of NoCloud. JSON is YAML, and needs no escaping of our own.
func seedOf(spec machine.Spec) ([]seedFile, error) {
	asked := api.CloudInit{}
	if spec.CloudInit != nil {
		asked = *spec.CloudInit
	}
	name := asked.Hostname
	if name == "" {
		name = spec.Name
	}
	if name == "" {
		name = spec.ID
	}
	meta, err := json.Marshal(map[string]any{"instance-id": spec.ID, "local-hostname": name})
	if err != nil {
		return nil, err
	}
	config := map[string]any{"hostname": name}
	if asked.User != "" {
		user := map[string]any{"name": asked.User, "sudo": "ALL=(ALL) NOPASSWD:ALL", "shell": "/bin/bash", "lock_passwd": true}
		if len(asked.SSHAuthorizedKeys) > 0 {
			user["ssh_authorized_keys"] = asked.SSHAuthorizedKeys
		}
		config["users"] = []any{"default", user}
	} else if len(asked.SSHAuthorizedKeys) > 0 {
		config["ssh_authorized_keys"] = asked.SSHAuthorizedKeys // the default user's
	}
	if len(asked.Packages) > 0 {
		config["packages"] = asked.Packages
	}
	if len(asked.RunCmd) > 0 {
		config["runcmd"] = asked.RunCmd
	}
	if len(asked.WriteFiles) > 0 {
		config["write_files"] = asked.WriteFiles
	}
	user, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return []seedFile{{"meta-data", string(meta) + "\n"}, {"user-data", "#cloud-config\n" + string(user) + "\n"}}, nil
}

// An ISO 9660 disk with one directory is all that a seed needs: a volume descriptor, path tables, the directory, and
// the files, each from a sector of its own on. ECMA-119 says what stands where.
const (
	isoSector      = 2048
	isoDescriptor  = 16
	isoTerminator  = 17
	isoTableLittle = 18
	isoTableBig    = 19
	isoRoot        = 20
	isoFiles       = 21
)

// seedDisk is the disk that holds the files.
func seedDisk(files []seedFile) []byte {
	sectors := isoFiles
	var root bytes.Buffer
	root.Write(isoRecord("\x00", isoRoot, isoSector, true))
	root.Write(isoRecord("\x01", isoRoot, isoSector, true))
	starts := make([]int, len(files))
	for i, f := range files { // in the order of names, as the standard wants
		starts[i] = sectors
		root.Write(isoRecord(strings.ToUpper(f.name)+".;1", sectors, len(f.text), false))
		sectors += (len(f.text) + isoSector - 1) / isoSector
	}
	disk := make([]byte, sectors*isoSector)
	at := func(sector int) []byte { return disk[sector*isoSector:] }
	copy(at(isoRoot), root.Bytes())
	for i, f := range files {
		copy(at(starts[i]), f.text)
	}

	table := []byte{1, 0, 0, 0, 0, 0, 1, 0, 0, 0} // one directory: the root
	binary.LittleEndian.PutUint32(table[2:], isoRoot)
	copy(at(isoTableLittle), table)
	binary.BigEndian.PutUint32(at(isoTableBig)[2:], isoRoot)
	copy(at(isoTableBig), []byte{1, 0})
	copy(at(isoTableBig)[6:], []byte{0, 1})

	d := at(isoDescriptor)
	copy(d, "\x01CD001\x01")
	copy(d[8:72], strings.Repeat(" ", 64)) // system and volume
	copy(d[40:], seedLabel)
	isoBoth32(d[80:], sectors)
	isoBoth16(d[120:], 1)
	isoBoth16(d[124:], 1)
	isoBoth16(d[128:], isoSector)
	isoBoth32(d[132:], len(table))
	binary.LittleEndian.PutUint32(d[140:], isoTableLittle)
	binary.BigEndian.PutUint32(d[148:], isoTableBig)
	copy(d[156:], isoRecord("\x00", isoRoot, isoSector, true))
	copy(d[190:813], strings.Repeat(" ", 623)) // who made it, and files about that
	for _, date := range []int{813, 830, 847, 864} {
		copy(d[date:], strings.Repeat("0", 16))
	}
	d[881] = 1
	copy(at(isoTerminator), "\xffCD001\x01")
	return disk
}

// isoRecord is an entry of a directory.
func isoRecord(name string, sector, size int, directory bool) []byte {
	r := make([]byte, (33+len(name)+1)&^1)
	r[0] = byte(len(r))
	isoBoth32(r[2:], sector)
	isoBoth32(r[10:], size)
	if directory {
		r[25] = 2
	}
	isoBoth16(r[28:], 1)
	r[32] = byte(len(name))
	copy(r[33:], name)
	return r
}

// isoBoth32 and isoBoth16 write a number in both byte orders.
func isoBoth32(to []byte, n int) {
	binary.LittleEndian.PutUint32(to, uint32(n))
	binary.BigEndian.PutUint32(to[4:], uint32(n))
}

func isoBoth16(to []byte, n int) {
	binary.LittleEndian.PutUint16(to, uint16(n))
	binary.BigEndian.PutUint16(to[2:], uint16(n))
}
