package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAClaimReachesTheGuestAndIsKeptNowhere(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const secret = "hunter2-hunter2"
		driver := sim.New(sim.Config{})
		h := newHost(t, func(c *Config) { c.Drivers = []machine.Driver{driver} })
		id := h.boot(nil)
		vm := "/v1/vms/" + id
		if !h.get(id).CanClaim {
			t.Fatal("the VM does not say that its agent takes claims")
		}
		order := fields{"name": "build-42", "claim": fields{"hostname": "ci", "env": fields{"STAGE": "test"}, "secrets": fields{"TOKEN": secret}}}
		for range 2 { // the repeat of an order whose answer was lost gives it again and renames no second time
			h.want(200, "PATCH", vm, order, fenced("1.5.1")...)
		}
		got := driver.Claimed(id)
		if got == nil || got.Hostname != "ci" || got.Env["STAGE"] != "test" || got.Secrets["TOKEN"] != secret || h.get(id).Name != "build-42" {
			t.Errorf("the guest has %+v", got)
		}
		patches := 0
		for _, o := range h.orders() {
			if o.Op == "patch" {
				patches++
			}
		}
		if patches != 1 {
			t.Errorf("%d patches are listed, want 1", patches)
		}
		if events := h.want(200, "GET", "/v1/events", nil).Body.String(); strings.Contains(events, secret) || !strings.Contains(events, `"claim":true`) {
			t.Errorf("the events are %s", events)
		}
		h.stop()
		err := filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			if strings.Contains(string(raw), secret) {
				t.Errorf("%s holds the secret", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		h.start()
	})
}

func TestAClaimIsRefusedWhereItCannotBeGiven(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		claim := fields{"name": "new", "claim": fields{"hostname": "ci"}}
		old := h.boot(fields{"image": "sim:?old_agent=true"})
		if h.get(old).CanClaim {
			t.Error("an old agent is said to take claims")
		}
		if e := h.refused(api.CodeInvalid, "PATCH", "/v1/vms/"+old, claim); e.Field != "claim" || !strings.Contains(e.Detail, "update fluxvm-guest") {
			t.Errorf("got %+v", e)
		}
		if name := h.get(old).Name; name == "new" {
			t.Error("the VM was renamed all the same")
		}
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"image": "sim:?agent_ms=5000"}))
		h.awaitState(id, api.StateRunning)
		h.refused(api.CodeUnavailable, "PATCH", "/v1/vms/"+id, claim) // not yet
		passes(6 * time.Second)
		h.want(200, "PATCH", "/v1/vms/"+id, claim, fenced("1.5.1")...)
		h.refused(api.CodeStaleToken, "PATCH", "/v1/vms/"+id, claim, fenced("1.4.1")...)
		h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
		h.refused(api.CodeConflict, "PATCH", "/v1/vms/"+id, claim)
		h.refused(api.CodeInvalid, "PATCH", "/v1/vms/"+id, fields{"claim": fields{"secrets": fields{"../x": "y"}}})
	})
}
