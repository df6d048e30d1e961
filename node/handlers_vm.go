package node

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// consoleBytes is how much of the end of a console is shown.
const consoleBytes = 64 << 10

func (d *Daemon) listVMs(c *call) (answer, error) {
	all := []api.Machine{}
	for _, v := range d.list() {
		all = append(all, v.view())
	}
	page, err := pageOf(c, all, func(m api.Machine) string { return m.ID })
	if err != nil {
		return answer{}, err
	}
	return ok(page)
}

func (d *Daemon) named(c *call) (*vm, error) { return d.find(mux.Vars(c.Request)["id"]) }

func (d *Daemon) getVM(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	return ok(v.view())
}

func (d *Daemon) createVM(c *call) (answer, error) {
	var req api.MachineRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	return d.create(c, req)
}

// create makes a VM, or answers with the one that has the id already.
func (d *Daemon) create(c *call, req api.MachineRequest) (answer, error) {
	if err := req.Check(); err != nil {
		return answer{}, err
	}
	from, err := d.fromSnapshot(&req)
	if err != nil {
		return answer{}, err
	}
	driver, err := d.complete(&req)
	if err != nil {
		return answer{}, err
	}
	if v, err := d.known(c, req); v != nil || err != nil {
		return d.made(c, v, req, false, err)
	}
	spec := req
	spec.ExpiresInMS = nil
	if err := driver.Check(machine.Spec{MachineRequest: spec}); err != nil {
		return answer{}, d.denied(c, req, err)
	}
	if scope, why := d.quota(req); why != "" {
		return answer{}, d.deny(c, req, scope, hostFull(scope, why))
	}
	if err := d.admitPressure(c.Context(), req.ID, req.MemoryMiB, c.Header.Get(api.HeaderDefer) == "0"); err != nil {
		return answer{}, d.deny(c, req, "pressure", err)
	}
	v, fresh, err := d.insert(c, "create", driver, d.newRecord(req), from)
	if err != nil || !fresh {
		d.unreserve(req.ID)
	}
	return d.made(c, v, req, fresh, err)
}

// unreserve ends a reservation whose VM is not going to land.
func (d *Daemon) unreserve(id string) {
	d.mu.Lock()
	v := d.vms[id]
	d.mu.Unlock()
	if v == nil || v.ready() {
		d.reserved.release(id)
	}
}

// newRecord is the record of a VM that is to be made now.
func (d *Daemon) newRecord(req api.MachineRequest) record {
	rec := record{Spec: req, Wanted: api.StateRunning, Boots: 1, CreatedAt: d.wall()}
	rec.Spec.ExpiresInMS = nil
	if req.ExpiresInMS != nil {
		left := time.Duration(*req.ExpiresInMS) * time.Millisecond
		rec.Deadline, rec.ExpiresAt = deadlineIn(now(d.cfg.Facts), left), rec.CreatedAt.Add(left)
	}
	return rec
}

// complete fills the defaults in and picks the driver.
func (d *Daemon) complete(req *api.MachineRequest) (machine.Driver, error) {
	req.Name = cmp.Or(req.Name, "vm-"+req.ID[:8])
	var err error
	if req.Image, err = d.localImage(req.Image); err != nil {
		return nil, err
	}
	req.VCPUs = cmp.Or(req.VCPUs, 1)
	if req.GuestOS == "" && req.Apple != nil {
		req.GuestOS = req.Apple.GuestOS
	}
	req.GuestOS = cmp.Or(req.GuestOS, api.GuestLinux)
	if req.GuestOS != api.GuestLinux && req.GuestOS != api.GuestMacOS {
		return nil, api.Invalid("apple.guest_os", "apple.guest_os must be %s or %s", api.GuestLinux, api.GuestMacOS)
	}
	if req.Backend == "" || req.Backend == api.BackendAuto {
		req.Backend = d.cfg.Backend
	}
	if n := req.ExpiresInMS; n != nil && (*n < 0 || *n > api.MaxTTLSeconds*1000) {
		return nil, api.Invalid("expires_in_ms", "expires_in_ms must be from 0 to %d", int64(api.MaxTTLSeconds)*1000)
	}
	driver := d.driver(req.Backend)
	if driver == nil {
		return nil, api.Invalid("backend", "backend %s is not available on this host; it has %s", req.Backend, strings.Join(driverNames(d.cfg.Drivers), ", "))
	}
	can := driver.Features()
	switch {
	case req.GuestOS == api.GuestMacOS && !can.MacOS:
		return nil, api.Invalid("guest_os", "backend %s runs no macOS guests on this host; use a Mac", req.Backend)
	case req.Balloon != nil && !can.BalloonAsked:
		return nil, api.Invalid("balloon", "backend %s takes no balloon settings; leave balloon out", req.Backend)
	case req.Balloon != nil && (req.Hugepages || len(req.VFIODevices) > 0 || strings.HasPrefix(req.SecurityProfile, "confidential")):
		return nil, api.Invalid("balloon", "balloon does not go with hugepages, vfio_devices or a confidential security_profile; leave it out")
	}
	return driver, nil
}

