package node

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAForkIsAVMOfItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		parent := h.boot(fields{"labels": fields{"team": "a", api.LabelWarmPool: "p", api.LabelCluster: "c"}})
		child := uuid.NewString()
		req := fields{"id": child, "name": "copy", "labels": fields{"try": "1"}}
		h.want(201, "POST", "/v1/vms/"+parent+"/fork", req)
		m := h.await(child, func(m api.Machine) bool { return m.Agent })
		if m.Name != "copy" || m.MemoryMiB != 256 || m.Labels["team"] != "a" || m.Labels["try"] != "1" || len(m.Labels) != 2 {
			t.Errorf("got %+v", m)
		}
		if h.get(parent).State != api.StateRunning {
			t.Error("the parent does not run any more")
		}
		h.want(200, "POST", "/v1/vms/"+parent+"/fork", req) // a repeat makes no other
		if n := len(decode[api.List[api.Machine]](t, h.want(200, "GET", "/v1/vms", nil)).Items); n != 2 {
			t.Errorf("got %d VMs, want 2", n)
		}
		other := h.boot(nil)
		h.refused(api.CodeConflict, "POST", "/v1/vms/"+other+"/fork", req)
		h.want(204, "DELETE", "/v1/vms/"+parent, nil)
		h.restart()
		if h.get(child).State != api.StateRunning {
			t.Error("the copy went with its parent")
		}
	})
}

func TestManyForksComeFromOneMoment(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		parent := h.boot(nil)
		made := decode[struct{ VMs []api.Machine }](t, h.want(201, "POST", "/v1/vms/"+parent+"/fork", fields{"count": 3}))
		seen := map[string]bool{}
		for _, m := range made.VMs {
			seen[m.ID] = true
			h.await(m.ID, func(m api.Machine) bool { return m.Agent })
		}
		if len(seen) != 3 {
			t.Errorf("got %d VMs, want 3", len(seen))
		}
		h.refused(api.CodeInvalid, "POST", "/v1/vms/"+parent+"/fork", fields{"count": 3, "name": "x"})
		h.refused(api.CodeInvalid, "POST", "/v1/vms/"+parent+"/fork", fields{"count": 100})
		h.want(200, "POST", "/v1/vms/"+parent+"/stop", nil)
		h.refused(api.CodeConflict, "POST", "/v1/vms/"+parent+"/fork", nil)
		if left, _ := filepath.Glob(filepath.Join(h.dir, leftSnapshots, "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestASandboxIsHibernatedAndWokenByTheNextCall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.sandbox(nil)
		h.want(200, "POST", "/v1/sandboxes/"+id+"/hibernate", nil)
		if m := h.get(id); m.State != api.StateStopped || !strings.Contains(m.Reason, "hibernated") {
			t.Errorf("got %s (%s)", m.State, m.Reason)
		}
		if d := h.density(); d.HibernatedSandboxes != 1 || d.ActiveSandboxes != 0 {
			t.Errorf("got %+v", d)
		}
		h.want(200, "POST", "/v1/sandboxes/"+id+"/hibernate", nil)
		h.restart()
		if m := h.get(id); m.State != api.StateStopped {
			t.Errorf("after a restart: got %s", m.State)
		}
		h.exec(id)
		if m := h.get(id); m.State != api.StateRunning || m.Reason != "" {
			t.Errorf("after a command: got %s (%s)", m.State, m.Reason)
		}
		for _, verb := range []string{"/v1/sandboxes/" + id + "/wake", "/v1/vms/" + id + "/start", "/v1/vms/" + id + "/resume"} {
			h.want(200, "POST", "/v1/sandboxes/"+id+"/hibernate", nil)
			h.want(200, "POST", verb, nil)
			h.awaitState(id, api.StateRunning)
		}
		h.want(200, "POST", "/v1/sandboxes/"+id+"/hibernate", nil)
		h.want(204, "DELETE", "/v1/vms/"+id, nil)
		if _, err := os.Stat(filepath.Join(h.dir, "vms", id)); !os.IsNotExist(err) {
			t.Errorf("what was saved is still there: %v", err)
		}
		plain := h.boot(nil)
		h.refused(api.CodeNotFound, "POST", "/v1/sandboxes/"+plain+"/hibernate", nil)
	})
}

