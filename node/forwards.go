package node

import (
	"fmt"
	"net"
	"strconv"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// portRefusalLocked says which port of this host a network's forwards cannot have; empty if they can have all. A VM
// keeps its ports while it is stopped, for it may be started. Who has a port is not said: it may be another tenant.
func (d *Daemon) portRefusalLocked(n *api.Network) string {
	if n == nil || len(n.Forwards) == 0 {
		return ""
	}
	taken := map[int]bool{}
	for _, v := range d.vms {
		if has := v.size.Network; has != nil {
			for _, f := range has.Forwards {
				taken[f.HostPort] = f.HostPort != 0
			}
		}
	}
	for _, f := range n.Forwards {
		if taken[f.HostPort] || !canListen(f.HostPort) {
			return fmt.Sprintf("port %d of this host is taken, or not the daemon's to open: choose another host_port in network.forwards", f.HostPort)
		}
	}
	return ""
}

// canListen says whether a port of the host's loopback, where forwards listen, is free now. Port 0 is the backend's to refuse.
func canListen(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
