package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// importHold is how long a host may take to import an image.
const importHold = 2 * time.Hour

// Host speaks to the API of one node (/v1).
type Host struct{ caller *caller }

// NewHost makes a client for one host. It sends nothing yet.
func NewHost(cfg Config) (*Host, error) {
	if len(cfg.Endpoints) > 1 {
		return nil, errors.New("a host has one endpoint; give one URL")
	}
	c, err := newCaller(cfg, DefaultHostURL)
	if err != nil {
		return nil, err
	}
	return &Host{caller: c}, nil
}

// Machines lists the host's VMs.
func (h *Host) Machines(ctx context.Context) iter.Seq2[api.Machine, error] {
	return pages[api.Machine](ctx, h.caller, "/v1/vms", nil)
}

// Machine finds one by id.
func (h *Host) Machine(ctx context.Context, id string) (api.Machine, error) {
	return get[api.Machine](ctx, h.caller, at("/v1/vms", id))
}

// Create makes a VM. An empty id gets a random one; the same id again answers with the VM as it is.
func (h *Host) Create(ctx context.Context, req api.MachineRequest) (api.Machine, error) {
	if req.ID == "" {
		req.ID = uuid.NewString()
	}
	var out api.Machine
	// The host may rightly wait for memory pressure to clear before it answers.
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: "/v1/vms", body: req, key: req.ID, hold: readyHold, out: &out})
	return out, err
}

// Patch changes name, labels or deadline.
func (h *Host) Patch(ctx context.Context, id string, p api.MachinePatch) (api.Machine, error) {
	return patch[api.Machine](ctx, h.caller, at("/v1/vms", id), p)
}

// Delete ends a VM and removes its disks.
func (h *Host) Delete(ctx context.Context, id string) error {
	return remove(ctx, h.caller, at("/v1/vms", id))
}

// Exec runs a command in the guest, never twice.
func (h *Host) Exec(ctx context.Context, id string, req api.ExecRequest) (api.ExecAnswer, error) {
	return runExec(ctx, h.caller, at("/v1/vms", id, "exec"), req, "")
}

// Start boots a stopped VM.
func (h *Host) Start(ctx context.Context, id string) error { return h.order(ctx, id, "start") }

// Stop shuts a VM down; its disk stays.
func (h *Host) Stop(ctx context.Context, id string) error { return h.order(ctx, id, "stop") }

// Restart stops a VM and boots it.
func (h *Host) Restart(ctx context.Context, id string) error { return h.order(ctx, id, "restart") }

// Pause halts a VM's processors.
func (h *Host) Pause(ctx context.Context, id string) error { return h.order(ctx, id, "pause") }

// Resume lets a paused VM run on.
func (h *Host) Resume(ctx context.Context, id string) error { return h.order(ctx, id, "resume") }

// order is sent once: a host keeps no keys, and by the time of a repeat the VM may be in another state.
func (h *Host) order(ctx context.Context, id, what string) error {
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: at("/v1/vms", id, what), body: struct{}{}, once: true})
	return err
}

// Console gives what the guest wrote to its serial console.
func (h *Host) Console(ctx context.Context, id string) ([]byte, error) {
	return get[[]byte](ctx, h.caller, at("/v1/vms", id, "console"))
}

// HostMemory gives the host's memory and its pressure.
func (h *Host) HostMemory(ctx context.Context) (api.HostMemory, error) {
	return get[api.HostMemory](ctx, h.caller, "/v1/host/memory")
}

// Density gives the host's load.
func (h *Host) Density(ctx context.Context) (api.Density, error) {
	return get[api.Density](ctx, h.caller, "/v1/sandboxes/density")
}

// Balloon reads a VM's balloon.
func (h *Host) Balloon(ctx context.Context, id string) (api.Balloon, error) {
	return get[api.Balloon](ctx, h.caller, at("/v1/vms", id, "balloon"))
}

