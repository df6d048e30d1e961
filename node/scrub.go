package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	keepScrubs   = 256 // scrubs whose repeat is answered as the first was
	longestLease = 128 // characters of a lease's id
	keyScrubs    = "scrubs"
)

// leftIn are the directories below the data directory in which VMs leave things behind.
var leftIn = [...]string{"vms", leftSnapshots, "cache"}

const leftSnapshots = "snapshots"

// scrubber is a driver that holds more of ended VMs than what is in their directories.
type scrubber interface {
	// Scrub removes that. No VM is on the host meanwhile.
	Scrub() error
}

// scrubs are the scrubs that this host has confirmed.
type scrubs struct {
	turn chan struct{}     // capacity 1; whoever has put something in may use the rest
	done []api.ScrubAnswer // oldest first
}

func newScrubs() *scrubs { return &scrubs{turn: make(chan struct{}, 1)} }

func (s *scrubs) find(leaseID string) *api.ScrubAnswer {
	for _, a := range s.done {
		if a.LeaseID == leaseID {
			return &a
		}
	}
	return nil
}

// with is what is remembered once the answer is, too.
func (s *scrubs) with(a api.ScrubAnswer) []api.ScrubAnswer {
	list := append(s.done[:len(s.done):len(s.done)], a)
	return list[max(0, len(list)-keepScrubs):]
}

// scrub removes everything that VMs left on the host. Once begun it goes on when the caller has left, as a repeat
// then finds it done.
func (d *Daemon) scrub(c *call) (answer, error) {
	var req api.ScrubRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	if !isLeaseID(req.LeaseID) {
		return answer{}, api.Invalid("lease_id", "lease_id must be the lease's id: 1-%d printable characters without spaces", longestLease)
	}
	select {
	case d.scrubs.turn <- struct{}{}:
		defer func() { <-d.scrubs.turn }()
	case <-c.Context().Done():
		return answer{}, api.Errorf(api.CodeUnavailable, "another scrub is under way; try again")
	case <-d.closing:
		return answer{}, endingRefusal()
	}
	var before *api.ScrubAnswer
	err := d.gate.within(c.token, func() error {
		if before = d.scrubs.find(req.LeaseID); before != nil {
			return nil
		}
		return d.beginScrub()
	})
	if err != nil {
		return answer{}, err
	}
	if before != nil {
		return ok(*before)
	}
	defer d.endScrub()
	removed, err := d.removeLeft()
	if errors.Is(err, api.Errorf(api.CodeUnavailable, "")) {
		return answer{}, err
	}
	if err != nil {
		return answer{}, api.Errorf(api.CodeInternal, "the host is not clean after lease %s: %s; remove the cause and scrub again", req.LeaseID, message(err))
	}
	done := api.ScrubAnswer{LeaseID: req.LeaseID, Removed: removed}
	list := d.scrubs.with(done)
	if err := d.store.putScrubs(list); err != nil {
		return answer{}, err
	}
	d.scrubs.done = list
	d.record(c.actor, "scrub", req.LeaseID, "ok", map[string]any{"lease_id": req.LeaseID, "tenant": req.Tenant, "removed": removed})
	d.ordered("scrub", "", req.LeaseID, c.token.text)
	return ok(done)
}

func isLeaseID(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return s != "" && len(s) <= longestLease
}

func endingRefusal() error {
	return api.Errorf(api.CodeUnavailable, "the daemon is ending; try again")
}

// beginScrub shuts the host to new VMs, unless it has some.
func (d *Daemon) beginScrub() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.vms); n > 0 {
		noun := "VMs"
		if n == 1 {
			noun = "VM"
		}
		return api.Errorf(api.CodeConflict, "%d %s still on this host; delete first what GET /v1/vms lists, then scrub", n, noun)
	}
	d.scrubbing = true
	return nil
}

func (d *Daemon) endScrub() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scrubbing = false
}

// removeLeft empties the directories and counts what was in them.
func (d *Daemon) removeLeft() (removed int, err error) {
	for _, driver := range d.cfg.Drivers {
		if s, ok := driver.(scrubber); ok {
			if err := s.Scrub(); err != nil {
				return 0, err
			}
		}
	}
	d.templates.clear()
	for _, name := range leftIn {
		n, err := d.empty(filepath.Join(d.cfg.DataDir, name))
		if removed += n; err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// empty removes all that is in a directory, and keeps the directory: it may be another disk's.
func (d *Daemon) empty(dir string) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking for what is left: %w", err)
	}
	for _, entry := range entries {
		select {
		case <-d.closing:
			return removed, endingRefusal()
		default:
		}
		path := filepath.Join(dir, entry.Name())
		if err := d.endLeft(entry.Name(), path); err != nil {
			return removed, err
		}
		if err := os.RemoveAll(path); err != nil {
			return removed, fmt.Errorf("removing what is left: %w", err)
		}
		removed++
	}
	return removed, syncDir(dir)
}

// endLeft ends what still runs of a machine of which there is only the directory.
func (d *Daemon) endLeft(name, dir string) error {
	if id, err := uuid.Parse(name); err != nil || id.String() != name {
		return nil
	}
	for _, driver := range d.cfg.Drivers {
		if err := driver.Remove(machine.Spec{MachineRequest: api.MachineRequest{ID: name, Backend: driver.Name()}}, dir); err != nil {
			return err
		}
	}
	return nil
}

// syncDir makes removals last over a power cut: what is confirmed must not come back.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (s *store) putScrubs(list []api.ScrubAnswer) error { return s.write(bucketMeta, keyScrubs, list) }

// scrubs are those that putScrubs kept.
func (s *store) scrubs() (list []api.ScrubAnswer, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(keyScrubs))
		if raw == nil {
			return nil
		}
		return json.Unmarshal(raw, &list)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the scrubs in %s: %w", s.db.Path(), err)
	}
	return list, nil
}
