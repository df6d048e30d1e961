package node

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAForwardedPortIsOneVMsAndFreeOnTheHost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		other, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		port := other.Addr().(*net.TCPAddr).Port
		forwards := fields{"network": fields{"mode": "nat", "forwards": []fields{{"host_port": port, "guest_port": 80}}}}
		refused := func(when string) {
			t.Helper()
			e := h.refused(api.CodeHostFull, "POST", "/v1/vms", body(uuid.NewString(), forwards))
			if !strings.Contains(e.Detail, fmt.Sprint("port ", port)) || !strings.Contains(e.Detail, "network.forwards") || e.Reasons[api.WhyPort] != 1 {
				t.Errorf("%s: got %q for %v, want the port and what to change", when, e.Detail, e.Reasons)
			}
		}
		refused("another program listens there")
		_ = other.Close()
		twice := fields{"network": fields{"forwards": []fields{{"host_port": port, "guest_port": 80}, {"host_port": port, "guest_port": 81}}}}
		if e := h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), twice)); e.Field != "network.forwards" {
			t.Errorf("a port that is forwarded twice: got %+v", e)
		}
		first := h.boot(forwards)
		refused("another VM has it")
		h.want(201, "POST", "/v1/vms/"+first+"/fork", nil) // a fork takes no ports
		h.want(200, "POST", "/v1/vms/"+first+"/stop", nil)
		refused("a stopped VM has it")
		h.want(204, "DELETE", "/v1/vms/"+first, nil)
		h.boot(forwards)
	})
}
