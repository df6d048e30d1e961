package node

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	nodeActor = "node" // of what the daemon does by itself

	slotsEvery   = time.Second      // how often a missing warm slot is looked at
	slotsBackoff = 30 * time.Second // after one that could not be made
)

func (v *vm) hasLabel(key string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, has := v.rec.Spec.Labels[key]
	return has
}

func (v *vm) isSandbox() bool { return v.hasLabel(api.LabelSandbox) }

// countIn adds the VM to the host's load.
func (v *vm) countIn(out *api.Density) {
	ready := v.ready()
	v.mu.Lock()
	defer v.mu.Unlock()
	labels, state := v.rec.Spec.Labels, v.stateLocked()
	_, warm := labels[api.LabelWarmPool]
	_, slot := labels[api.LabelSandboxSlot]
	if (warm || slot) && ready {
		out.WarmSlotsReady++
	}
	if _, is := labels[api.LabelSandbox]; !is {
		return
	}
	switch {
	case v.rec.Wanted == stateHibernated && v.run == nil:
		out.HibernatedSandboxes++
	case state == api.StatePaused:
		out.PausedSandboxes++
	case state == api.StatePlaced, state == api.StateBooting, state == api.StateRunning:
		out.ActiveSandboxes++
	}
}

// createSandbox makes a VM that is a sandbox, or hands a warm slot out.
func (d *Daemon) createSandbox(c *call) (answer, error) {
	var req api.SandboxRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	m, err := d.sandboxSpec(req)
	if err != nil {
		return answer{}, err
	}
	if m.ID == "" {
		if v, err := d.takeSlot(c, m); v != nil || err != nil {
			return d.tookSlot(c, v, err)
		}
		m.ID = uuid.NewString()
	}
	return d.create(c, m)
}

// sandboxSpec is the VM that the request means.
func (d *Daemon) sandboxSpec(req api.SandboxRequest) (api.MachineRequest, error) {
	m := req.MachineRequest
	profile, err := api.FindSandboxProfile(req.Profile)
	if err != nil {
		return m, err
	}
	switch {
	case req.Profile != "" && (m.MemoryMiB != 0 && m.MemoryMiB != profile.MemoryMiB || m.VCPUs != 0 && m.VCPUs != profile.VCPUs):
		return m, api.Invalid("profile", "profile %s is %d vCPUs and %d MiB; leave the size out, or the profile", profile.Name, profile.VCPUs, profile.MemoryMiB)
	case req.TTLSeconds < 0 || req.TTLSeconds > api.MaxTTLSeconds:
		return m, api.Invalid("ttl_seconds", "ttl_seconds must be from 0 to %d", int64(api.MaxTTLSeconds))
	case req.TTLSeconds > 0 && m.ExpiresInMS != nil:
		return m, api.Invalid("ttl_seconds", "give ttl_seconds or expires_in_ms, not both")
	}
	m.VCPUs, m.MemoryMiB = cmp.Or(m.VCPUs, profile.VCPUs), cmp.Or(m.MemoryMiB, profile.MemoryMiB)
	m.Image = cmp.Or(m.Image, d.cfg.Settings.Sandbox.Image)
	if req.TTLSeconds > 0 {
		ms := req.TTLSeconds * 1000
		m.ExpiresInMS = &ms
	}
	m.Labels = maps.Clone(m.Labels)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[api.LabelSandbox] = "true"
	return m, nil
}

func (d *Daemon) listSandboxes(c *call) (answer, error) {
	all := []api.Machine{}
	for _, v := range d.list() {
		if v.isSandbox() {
			all = append(all, v.view())
		}
	}
	page, err := pageOf(c, all, func(m api.Machine) string { return m.ID })
	if err != nil {
		return answer{}, err
	}
	return ok(page)
}

// sandbox is the VM that the request names, if it is one.
func (d *Daemon) sandbox(c *call) (*vm, error) {
	v, err := d.named(c)
	if err != nil {
		return nil, err
	}
	if !v.isSandbox() {
		return nil, api.Errorf(api.CodeNotFound, "VM %s is no sandbox; GET /v1/sandboxes lists those there are", v.id)
	}
	return v, nil
}

func (d *Daemon) execSandbox(c *call) (answer, error) {
	if _, err := d.sandbox(c); err != nil {
		return answer{}, err
	}
	return d.execVM(c)
}

// hibernateSandbox saves a sandbox to disk and ends its machine; the answer comes when its memory is free.
func (d *Daemon) hibernateSandbox(c *call) (answer, error) {
	v, err := d.sandbox(c)
	if err != nil {
		return answer{}, err
	}
	v.mu.Lock()
	hibernated := v.rec.Wanted == stateHibernated
	v.mu.Unlock()
	if !hibernated {
		if _, err := v.saveRunning(); err != nil {
			return answer{}, err
		}
	}
	return d.toState(c, "hibernate", func(v *vm, r *record) error {
		switch s := v.stateLocked(); {
		case r.Wanted == stateHibernated:
		case s == api.StateRunning || s == api.StatePaused:
			r.Wanted, r.Autopause = stateHibernated, false
		default:
			return api.Errorf(api.CodeConflict, "sandbox %s is %s; only a running one can be hibernated", v.id, s)
		}
		return nil
	}, func(s api.VMState) bool { return s == api.StateStopped })
}

