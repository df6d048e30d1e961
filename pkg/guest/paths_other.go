//go:build !darwin

package guest

import (
	"os"
	"strings"
)

const (
	runDir      = "/run/fluxvm"
	profileFile = "/etc/profile.d/fluxvm.sh"
	hostsName   = "/etc/hostname"
)

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
