package client

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

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
