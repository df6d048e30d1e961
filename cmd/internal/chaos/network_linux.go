package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// The campaign's network is one bridge in a namespace that ends with it. Each process has a namespace and an address of
// its own on it; each replica has a second address in the campaign's own namespace, at which others reach it.
const (
	campaignIP  = "10.9.0.1"
	clusterPort = "7800"
	apiPort     = "7799"
	hostPort    = "7788"
	nobody      = "02:00:00:00:00:01" // a link address that no one has: what is sent there is lost
)

func replicaIP(i int) string    { return fmt.Sprintf("10.9.0.%d", 10+i) }
func replicaAlias(i int) string { return fmt.Sprintf("10.9.1.%d", 10+i) }
func hostIP(i int) string       { return fmt.Sprintf("10.9.0.%d", 100+i) }
func replicaNet(i int) string   { return fmt.Sprintf("r%d", i) }
func hostNet(i int) string      { return fmt.Sprintf("n%d", i) }

// ip runs a batch of ip's commands, in a namespace if one is given.
func ip(namespace string, commands ...string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-n", namespace}, args...)
	}
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

// layNetwork makes the bridge and the namespaces. It must run in a network namespace of its own.
func layNetwork(replicas, hosts int) error {
	hub := []string{"link set lo up", "link add br0 type bridge", "addr add " + campaignIP + "/16 dev br0", "link set br0 up"}
	inside := map[string]string{}
	for i := range replicas {
		hub = append(hub, "addr add "+replicaAlias(i)+"/16 dev br0")
		inside[replicaNet(i)] = replicaIP(i)
	}
	for i := range hosts {
		inside[hostNet(i)] = hostIP(i)
	}
	const named = "/run/netns" // where ip keeps them: covered, so that nothing is left there
	if err := os.MkdirAll(named, 0o755); err != nil {
		return fmt.Errorf("making a place for namespaces: %w", err)
	}
	if err := mountDisk(named, 1); err != nil {
		return err
	}
	if err := ip("", hub...); err != nil {
		return err
	}
	for name, address := range inside {
		if err := ip("", "netns add "+name, "link add v"+name+" type veth peer name eth0 netns "+name, "link set v"+name+" master br0 up"); err != nil {
			return err
		}
		if err := ip(name, "link set lo up", "addr add "+address+"/16 dev eth0", "link set eth0 up"); err != nil {
			return err
		}
	}
	return nil
}

// lose drops every packet that leaves the namespace for the address, without a word, until it is heard again.
func lose(namespace, address string) error {
	return ip(namespace, "neigh replace "+address+" lladdr "+nobody+" dev eth0 nud permanent")
}

func hear(namespace, address string) error { return ip(namespace, "neigh del "+address+" dev eth0") }

// mountDisk makes a disk of so many MiB.
func mountDisk(dir string, mib int) error {
	if err := syscall.Mount("chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		return fmt.Errorf("mounting a disk: %w", err)
	}
	return nil
}
