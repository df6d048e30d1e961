package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// snapshotAbout says, in a snapshot's directory, what VM it was taken of.
const snapshotAbout = "snapshot.json"

// aboutSnapshot is that file.
type aboutSnapshot struct {
	Spec      api.MachineRequest `json:"spec"`
	CreatedAt api.Time           `json:"created_at"`
}

// copySaved puts a copy of a saved state where the VM with the id will go on from. One caller at a time may do so for
// an id; done lets the next one.
func (d *Daemon) copySaved(driver machine.Driver, id, from string) (done func(), err error) {
	restorer, ok := driver.(machine.Restorer)
	if !ok {
		return nil, api.Errorf(api.CodeInvalid, "backend %s cannot start from a saved state; use flux-vm", driver.Name())
	}
	d.mu.Lock()
	taken := d.copying[id] || d.vms[id] != nil
	if !taken {
		d.copying[id] = true
	}
	d.mu.Unlock()
	if taken {
		return nil, api.Errorf(api.CodeUnavailable, "another create with this id is under way; try again")
	}
	done = func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.copying, id)
		if d.vms[id] == nil {
			_ = os.RemoveAll(d.machineDir(id)) // a scrub finds what stays
		}
	}
	to := filepath.Join(d.machineDir(id), savedDir)
	if err = errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o700)); err == nil {
		err = restorer.CopySaved(from, to)
	}
	if err != nil {
		done()
		return nil, saveError(err)
	}
	return done, nil
}

// agentWithin is how long a copy waits for the agent of a VM that has just started.
const agentWithin = 90 * time.Second

// saveable is the VM's run once it can be copied; one that sleeps is woken and one that boots is waited for.
func (v *vm) saveable(c *call) (*run, error) {
	if err := v.d.rouse(c, v); err != nil {
		return nil, err
	}
	v.mu.Lock()
	soon := v.hasAgent() && !v.rec.Agent && (v.booting || v.run != nil)
	v.mu.Unlock()
	if soon {
		ctx, cancel := context.WithTimeout(c.Context(), agentWithin)
		defer cancel()
		_ = v.await(ctx, func(s api.VMState) bool { return v.ready() || s == api.StatePaused || s == api.StateStopped })
	}
	return v.saveRunning()
}

// saveRunning is the VM's run if it can be copied now.
func (v *vm) saveRunning() (*run, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	state := v.stateLocked()
	switch {
	case v.run == nil || state != api.StateRunning && state != api.StatePaused:
		return nil, api.Errorf(api.CodeConflict, "VM %s is %s; only a running VM can be copied", v.id, state)
	case !v.hasAgent():
		return nil, api.Errorf(api.CodeConflict, "VM %s has no guest agent, so a copy of it could not be told apart from it", v.id)
	case !v.rec.Agent:
		return nil, noAgent(v.id)
	}
	if _, ok := v.run.Machine.(machine.Saver); !ok {
		return nil, api.Errorf(api.CodeInvalid, "backend %s cannot copy a running VM; use flux-vm", v.driver.Name())
	}
	return v.run, nil
}

// forkVM copies a running VM, its memory and its disks, into new ones that go on from the same moment.
func (d *Daemon) forkVM(c *call) (answer, error) {
	parent, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	var req api.ForkRequest
	if len(c.body) > 0 {
		if err := api.Decode(c.body, &req); err != nil {
			return answer{}, err
		}
	}
	if err := req.Check(); err != nil {
		return answer{}, err
	}
	if v, err := d.forked(c, parent, req.ID); v != nil || err != nil {
		return d.made(c, v, api.MachineRequest{}, false, err)
	}
	r, err := parent.saveable(c)
	if err != nil {
		return answer{}, err
	}
	wanted := parent.copies(req)
	for i, w := range wanted {
		if err := d.admitCopy(c, w); err != nil {
			d.unreserveAll(wanted[:i])
			return answer{}, err
		}
	}
	if err := d.gate.within(c.token, func() error { return nil }); err != nil {
		d.unreserveAll(wanted)
		return answer{}, err
	}
	from := filepath.Join(d.snapshotsDir(), "fork-"+uuid.NewString()+".part")
	defer os.RemoveAll(from)
	if err := parent.save(c.Context(), r, from, false); err != nil {
		d.unreserveAll(wanted)
		return answer{}, err
	}
	parent.touch()
	var made []api.Machine
	var copies []*vm
	for i, w := range wanted {
		rec := d.newRecord(w)
		rec.Parent = parent.id
		v, _, err := d.insert(c, "fork", parent.driver, rec, from)
		if err != nil {
			d.unreserveAll(wanted[i:])
			return answer{}, errors.Join(err, undoCopies(copies))
		}
		copies = append(copies, v)
		d.carriedOut(c, "fork", v.id, w.Name, map[string]any{"parent": parent.id, "memory_mib": w.MemoryMiB})
		made = append(made, v.view())
	}
	if req.Count <= 1 {
		return answer{status: http.StatusCreated, body: made[0]}, nil
	}
	return answer{status: http.StatusCreated, body: map[string]any{"vms": made}}, nil
}

