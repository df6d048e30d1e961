package vz

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// stateFile is the framework's saved state, in the directory of a saved machine. Only this Mac and this user can read it.
const stateFile = "state.vzvmsave"

// errNoCopies refuses a second machine from one saved state: the framework restores a state only under the machine
// identifier and the network address that it was saved under, and two guests that share them do not behave.
func errNoCopies() error {
	return api.Errorf(api.CodeInvalid, "vz cannot copy a running VM: a copy would have the original's machine identifier; launch another VM of the image, which clones its disk at once")
}

// Save writes the machine down, to go on in the same place.
func (m *vm) Save(ctx context.Context, to string, halt bool) error {
	if !halt {
		return errNoCopies()
	}
	m.mu.Lock()
	was := m.paused
	m.mu.Unlock()
	if err := m.Pause(ctx); err != nil {
		return fmt.Errorf("saving a VM: %w", err)
	}
	if err := m.order(ctx, request{Op: opSave, Path: at(to, stateFile)}); err != nil {
		if !was {
			err = errors.Join(err, m.Resume(context.WithoutCancel(ctx)))
		}
		return fmt.Errorf("saving a VM: %w", err)
	}
	return nil
}

// Restore goes on from a saved state.
func (d *Driver) Restore(ctx context.Context, spec machine.Spec, dir, saved string) (machine.Machine, error) {
	state := at(saved, stateFile)
	if !isFile(state) {
		return nil, fmt.Errorf("restoring a VM: %w", os.ErrNotExist)
	}
	m, err := d.start(ctx, spec, dir, state)
	if err != nil {
		return nil, fmt.Errorf("restoring a VM: %w", explained(err))
	}
	// A launch begins with the balloon deflated, whatever it was.
	if err := m.SetBalloon(ctx, 0); err != nil {
		return nil, fmt.Errorf("restoring a VM: %w", errors.Join(err, m.Stop(ctx, true)))
	}
	return m, nil
}

// CopySaved always refuses.
func (d *Driver) CopySaved(string, string) error { return errNoCopies() }

// Template is empty: every machine boots.
func (d *Driver) Template(machine.Spec) string { return "" }