// SetBalloon asks the guest to give back so many MiB; 0 gives it all its memory. The same size twice does no harm.
func (h *Host) SetBalloon(ctx context.Context, id string, mib int64) (api.Balloon, error) {
	var out api.Balloon
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: at("/v1/vms", id, "balloon"), body: api.BalloonRequest{BalloonMiB: &mib}, key: id, out: &out})
	return out, err
}

// Memory reports what a VM takes of the host.
func (h *Host) Memory(ctx context.Context, id string) (api.MemoryReport, error) {
	return get[api.MemoryReport](ctx, h.caller, at("/v1/vms", id, "memory"))
}

// Fork copies a running VM into a new one. An empty id gets a random one.
func (h *Host) Fork(ctx context.Context, id string, req api.ForkRequest) (api.Machine, error) {
	if req.ID == "" {
		req.ID = uuid.NewString()
	}
	var out api.Machine
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: at("/v1/vms", id, "fork"), body: req, key: req.ID, hold: readyHold, out: &out})
	return out, err
}

// Snapshot writes a running VM down under a name, from which others start.
func (h *Host) Snapshot(ctx context.Context, id, name string) (api.Snapshot, error) {
	var out api.Snapshot
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: at("/v1/vms", id, "snapshot"), body: api.SnapshotRequest{Name: name}, once: true, hold: readyHold, out: &out})
	return out, err
}

// Snapshots lists the host's snapshots.
func (h *Host) Snapshots(ctx context.Context) iter.Seq2[api.Snapshot, error] {
	return pages[api.Snapshot](ctx, h.caller, "/v1/snapshots", nil)
}

// DeleteSnapshot removes a snapshot. VMs that started from it go on.
func (h *Host) DeleteSnapshot(ctx context.Context, name string) error {
	return remove(ctx, h.caller, at("/v1/snapshots", name))
}

// Images lists the host's images.
func (h *Host) Images(ctx context.Context) iter.Seq2[api.HostImage, error] {
	return pages[api.HostImage](ctx, h.caller, "/v1/images", nil)
}

// ImportImage puts an image below the host's data directory. It returns once it is all there, however long that takes; a
// repeat with the same digest changes nothing.
func (h *Host) ImportImage(ctx context.Context, req api.ImportRequest) (api.HostImage, error) {
	var out api.HostImage
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: "/v1/images", body: req, key: req.Digest, hold: importHold, out: &out})
	return out, err
}

// RemoveImage removes an image that was imported and that no VM of the host was made from.
func (h *Host) RemoveImage(ctx context.Context, name string) error {
	return remove(ctx, h.caller, at("/v1/images", name))
}

// Sandboxes lists the host's sandboxes.
func (h *Host) Sandboxes(ctx context.Context) iter.Seq2[api.Machine, error] {
	return pages[api.Machine](ctx, h.caller, "/v1/sandboxes", nil)
}

// CreateSandbox makes a sandbox, or takes one that waits booted. It is sent once: without an id a repeat would make
// another one.
func (h *Host) CreateSandbox(ctx context.Context, req api.SandboxRequest) (api.Machine, error) {
	var out api.Machine
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: "/v1/sandboxes", body: req, once: req.ID == "", key: req.ID, hold: readyHold, out: &out})
	return out, err
}

// Hibernate saves a sandbox to disk and frees its memory. Any call that needs it wakes it.
func (h *Host) Hibernate(ctx context.Context, id string) error {
	return h.orderSandbox(ctx, id, "hibernate")
}

// Wake lets a hibernated or paused sandbox go on.
func (h *Host) Wake(ctx context.Context, id string) error { return h.orderSandbox(ctx, id, "wake") }

func (h *Host) orderSandbox(ctx context.Context, id, what string) error {
	_, err := h.caller.do(ctx, call{method: http.MethodPost, path: at("/v1/sandboxes", id, what), body: struct{}{}, once: true, hold: readyHold})
	return err
}
