package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
)

// Balloon is what the guest has given up, as its image says that it follows. One that is paused follows nothing.
func (g *guest) Balloon(context.Context) (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.Paused {
		return g.life.GivenMiB, nil
	}
	return g.givenLocked(), nil
}

func (g *guest) givenLocked() int64 {
	switch g.img.balloon {
	case balloonAbsent:
		return 0
	case balloonStuck:
		return min(g.life.BalloonMiB, g.spec.MemoryMiB/8)
	}
	return g.life.BalloonMiB
}

// SetBalloon tells the device its size.
func (g *guest) SetBalloon(_ context.Context, mib int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return errors.New("the sim machine has ended")
	}
	g.life.BalloonMiB = mib
	return g.save()
}

// Save writes what there is of the machine.
func (g *guest) Save(_ context.Context, to string, halt bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return errors.New("the sim machine has ended")
	}
	raw, err := json.Marshal(g.life)
	if err != nil {
		return fmt.Errorf("encoding the sim machine: %w", err)
	}
	if err := os.WriteFile(filepath.Join(to, lifeFile), raw, 0o600); err != nil {
		return fmt.Errorf("saving the sim machine: %w", err)
	}
	return nil
}

// Renew has nobody to tell.
func (g *guest) Renew(ctx context.Context, _ machine.Identity) error { return g.Ping(ctx) }

// Restore starts a machine at once: it booted before it was saved.
func (d *Driver) Restore(_ context.Context, spec machine.Spec, dir, saved string) (machine.Machine, error) {
	img, err := parseImage(spec.Image)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(saved, lifeFile)); err != nil {
		return nil, fmt.Errorf("reading the saved sim machine: %w", err)
	}
	g := d.newGuest(spec, img, dir, life{RunningSince: time.Now().Add(-img.agent)})
	if err := g.save(); err != nil {
		return nil, err
	}
	g.run()
	return g, nil
}

// CopySaved copies the one file there is.
func (d *Driver) CopySaved(from, to string) error {
	raw, err := os.ReadFile(filepath.Join(from, lifeFile))
	if err != nil {
		return fmt.Errorf("reading the saved sim machine: %w", err)
	}
	return os.WriteFile(filepath.Join(to, lifeFile), raw, 0o600)
}

// Template is the image and the size, where the image says that there are templates.
func (d *Driver) Template(spec machine.Spec) string {
	img, err := parseImage(spec.Image)
	if err != nil || !img.template {
		return ""
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d %d %d", spec.Image, spec.VCPUs, spec.MemoryMiB, spec.DiskSizeGiB)
	return strconv.FormatUint(h.Sum64(), 16)
}