// known is the VM that already has the id. It is never changed by a create: one of another size is refused.
func (d *Daemon) known(c *call, req api.MachineRequest) (*vm, error) {
	d.mu.Lock()
	v := d.vms[req.ID]
	ended := d.endedLocked(req.ID, c.token.number())
	d.mu.Unlock()
	if v == nil && !ended {
		return nil, nil
	}
	// Also a repeat is an order: the leadership that gives it must be the newest.
	if err := d.gate.within(c.token, func() error { return nil }); err != nil {
		return nil, err
	}
	if v == nil {
		return nil, api.Errorf(api.CodeConflict, "VM %s has ended on this host; take another id", req.ID)
	}
	select {
	case <-v.committed:
	case <-c.Context().Done():
		return nil, api.Errorf(api.CodeUnavailable, "a create with this id is under way; try again")
	}
	d.mu.Lock()
	still := d.vms[req.ID] == v
	d.mu.Unlock()
	if !still {
		return nil, api.Errorf(api.CodeUnavailable, "another create with this id did not succeed; try again")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	has := v.rec.Spec
	switch {
	case v.rec.Wanted == api.StateDeleting:
		return nil, api.Errorf(api.CodeConflict, "VM %s is being deleted; take another id", req.ID)
	case has.VCPUs != req.VCPUs || has.MemoryMiB != req.MemoryMiB || has.DiskSizeGiB != req.DiskSizeGiB || has.Image != req.Image || has.Backend != req.Backend || has.GuestOS != req.GuestOS:
		return nil, api.Errorf(api.CodeConflict, "VM %s exists with another size, image or backend; take another id", req.ID)
	}
	return v, nil
}

// insert makes the VM unless another create with its id was faster. A VM that goes on from a saved state gets a copy
// of the directory from before anything is on record.
func (d *Daemon) insert(c *call, op string, driver machine.Driver, rec record, from string) (v *vm, fresh bool, err error) {
	req := rec.Spec
	rec.Order = c.token.number()
	if f := c.token.fingerprint(op, c.body); f != "" {
		rec.Orders = []string{f}
	}
	if from != "" {
		done, err := d.copySaved(driver, req.ID, from)
		if err != nil {
			return nil, false, err
		}
		defer done()
		rec.Saved, rec.Renew = true, renewIdentity
	}
	v = newVM(d, req.ID, driver, rec)
	err = d.gate.within(c.token, func() error {
		d.mu.Lock()
		if d.vms[req.ID] != nil || d.endedLocked(req.ID, c.token.number()) {
			d.mu.Unlock()
			v = nil
			return nil
		}
		if d.scrubbing {
			d.mu.Unlock()
			busy := api.Errorf(api.CodeUnavailable, "the host is being scrubbed after a lease; try again when it is done")
			busy.Reasons = map[string]int{api.WhyScrub: 1}
			return busy
		}
		if scope, why := d.quotaLocked(req); why != "" {
			d.mu.Unlock()
			return d.deny(c, req, scope, hostFull(scope, why))
		}
		d.vms[req.ID] = v
		d.mu.Unlock()
		err := d.store.put(v.id, rec)
		if err != nil {
			d.mu.Lock()
			delete(d.vms, req.ID)
			d.mu.Unlock()
		}
		close(v.committed)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	if v == nil {
		v, err = d.known(c, req)
		return v, false, err
	}
	v.mu.Lock()
	v.armLocked()
	v.mu.Unlock()
	d.lives.Go(func() { v.live(d.liveCtx) })
	d.beats.poke()
	return v, true, nil
}

// made answers a create.
func (d *Daemon) made(c *call, v *vm, req api.MachineRequest, fresh bool, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	if !fresh {
		return ok(v.view())
	}
	d.carriedOut(c, "create", v.id, req.Name, map[string]any{"backend": req.Backend, "image": req.Image, "vcpus": req.VCPUs, "memory_mib": req.MemoryMiB})
	return answer{status: http.StatusCreated, body: v.view()}, nil
}

// carriedOut leaves an event and tells a steering driver.
func (d *Daemon) carriedOut(c *call, op, id, name string, detail map[string]any) {
	if detail == nil {
		detail = map[string]any{}
	}
	detail["vm_id"], detail["name"] = id, name
	d.record(c.actor, "vm."+op, id, "ok", detail)
	d.ordered(op, id, name, c.token.text)
}

// deny leaves an event of a create that the host's admission refused.
func (d *Daemon) deny(c *call, req api.MachineRequest, scope string, err error) error {
	d.metrics.denied.WithLabelValues(scope).Inc()
	d.record(c.actor, "quota.deny", req.ID, "refused", map[string]any{"scope": scope, "vm_id": req.ID, "name": req.Name, "memory_mib": req.MemoryMiB, "vcpus": req.VCPUs, "reason": message(err)})
	return err
}

// hostFull is the refusal of a create that a limit of the host stands against, with the reason as placement counts it.
func hostFull(scope, why string) error {
	e := api.Errorf(api.CodeHostFull, "%s", why)
	if reason, ok := map[string]string{"macos": api.WhyMacOSLimit, "vcpus": api.WhyCPU, "memory": api.WhyMemory, "port": api.WhyPort}[scope]; ok {
		e.Reasons = map[string]int{reason: 1}
	}
	return e
}

// denied leaves an event of a create that the backend refused.
func (d *Daemon) denied(c *call, req api.MachineRequest, err error) error {
	d.record(c.actor, "vm.create", req.ID, "refused", map[string]any{"vm_id": req.ID, "name": req.Name, "reason": message(err)})
	return err
}

// used is what the VMs of the host take, whatever their state: a stopped one may be started.
func (d *Daemon) used() usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usedLocked()
}

func (d *Daemon) usedLocked() (u usage) {
	for _, v := range d.vms {
		s := v.size
		u.vms, u.memoryMiB = u.vms+1, u.memoryMiB+s.MemoryMiB
		u.vcpus += d.weigh(s)
		if s.GuestOS == api.GuestMacOS {
			u.macos++
		}
	}
	return u
}

func (d *Daemon) quota(req api.MachineRequest) (scope, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quotaLocked(req)
}

func (d *Daemon) quotaLocked(req api.MachineRequest) (scope, why string) {
	used := d.usedLocked()
	if req.GuestOS == api.GuestMacOS && used.macos >= api.MacOSPerHost {
		return "macos", "this Mac runs two macOS guests, which is what Apple's licence allows: use another Mac or delete one"
	}
	if why := d.portRefusalLocked(req.Network); why != "" {
		return "port", why
	}
	return quotaRefusal(d.cfg.Settings.Policy, used, d.cfg.VCPUsTotal*d.cfg.CPUOvercommit, d.cfg.MemoryMiBTotal, d.weigh(req), req.MemoryMiB)
}

// weigh counts the vCPUs of a macOS guest as whole processors: those are never overcommitted.
func (d *Daemon) weigh(s api.MachineRequest) int {
	if s.GuestOS == api.GuestMacOS {
		return s.VCPUs * d.cfg.CPUOvercommit
	}
	return s.VCPUs
}

func (d *Daemon) patchVM(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	var p api.MachinePatch
	if err := api.Decode(c.body, &p); err != nil {
		return answer{}, err
	}
	if err := p.Check(); err != nil {
		return answer{}, err
	}
	if p.Labels.V[api.LabelWarmClaimed] != nil {
		// The VM has landed already: what is asked is whether the host can bear that it is used.
		if err := d.admitStart(c, v, 0); err != nil {
			return answer{}, err
		}
		d.reserved.release(v.id)
	}
	known := c.body
	if p.Claim != nil {
		if err := d.giveClaim(c, v, *p.Claim); err != nil {
			return answer{}, err
		}
		if known, err = withoutClaim(p); err != nil {
			return answer{}, err
		}
	}
	repeated, err := v.order(c.token, c.token.fingerprint("patch", known), func(r *record) error { return d.applyPatch(r, p) })
	if err != nil {
		return answer{}, err
	}
	if !repeated {
		detail := map[string]any{}
		if len(p.Labels.V) > 0 {
			detail["labels"] = slices.Sorted(maps.Keys(p.Labels.V))
		}
		if p.ExpiresInMS.Set {
			detail["expires_in_ms"] = p.ExpiresInMS.String()
		}
		if p.Claim != nil {
			detail["claim"] = true
		}
		d.carriedOut(c, "patch", v.id, v.view().Name, detail)
	}
	return ok(v.view())
}

func (d *Daemon) applyPatch(r *record, p api.MachinePatch) error {
	if p.Name.Set {
		r.Spec.Name = p.Name.V
	}
	for k, value := range p.Labels.V {
		if value == nil {
			delete(r.Spec.Labels, k)
			continue
		}
		if r.Spec.Labels == nil {
			r.Spec.Labels = map[string]string{}
		}
		r.Spec.Labels[k] = *value
	}
	if len(r.Spec.Labels) > api.MaxLabels+8 {
		return api.Invalid("labels", "a VM may have %d labels at most; remove some", api.MaxLabels)
	}
	switch {
	case p.ExpiresInMS.Null:
		r.Deadline, r.ExpiresAt = nil, 0
	case p.ExpiresInMS.Set:
		left := time.Duration(p.ExpiresInMS.V) * time.Millisecond
		r.Deadline, r.ExpiresAt = deadlineIn(now(d.cfg.Facts), left), d.wall().Add(left)
	}
	return nil
}

// deleteVM ends the VM and answers once it is gone. An order of central about a VM that has ended is carried out
// already.
func (d *Daemon) deleteVM(c *call) (answer, error) {
	if err := c.empty(); err != nil {
		return answer{}, err
	}
	v, err := d.named(c)
	if err != nil {
		if c.token.text != "" && d.buried(mux.Vars(c.Request)["id"]) {
			if not := d.gate.within(c.token, func() error { return d.bar(mux.Vars(c.Request)["id"], c.token.number()) }); not != nil {
				return answer{}, not
			}
			return answer{status: http.StatusNoContent}, nil
		}
		var absent *api.Error
		if c.token.text != "" && errors.As(err, &absent) && absent.Code == api.CodeNotFound {
			id := mux.Vars(c.Request)["id"]
			if not := d.gate.within(c.token, func() error { return d.bar(id, c.token.number()) }); not != nil {
				return answer{}, not
			}
		}
		return answer{}, err
	}
	first := false
	err = d.gate.within(c.token, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.rec.Wanted == api.StateDeleting {
			return nil
		}
		first = true
		return v.changeLocked("", func(r *record) error {
			r.Wanted, r.End, r.Order = api.StateDeleting, "deleted", max(r.Order, c.token.number())
			return nil
		})
	})
	if err != nil {
		return answer{}, err
	}
	if first {
		d.carriedOut(c, "delete", v.id, v.view().Name, nil)
	}
	return v.awaitGone(c.Context())
}

func (d *Daemon) buried(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, is := d.tombs[id]
	return is
}

// toState carries out an order that changes what the VM wants, and waits for done; nil does not wait.
func (d *Daemon) toState(c *call, op string, change func(*vm, *record) error, done func(api.VMState) bool) (answer, error) {
	if err := c.empty(); err != nil {
		return answer{}, err
	}
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	repeated, err := v.order(c.token, c.token.fingerprint(op, nil), func(r *record) error { return change(v, r) })
	if err != nil {
		return answer{}, err
	}
	if done != nil && !repeated { // by the time of a repeat the VM may rightly be in another state
		if err := v.await(c.Context(), done); err != nil {
			return answer{}, err
		}
	}
	if !repeated {
		d.carriedOut(c, op, v.id, v.view().Name, nil)
	}
	return ok(v.view())
}

// toBoot is toState for orders that boot a VM. One that is down brings memory in: policy may gate that, too.
func (d *Daemon) toBoot(c *call, op string, change func(*vm, *record) error) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	v.mu.Lock()
	down := v.run == nil
	v.mu.Unlock()
	if down {
		if err := d.admitStart(c, v, v.size.MemoryMiB); err != nil {
			return answer{}, err
		}
	}
	done, err := d.toState(c, op, change, nil)
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.stateLocked(); s == api.StateStopped || s == api.StateFailed {
		d.reserved.release(v.id) // it was refused, or a repeat: nothing boots
	}
	return done, err
}