// undoCopies deletes the copies of a fork that could not make them all: its caller is told of none.
func undoCopies(copies []*vm) error {
	var errs []error
	for _, v := range copies {
		v.mu.Lock()
		errs = append(errs, v.changeLocked("", func(r *record) error {
			r.Wanted, r.End = api.StateDeleting, "the fork could not make all of its copies"
			return nil
		}))
		v.mu.Unlock()
	}
	return errors.Join(errs...)
}

// forked is the VM that an earlier fork with this id made.
func (d *Daemon) forked(c *call, parent *vm, id string) (*vm, error) {
	if id == "" {
		return nil, nil
	}
	parent.mu.Lock()
	spec := parent.rec.Spec
	parent.mu.Unlock()
	spec.ID = id
	v, err := d.known(c, spec)
	if v == nil || err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Parent != parent.id {
		return nil, api.Errorf(api.CodeConflict, "VM %s exists and is no fork of %s; take another id", id, parent.id)
	}
	return v, nil
}

// copies are the specs of the VMs that a fork is to make. FluxVM's own labels stay with the parent: they say what
// the parent is to others.
func (v *vm) copies(req api.ForkRequest) []api.MachineRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []api.MachineRequest
	for range max(1, req.Count) {
		s := v.rec.Spec
		s.ID, s.Name, s.ExpiresInMS = req.ID, req.Name, req.ExpiresInMS
		if s.ID == "" {
			s.ID = uuid.NewString()
		}
		if s.Name == "" {
			s.Name = "vm-" + s.ID[:8]
		}
		s.Labels = map[string]string{}
		for k, value := range v.rec.Spec.Labels {
			if !strings.HasPrefix(k, api.LabelPrefix) || k == api.LabelSandbox {
				s.Labels[k] = value
			}
		}
		for k, value := range req.Labels {
			s.Labels[k] = value
		}
		s.Network = s.Network.WithoutForwards() // a port of the host has one taker
		out = append(out, s)
	}
	return out
}

func (d *Daemon) admitCopy(c *call, req api.MachineRequest) error {
	if scope, why := d.quota(req); why != "" {
		return d.deny(c, req, scope, api.Errorf(api.CodeHostFull, "%s", why))
	}
	if !d.cfg.Settings.Policy.GateAllStarts {
		return nil
	}
	if err := d.admitPressure(c.Context(), req.ID, req.MemoryMiB, c.Header.Get(api.HeaderDefer) == "0"); err != nil {
		return d.deny(c, req, "pressure", err)
	}
	return nil
}

func (d *Daemon) unreserveAll(wanted []api.MachineRequest) {
	for _, w := range wanted {
		d.unreserve(w.ID)
	}
}

// snapshotVM writes a running VM down under a name from which others start.
func (d *Daemon) snapshotVM(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	var req api.SnapshotRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	if err := api.CheckName("name", req.Name, api.MaxVMName); err != nil {
		return answer{}, err
	}
	dir := filepath.Join(d.snapshotsDir(), req.Name)
	if _, err := os.Stat(dir); err == nil {
		return answer{}, api.Errorf(api.CodeConflict, "a snapshot %s exists; delete it first, or take another name", req.Name)
	}
	r, err := v.saveable(c)
	if err != nil {
		return answer{}, err
	}
	if err := d.gate.within(c.token, func() error { return nil }); err != nil {
		return answer{}, err
	}
	about := aboutSnapshot{CreatedAt: d.wall()}
	v.mu.Lock()
	about.Spec = v.rec.Spec
	v.mu.Unlock()
	about.Spec.Labels = nil
	raw, err := json.Marshal(about)
	if err != nil {
		return answer{}, fmt.Errorf("encoding the snapshot: %w", err)
	}
	part := filepath.Join(d.snapshotsDir(), req.Name+"."+uuid.NewString()+".part")
	defer os.RemoveAll(part)
	if err := v.save(c.Context(), r, part, false); err != nil {
		return answer{}, err
	}
	if err := os.WriteFile(filepath.Join(part, snapshotAbout), raw, 0o600); err != nil {
		return answer{}, saveError(err)
	}
	if err := os.Rename(part, dir); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return answer{}, api.Errorf(api.CodeConflict, "a snapshot %s exists; delete it first, or take another name", req.Name)
		}
		return answer{}, saveError(err)
	}
	v.touch()
	d.carriedOut(c, "snapshot", v.id, v.view().Name, map[string]any{"snapshot": req.Name})
	return answer{status: http.StatusCreated, body: about.view(req.Name)}, nil
}