// wakeSandbox lets a hibernated or paused sandbox go on.
func (d *Daemon) wakeSandbox(c *call) (answer, error) {
	if err := c.empty(); err != nil {
		return answer{}, err
	}
	v, err := d.sandbox(c)
	if err != nil {
		return answer{}, err
	}
	if err := d.rouse(c, v); err != nil {
		return answer{}, err
	}
	d.carriedOut(c, "wake", v.id, v.view().Name, nil)
	return ok(v.view())
}

// kind is what two sandboxes must have in common for one to be handed out as the other.
func kind(m api.MachineRequest) api.MachineRequest {
	m.ID, m.Name, m.Labels, m.ExpiresInMS = "", "", nil, nil
	return m
}

// takeSlot makes the warm slot that has waited longest the sandbox; nil when none is ready.
func (d *Daemon) takeSlot(c *call, m api.MachineRequest) (*vm, error) {
	want := m
	want.ID = uuid.NewString()
	if err := want.Check(); err != nil {
		return nil, err
	}
	if _, err := d.complete(&want); err != nil {
		return nil, err
	}
	var ready []*vm
	since := map[*vm]api.Time{}
	for _, v := range d.list() {
		if v.hasLabel(api.LabelSandboxSlot) && v.ready() {
			v.mu.Lock()
			since[v] = v.rec.ReadyAt
			same := reflect.DeepEqual(kind(v.rec.Spec), kind(want))
			v.mu.Unlock()
			if same {
				ready = append(ready, v)
			}
		}
	}
	slices.SortStableFunc(ready, func(a, b *vm) int { return cmp.Compare(since[a], since[b]) })
	for _, v := range ready {
		taken := false
		err := d.gate.within(c.token, func() error {
			v.mu.Lock()
			defer v.mu.Unlock()
			if _, still := v.rec.Spec.Labels[api.LabelSandboxSlot]; !still || v.stateLocked() != api.StateRunning {
				return nil
			}
			taken = true
			return v.changeLocked("", func(r *record) error {
				r.Spec.Labels = m.Labels
				if m.Name != "" {
					r.Spec.Name = m.Name
				}
				if m.ExpiresInMS != nil {
					left := time.Duration(*m.ExpiresInMS) * time.Millisecond
					r.Deadline, r.ExpiresAt = deadlineIn(now(d.cfg.Facts), left), d.wall().Add(left)
				}
				v.touched = time.Now()
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
		if taken {
			return v, nil
		}
	}
	return nil, nil
}

// tookSlot answers for a slot that became a sandbox. It goes by its new name inside, too, if its agent is able.
func (d *Daemon) tookSlot(c *call, v *vm, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	if m := v.machineNow(); m != nil {
		if renewer, ok := m.(machine.Renewer); ok {
			ctx, cancel := context.WithTimeout(c.Context(), machine.RenewWithin)
			defer cancel()
			if err := renewer.Renew(ctx, machine.Identity{Hostname: v.view().Name}); err != nil {
				v.log.Warn("the sandbox keeps the host name of the slot it was", "error", err)
			}
		}
	}
	d.carriedOut(c, "create", v.id, v.view().Name, map[string]any{"warm": true, "memory_mib": v.size.MemoryMiB})
	return answer{status: http.StatusCreated, body: v.view()}, nil
}

// keepSlots keeps as many sandboxes booted as are wanted, one start at a time, until ctx ends.
func (d *Daemon) keepSlots(ctx context.Context) {
	s := d.cfg.Settings.Sandbox
	if s.WarmSlots == 0 {
		return
	}
	wait, wrong := slotsEvery, ""
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = slotsEvery
		if err := d.fillSlot(ctx, s); err != nil {
			wait = slotsBackoff
			if why := message(err); why != wrong && ctx.Err() == nil {
				wrong = why
				d.log.Warn("a warm slot cannot be made; trying again", "error", err)
			}
			continue
		}
		wrong = ""
	}
}

// fillSlot makes one slot if one is missing and none is on its way.
func (d *Daemon) fillSlot(ctx context.Context, s Sandbox) error {
	have := 0
	for _, v := range d.list() {
		if !v.hasLabel(api.LabelSandboxSlot) {
			continue
		}
		switch state := v.view().State; {
		case state == api.StateFailed || state == api.StateStopped:
			v.mu.Lock()
			why := v.rec.Failed
			err := v.changeLocked("", func(r *record) error {
				r.Wanted, r.End = api.StateDeleting, "the slot did not run"
				return nil
			})
			v.mu.Unlock()
			if err == nil {
				err = api.Errorf(api.CodeInternal, "a warm slot did not run: %s", why)
			}
			return err
		case state == api.StateDeleting:
		case !v.ready():
			return nil
		default:
			have++
		}
	}
	if have >= s.WarmSlots {
		return nil
	}
	m, err := d.sandboxSpec(api.SandboxRequest{Profile: s.WarmProfile, MachineRequest: api.MachineRequest{ID: uuid.NewString()}})
	if err != nil {
		return err
	}
	m.Name, m.Labels = "slot-"+m.ID[:8], map[string]string{api.LabelSandboxSlot: "true"}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/sandboxes", nil)
	if err != nil {
		return err
	}
	request.Header.Set(api.HeaderDefer, "0")
	_, err = d.create(&call{Request: request, actor: nodeActor}, m)
	return err
}
