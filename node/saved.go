package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// savedDir holds, in a VM's directory, the state that its next start goes on from.
const savedDir = "saved"

// renewal is what a guest that came from a saved state must be given before anybody may use it.
type renewal string

const (
	renewNothing  renewal = ""
	renewClock    renewal = "clock"    // the same guest goes on: time and randomness
	renewIdentity renewal = "identity" // a copy: also a name and marks of its own
)

func (v *vm) hasSaved() bool {
	_, err := os.Stat(filepath.Join(v.dir, savedDir))
	return err == nil
}

// restore goes on from the state in the VM's directory. The state is used up: what it holds ages.
func (v *vm) restore(ctx context.Context, spec machine.Spec) (machine.Machine, error) {
	restorer, ok := v.driver.(machine.Restorer)
	if !ok {
		return nil, fmt.Errorf("backend %s cannot start from a saved state", spec.Backend)
	}
	saved := filepath.Join(v.dir, savedDir)
	m, err := restorer.Restore(ctx, spec, v.dir, saved)
	if err != nil {
		return nil, fmt.Errorf("starting from the saved state: %w; start tries it again, restart boots the VM anew", err)
	}
	if err := os.RemoveAll(saved); err != nil {
		v.log.Warn("the saved state is not removed", "error", err)
	}
	return m, nil
}

// save writes the machine's state into the directory to, which it makes.
func (v *vm) save(ctx context.Context, r *run, to string, halt bool) error {
	saver, ok := r.Machine.(machine.Saver)
	if !ok {
		return api.Errorf(api.CodeInvalid, "backend %s cannot save a running VM; use flux-vm", v.driver.Name())
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o700)); err != nil {
		return saveError(err)
	}
	// The machine is halted meanwhile: a daemon that dies now must leave word to let it go on.
	if err := v.markPaused(r, true); err != nil {
		return err
	}
	err := saver.Save(ctx, to, halt)
	if !halt || err != nil {
		err = errors.Join(err, v.markPaused(r, false))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("saving VM %s: %w", v.id, err), os.RemoveAll(to))
	}
	return nil
}

// markPaused notes that the machine may be halted, whatever is wanted.
func (v *vm) markPaused(r *run, may bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run != r || r.paused {
		return nil // it is paused for other reasons, and says so
	}
	next := v.rec
	next.Paused = may
	if err := v.d.store.put(v.id, next); err != nil {
		return err
	}
	v.rec = next
	return nil
}

