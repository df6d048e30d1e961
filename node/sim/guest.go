package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// lifeFile says that the machine runs, in its directory.
const lifeFile = "sim.json"

// life is what outlasts the daemon.
type life struct {
	RunningSince time.Time `json:"running_since"`
	Paused       bool      `json:"paused"`
	BalloonMiB   int64     `json:"balloon_mib,omitempty"` // what its device was told
	GivenMiB     int64     `json:"given_mib,omitempty"`   // what it had given up when it was paused
}

// guest is one machine.
type guest struct {
	d    *Driver
	spec machine.Spec
	img  image
	dir  string
	done chan struct{}

	mu       sync.Mutex
	life     life
	crash    *time.Timer // nil unless it is to crash
	ended    bool
	released bool
	err      error
	claim    *api.GuestClaim // the last it was given
}

func (d *Driver) newGuest(spec machine.Spec, img image, dir string, l life) *guest {
	return &guest{d: d, spec: spec, img: img, dir: dir, done: make(chan struct{}), life: l}
}

// run counts the machine in and sets its crash.
func (g *guest) run() {
	g.d.count.Lock()
	g.d.guests[g] = true
	g.d.memUsed += g.spec.MemoryMiB
	g.d.count.Unlock()
	if g.img.fail != failCrash {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.crash = time.AfterFunc(g.img.crashAfter-time.Since(g.life.RunningSince), func() {
		g.end(fmt.Errorf("the image says fail=crash&crash_after_ms=%d", g.img.crashAfter.Milliseconds()))
	})
}

// end is the machine's end, once.
func (g *guest) end(why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || g.released {
		return nil
	}
	if err := os.Remove(filepath.Join(g.dir, lifeFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ending the sim machine: %w", err)
	}
	g.ended, g.err = true, why
	g.leave()
	close(g.done)
	return nil
}

// leave takes the machine out of the driver's count.
func (g *guest) leave() {
	if g.crash != nil {
		g.crash.Stop()
	}
	g.d.count.Lock()
	defer g.d.count.Unlock()
	if g.d.guests[g] {
		delete(g.d.guests, g)
		g.d.memUsed -= g.spec.MemoryMiB
	}
}

func (g *guest) save() error {
	raw, err := json.Marshal(g.life)
	if err != nil {
		return fmt.Errorf("encoding the sim machine: %w", err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, lifeFile), raw, 0o600); err != nil {
		return fmt.Errorf("saving the sim machine: %w", err)
	}
	return nil
}

func (g *guest) Ping(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || g.life.Paused || g.img.fail == failAgent || time.Since(g.life.RunningSince) < g.img.agent {
		return machine.ErrNoAgent
	}
	return nil
}

// Exec runs nothing, successfully.
func (g *guest) Exec(ctx context.Context, _ api.ExecRequest) (api.ExecAnswer, error) {
	return api.ExecAnswer{}, g.Ping(ctx)
}

// CanClaim says no for images that say old_agent=true.
func (g *guest) CanClaim() bool { return !g.img.oldAgent }

// Claim keeps what the guest was given in memory, for Claimed.
func (g *guest) Claim(ctx context.Context, claim api.GuestClaim) error {
	if err := g.Ping(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claim = &claim
	return nil
}

// Claimed is what a machine that runs was last given; nil for nothing.
func (d *Driver) Claimed(id string) *api.GuestClaim {
	d.count.Lock()
	defer d.count.Unlock()
	for g := range d.guests {
		if g.spec.ID == id {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.claim
		}
	}
	return nil
}

func (g *guest) Stop(context.Context, bool) error { return g.end(nil) }

func (g *guest) Pause(context.Context) error { return g.setPaused(true) }

func (g *guest) Resume(context.Context) error { return g.setPaused(false) }

func (g *guest) setPaused(paused bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return errors.New("the sim machine has ended")
	}
	if paused && !g.life.Paused {
		g.life.GivenMiB = g.givenLocked()
	}
	g.life.Paused = paused
	return g.save()
}

func (g *guest) Done() <-chan struct{} { return g.done }

func (g *guest) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *guest) IP() string { return "" }

func (g *guest) PID() int { return 0 }

func (g *guest) Console(limit int) ([]byte, error) {
	text := []byte("this machine is simulated: no guest runs and nothing is written here\n")
	return text[max(0, len(text)-limit):], nil
}

// Release leaves the machine to the next daemon: what is written of it stays.
func (g *guest) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || g.released {
		return
	}
	g.released = true
	g.leave()
}