func TestASavedStateThatIsLostIsSaidAndARestartBootsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.sandbox(nil)
		h.want(200, "POST", "/v1/sandboxes/"+id+"/hibernate", nil)
		if err := os.RemoveAll(filepath.Join(h.dir, "vms", id, savedDir)); err != nil {
			t.Fatal(err)
		}
		h.do("POST", "/v1/sandboxes/"+id+"/wake", nil)
		if m := h.awaitState(id, api.StateFailed); !strings.Contains(m.Reason, "saved state") || !strings.Contains(m.Reason, "restart") {
			t.Errorf("got %q", m.Reason)
		}
		h.want(200, "POST", "/v1/vms/"+id+"/restart", nil)
		h.awaitState(id, api.StateRunning)
	})
}

func TestPoolVMsStartFromATemplateOfTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		slow := fields{"image": "sim:?boot_ms=10000&agent_ms=5000&template=1", "labels": fields{api.LabelWarmPool: "p"}}
		took := func() time.Duration { began := time.Now(); h.boot(slow); return time.Since(began) }
		if d := took(); d < 15*time.Second {
			t.Errorf("the first came in %s without a boot", d)
		}
		if d := took(); d > 2*time.Second {
			t.Errorf("the second took %s, want next to nothing", d)
		}
		h.restart()
		if d := took(); d > 2*time.Second {
			t.Errorf("after a restart of the daemon one took %s", d)
		}
		slow["labels"] = fields{}
		if d := took(); d < 15*time.Second {
			t.Errorf("a VM of no pool came in %s, without a boot of its own", d)
		}
		slow["labels"] = fields{api.LabelWarmPool: "p"}
		dirs, _ := filepath.Glob(filepath.Join(h.dir, leftSnapshots, templatePrefix+"*"))
		if len(dirs) != 1 {
			t.Fatalf("got templates %v, want one", dirs)
		}
		if err := os.Remove(filepath.Join(dirs[0], "sim.json")); err != nil {
			t.Fatal(err)
		}
		if d := took(); d < 15*time.Second {
			t.Errorf("from a broken template one came in %s", d)
		}
		if d := took(); d > 2*time.Second {
			t.Errorf("the one after the new template took %s", d)
		}
	})
}

func TestVMsStartFromANamedSnapshot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"image": "sim:?boot_ms=20000"})
		s := decode[api.Snapshot](t, h.want(201, "POST", "/v1/vms/"+id+"/snapshot", fields{"name": "tools"}))
		if s.Image != "snapshot:tools" || s.MemoryMiB != 256 {
			t.Errorf("got %+v", s)
		}
		h.refused(api.CodeConflict, "POST", "/v1/vms/"+id+"/snapshot", fields{"name": "tools"})
		for _, name := range []string{"", "../x", "A", "a.part", "template.sim"} {
			h.refused(api.CodeInvalid, "POST", "/v1/vms/"+id+"/snapshot", fields{"name": name})
		}
		h.restart()
		began := time.Now()
		h.boot(fields{"image": "snapshot:tools"})
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("took %s", d)
		}
		h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), fields{"image": "snapshot:tools", "memory_mib": 512}))
		h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), fields{"image": "snapshot:other"}))
		h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), fields{"image": "snapshot:../vms"}))
		if n := len(decode[api.List[api.Snapshot]](t, h.want(200, "GET", "/v1/snapshots", nil)).Items); n != 1 {
			t.Errorf("got %d snapshots, want 1", n)
		}
		h.want(204, "DELETE", "/v1/snapshots/tools", nil)
		h.refused(api.CodeNotFound, "DELETE", "/v1/snapshots/tools", nil)
		if h.get(id).State != api.StateRunning {
			t.Error("the VM it was taken of went with it")
		}
	})
}

// fullDisk is the sim driver on a disk that has room for so many copies.
type fullDisk struct {
	*sim.Driver
	room atomic.Int32
}

func (f *fullDisk) CopySaved(from, to string) error {
	if f.room.Add(-1) < 0 {
		return syscall.ENOSPC
	}
	return f.Driver.CopySaved(from, to)
}

func TestAForkThatCannotMakeAllOfItsCopiesLeavesNone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disk := &fullDisk{Driver: sim.New(sim.Config{})}
		disk.room.Store(2)
		h := newHost(t, func(c *Config) { c.Drivers = []machine.Driver{disk} })
		parent := h.boot(nil)
		h.refused(api.CodeStorageFull, "POST", "/v1/vms/"+parent+"/fork", fields{"count": 3})
		passes(time.Minute)
		if all := decode[api.List[api.Machine]](t, h.want(200, "GET", "/v1/vms", nil)).Items; len(all) != 1 || all[0].ID != parent {
			t.Errorf("got %+v, want the parent alone", all)
		}
		disk.room.Store(3)
		h.want(201, "POST", "/v1/vms/"+parent+"/fork", fields{"count": 3})
	})
}