func (a aboutSnapshot) view(name string) api.Snapshot {
	return api.Snapshot{Name: name, Image: api.SnapshotImage + name, Backend: a.Spec.Backend, VCPUs: a.Spec.VCPUs, MemoryMiB: a.Spec.MemoryMiB,
		DiskSizeGiB: a.Spec.DiskSizeGiB, CreatedAt: a.CreatedAt}
}

func (d *Daemon) readSnapshot(name string) (a aboutSnapshot, err error) {
	if api.CheckName("name", name, api.MaxVMName) == nil {
		var raw []byte
		if raw, err = os.ReadFile(filepath.Join(d.snapshotsDir(), name, snapshotAbout)); err == nil {
			return a, json.Unmarshal(raw, &a)
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return a, api.Errorf(api.CodeNotFound, "this host has no snapshot of that name; GET /v1/snapshots lists those it has")
	}
	return a, fmt.Errorf("reading the snapshot %s: %w", name, err)
}

// fromSnapshot completes a request whose image is a snapshot and gives its directory; empty for any other image.
func (d *Daemon) fromSnapshot(req *api.MachineRequest) (string, error) {
	name, is := strings.CutPrefix(req.Image, api.SnapshotImage)
	if !is {
		return "", nil
	}
	about, err := d.readSnapshot(name)
	if err != nil {
		return "", api.Invalid("image", "image names a snapshot that this host does not have; GET /v1/snapshots lists those it has")
	}
	has := about.Spec
	switch {
	case req.MemoryMiB != has.MemoryMiB:
		return "", api.Invalid("memory_mib", "a VM from snapshot %s has %d MiB; ask for that", name, has.MemoryMiB)
	case req.VCPUs != 0 && req.VCPUs != has.VCPUs:
		return "", api.Invalid("vcpus", "a VM from snapshot %s has %d vCPUs; ask for that, or leave vcpus out", name, has.VCPUs)
	case req.DiskSizeGiB != 0 && req.DiskSizeGiB != has.DiskSizeGiB:
		return "", api.Invalid("disk_size_gib", "a VM from snapshot %s has a disk of %d GiB; leave disk_size_gib out", name, has.DiskSizeGiB)
	case req.Backend != "" && req.Backend != api.BackendAuto && req.Backend != has.Backend:
		return "", api.Invalid("backend", "a VM from snapshot %s runs on backend %s", name, has.Backend)
	case req.CloudInit != nil:
		return "", api.Invalid("cloud_init", "a VM from a snapshot has booted already; leave cloud_init out")
	}
	req.Image, req.VCPUs, req.DiskSizeGiB, req.Backend = has.Image, has.VCPUs, has.DiskSizeGiB, has.Backend
	if req.Network == nil {
		req.Network = has.Network.WithoutForwards()
	}
	return filepath.Join(d.snapshotsDir(), name), nil
}

func (d *Daemon) listSnapshots(c *call) (answer, error) {
	all := []api.Snapshot{}
	for _, name := range snapshotNames(d.snapshotsDir()) {
		if about, err := d.readSnapshot(name); err == nil {
			all = append(all, about.view(name))
		}
	}
	page, err := pageOf(c, all, func(s api.Snapshot) string { return s.Name })
	if err != nil {
		return answer{}, err
	}
	return ok(page)
}

// deleteSnapshot removes a snapshot. VMs that started from it have files of their own.
func (d *Daemon) deleteSnapshot(c *call) (answer, error) {
	if err := c.empty(); err != nil {
		return answer{}, err
	}
	name := mux.Vars(c.Request)["name"]
	if _, err := d.readSnapshot(name); err != nil {
		return answer{}, err
	}
	gone := filepath.Join(d.snapshotsDir(), name+"."+uuid.NewString()+".part")
	if err := os.Rename(filepath.Join(d.snapshotsDir(), name), gone); err != nil {
		return answer{}, fmt.Errorf("removing the snapshot: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return answer{}, fmt.Errorf("removing the snapshot: %w", err)
	}
	d.record(c.actor, "snapshot.delete", name, "ok", map[string]any{"snapshot": name})
	return answer{status: http.StatusNoContent}, nil
}