// hibernate writes the machine down and ends it. One that cannot be written down runs on.
func (v *vm) hibernate(ctx context.Context) {
	v.mu.Lock()
	r := v.run
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	part, saved := filepath.Join(v.dir, savedDir+".part"), filepath.Join(v.dir, savedDir)
	err := v.save(ctx, r, part, true)
	if err == nil {
		err = errors.Join(os.RemoveAll(saved), os.Rename(part, saved), syncDir(v.dir))
	}
	if err == nil {
		err = r.Stop(ctx, true)
	}
	if err != nil {
		v.log.Warn("the VM is not hibernated", "error", err)
		if resumeErr := r.Resume(ctx); resumeErr != nil {
			v.log.Warn("the VM does not go on after it could not be hibernated", "error", resumeErr)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.fault = err
		if v.rec.Wanted == stateHibernated {
			v.rec.Wanted = api.StateRunning
		}
		r.paused, v.rec.Paused = false, false
		v.keepLocked()
		return
	}
	v.detachLocked()
	v.rec.Saved, v.rec.Renew, v.rec.Reclaimed, v.fault = true, renewClock, false, nil
	v.keepLocked()
}

// settle does, once the agent answers, what must be done before the VM may be handed out.
func (v *vm) settle(ctx context.Context, r *run) error {
	v.mu.Lock()
	renew, name, paused := v.rec.Renew, v.rec.Spec.Name, r.paused
	v.mu.Unlock()
	if paused {
		return machine.ErrNoAgent
	}
	if renew != renewNothing {
		who := machine.Identity{}
		if renew == renewIdentity {
			who = machine.NewIdentity(name)
		}
		if err := v.renew(ctx, r.Machine, who); err != nil {
			return err
		}
	}
	v.makeTemplate(ctx, r)
	return nil
}

func (v *vm) renew(ctx context.Context, m machine.Machine, who machine.Identity) error {
	renewer, ok := m.(machine.Renewer)
	if !ok {
		return fmt.Errorf("backend %s cannot renew a guest's identity", v.driver.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, machine.RenewWithin)
	defer cancel()
	err := renewer.Renew(ctx, who)
	if err != nil && !errors.Is(err, machine.ErrNoAgent) {
		v.log.Warn("the guest's identity cannot be renewed, so the VM is not handed out; update fluxvm-guest in the image", "error", err)
	}
	return err
}

// templateDir is where the template of the VM's kind is or would be; empty where the VM is to have a boot of its own.
// Only VMs nobody has used start from one: those of warm pools and sandboxes.
func (v *vm) templateDir(spec machine.Spec, boots uint64) string {
	restorer, ok := v.driver.(machine.Restorer)
	if !ok || boots != 1 || spec.NoAgent || spec.CloudInit != nil {
		return ""
	}
	if spec.Labels[api.LabelWarmPool] == "" && spec.Labels[api.LabelSandbox] == "" && spec.Labels[api.LabelSandboxSlot] == "" {
		return ""
	}
	if name := restorer.Template(spec); name != "" {
		return filepath.Join(v.d.snapshotsDir(), templatePrefix+v.driver.Name()+"-"+name)
	}
	return ""
}

// startFromTemplate is the machine, nil where there is no template or it does not work: then the VM boots.
func (v *vm) startFromTemplate(ctx context.Context, spec machine.Spec) machine.Machine {
	v.mu.Lock()
	dir := v.templateDir(spec, v.rec.Boots)
	v.mu.Unlock()
	if dir == "" || !v.d.templates.has(dir) {
		return nil
	}
	// That the guest is a copy is on disk before there is one.
	if err := v.keepRenew(renewIdentity); err != nil {
		v.log.Warn("not started from the template", "error", err)
		return nil
	}
	saved := filepath.Join(v.dir, savedDir)
	err := errors.Join(os.RemoveAll(saved), os.MkdirAll(saved, 0o700))
	if err == nil {
		err = v.driver.(machine.Restorer).CopySaved(dir, saved)
	}
	var m machine.Machine
	if err == nil {
		m, err = v.restore(ctx, spec)
	}
	if err == nil {
		return m
	}
	if ctx.Err() == nil {
		v.log.Warn("the template does not work; the VM boots, and the next makes a new template", "error", err)
		v.d.templates.drop(dir)
	}
	if err := os.RemoveAll(saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("what came of the template is not removed", "error", err)
	}
	return nil
}

func (v *vm) keepRenew(what renewal) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := v.rec
	next.Renew = what
	if err := v.d.store.put(v.id, next); err != nil {
		return err
	}
	v.rec = next
	return nil
}

// makeTemplate writes a VM that has just booted down as the template of its kind, unless there is one. The guest must
// be able to renew itself: the first thing asked of every copy.
func (v *vm) makeTemplate(ctx context.Context, r *run) {
	v.mu.Lock()
	spec := machine.Spec{MachineRequest: v.rec.Spec}
	dir := v.templateDir(spec, v.rec.Boots)
	v.mu.Unlock()
	if dir == "" || !v.d.templates.begin(dir) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	part := dir + ".part"
	err := v.renew(ctx, r.Machine, machine.Identity{})
	if err == nil {
		err = v.save(ctx, r, part, false)
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(dir), os.Rename(part, dir))
	}
	v.d.templates.end(dir, err == nil)
	switch {
	case err == nil:
		v.log.Info("a template of this kind of VM is made", "backend", v.driver.Name(), "image", spec.Image)
	case ctx.Err() == nil:
		v.log.Warn("no template of this kind of VM; the next ones boot", "error", err)
	}
}
