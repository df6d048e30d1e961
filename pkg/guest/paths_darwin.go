package guest

import "syscall"

// macOS has no /run and cannot be given one. It keeps its name by itself, and no shell of it reads a directory of profiles:
// commands that the host runs have a claim's environment, and who logs in reads envFile.
const (
	runDir      = "/var/run/fluxvm"
	profileFile = ""
	hostsName   = ""
)

func bootID() string {
	id, err := syscall.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}