func (d *Daemon) startVM(c *call) (answer, error) {
	if err := d.rouseNamed(c); err != nil {
		return answer{}, err
	}
	return d.toBoot(c, "start", func(v *vm, r *record) error {
		switch v.stateLocked() {
		case api.StatePaused:
			return api.Errorf(api.CodeConflict, "VM %s is paused; resume it", v.id)
		case api.StateStopped, api.StateFailed:
			if !r.Saved {
				r.Boots++
			}
		}
		r.Wanted, r.Failed, r.Note = api.StateRunning, "", ""
		return nil
	})
}

func (d *Daemon) stopVM(c *call) (answer, error) {
	return d.toState(c, "stop", func(_ *vm, r *record) error {
		r.Wanted, r.Failed, r.Note, r.Saved = api.StateStopped, "", "", false
		return nil
	}, func(s api.VMState) bool { return s == api.StateStopped })
}

func (d *Daemon) restartVM(c *call) (answer, error) {
	return d.toBoot(c, "restart", func(_ *vm, r *record) error {
		r.Wanted, r.Failed, r.Note, r.Saved = api.StateRunning, "", "", false
		r.Agent, r.ReadyAt = false, 0
		r.Boots++
		return nil
	})
}

func (d *Daemon) pauseVM(c *call) (answer, error) {
	return d.toState(c, "pause", func(v *vm, r *record) error {
		if !v.driver.Features().Pause {
			return api.Errorf(api.CodeInvalid, "backend %s cannot pause a VM; stop it", r.Spec.Backend)
		}
		if s := v.stateLocked(); s != api.StateRunning && s != api.StatePaused {
			return api.Errorf(api.CodeConflict, "VM %s is %s; only a running VM can be paused", v.id, s)
		}
		r.Wanted, r.Paused, r.Autopause = api.StatePaused, true, false
		return nil
	}, func(s api.VMState) bool { return s == api.StatePaused || s == api.StateStopped })
}

