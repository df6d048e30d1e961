//go:build linux

package process

import (
	"crypto/sha256"
	"encoding/binary"
)

// firstUser begins the quarter of all user ids that neither distributions, container tools nor systemd give out.
const firstUser = 0x7000_0000

// UserOf is the id of the user, and of its group, that the machine's processes are when the daemon is root. Every
// machine has its own: it follows from the machine's id, so that nothing has to be kept.
func UserOf(machineID string) int {
	sum := sha256.Sum256([]byte(machineID))
	return firstUser | int(binary.BigEndian.Uint32(sum[:])&0x0fff_ffff)
}