func (d *Daemon) resumeVM(c *call) (answer, error) {
	if err := d.rouseNamed(c); err != nil {
		return answer{}, err
	}
	return d.toState(c, "resume", func(v *vm, r *record) error {
		v.touched = time.Now()
		if s := v.stateLocked(); s != api.StateRunning && s != api.StatePaused {
			return api.Errorf(api.CodeConflict, "VM %s is %s; only a paused VM can be resumed", v.id, s)
		}
		r.Wanted, r.Autopause = api.StateRunning, false
		return nil
	}, func(s api.VMState) bool { return s == api.StateRunning || s == api.StateStopped })
}

func (d *Daemon) readConsole(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	most, err := c.upTo(1 << 20)
	if err != nil {
		return answer{}, err
	}
	most = min(most, consoleBytes)
	m := v.machineNow()
	last, has := v.driver.(machine.LastWords)
	if m == nil && !has {
		return answer{}, api.Errorf(api.CodeConflict, "VM %s does not run, so it has no console; start it", v.id)
	}
	if m == nil {
		text, err := last.LastConsole(v.spec(), v.dir, most)
		if err != nil {
			return answer{}, err
		}
		return ok(text)
	}
	text, err := m.Console(most)
	if err != nil {
		return answer{}, err
	}
	return ok(text)
}
