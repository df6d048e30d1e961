package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// record is what the daemon keeps of a VM. It is on disk before its effect begins.
type record struct {
	Spec      api.MachineRequest `json:"spec"`   // defaults filled, backend resolved; Name and Labels as last patched
	Wanted    api.VMState        `json:"wanted"` // running, stopped, paused, deleting
	End       string             `json:"end,omitempty"`
	Boots     uint64             `json:"boots"`            // boots asked for so far; one more is a restart
	Booted    uint64             `json:"booted"`           // the boot that the present or last machine came from
	Failed    string             `json:"failed,omitempty"` // why there is no machine though one is wanted
	Note      string             `json:"note,omitempty"`   // why it is stopped, if nobody asked
	Agent     bool               `json:"agent"`
	CanClaim  bool               `json:"can_claim,omitempty"` // the agent that answered can take a claim
	Paused    bool               `json:"paused,omitempty"`    // may be in effect: set before a pause, cleared after a resume
	CreatedAt api.Time           `json:"created_at"`
	StartedAt api.Time           `json:"started_at"`
	ReadyAt   api.Time           `json:"ready_at"`
	ExpiresAt api.Time           `json:"expires_at"` // for show
	Deadline  *deadline          `json:"deadline,omitempty"`
	Orders    []string           `json:"orders,omitempty"` // fingerprints of the latest orders carried out
	Execs     []execMark         `json:"execs,omitempty"`  // the latest commands started under a token
	Order     uint64             `json:"order,omitempty"`  // number of the order that made it, or that ended it

	Saved     bool    `json:"saved,omitempty"`     // the next start goes on from the state saved in the VM's directory
	Renew     renewal `json:"renew,omitempty"`     // what the guest must be given before it may be handed out
	Parent    string  `json:"parent,omitempty"`    // the VM it was forked from
	Reclaimed bool    `json:"reclaimed,omitempty"` // the idle scanner inflated the balloon
	Held      bool    `json:"held,omitempty"`      // stopped because the fleet's lease had run out
	Autopause bool    `json:"autopause,omitempty"` // the idle scanner paused it: any call resumes it
}

// tombstone is what is left of a VM that ended, for the reports.
type tombstone struct {
	Last    api.ReportedVM `json:"last"`
	Ended   mark           `json:"ended"`
	EndedAt api.Time       `json:"ended_at"` // used only when the host booted since
	Order   uint64         `json:"order,omitempty"`
}

// keepGone is how long a VM that ended is still reported.
const keepGone = time.Hour

// ago is how long since the VM ended.
func (t tombstone) ago(now mark, wall api.Time) time.Duration {
	if d, ok := now.since(t.Ended); ok {
		return max(0, d)
	}
	return max(0, wall.Sub(t.EndedAt))
}

// store is the daemon's file. Every write is on disk when its method returns; writes that come while another is
// under way share one fsync.
type store struct {
	db *bolt.DB

	mu      sync.Mutex
	writing bool      // somebody commits
	waiting []*queued // for the next commit
}

// queued is one change that waits. Turn gets true when its caller is to commit all that wait, false when it is done.
type queued struct {
	do   func(*bolt.Tx) error
	turn chan bool
	err  error
}

// The buckets and keys of the file. A name is never given another meaning.
const (
	bucketVMs  = "vms"
	bucketGone = "gone"
	bucketMeta = "meta"
	keyFence   = "fence"
	keyLease   = "lease"
)

func openStore(dir string) (*store, error) {
	path := filepath.Join(dir, "node.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 2 * time.Second})
	if errors.Is(err, bolt.ErrTimeout) {
		return nil, fmt.Errorf("%s is in use: another node daemon runs with this data directory", path)
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [...]string{bucketVMs, bucketGone, bucketMeta} {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing %s: %w", path, err), db.Close())
	}
	return &store{db: db}, nil
}

func (s *store) close() error { return s.db.Close() }

func (s *store) put(id string, r record) error { return s.write(bucketVMs, id, r) }

func (s *store) putFence(f fence) error { return s.write(bucketMeta, keyFence, f) }

func (s *store) write(bucket, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding %s/%s: %w", bucket, key, err)
	}
	return s.commit(func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), raw) })
}

// commit makes a change durable. The first caller commits at once, together with nobody; those that come meanwhile
// wait, and one of them then commits for all.
func (s *store) commit(do func(*bolt.Tx) error) error {
	w := &queued{do: do, turn: make(chan bool, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	if !s.writing {
		s.writing = true
		w.turn <- true
	}
	s.mu.Unlock()
	if <-w.turn {
		s.commitWaiting()
		<-w.turn
	}
	return w.err
}

func (s *store) commitWaiting() {
	s.mu.Lock()
	batch := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	err := saveError(s.db.Update(func(tx *bolt.Tx) error {
		for _, w := range batch {
			if err := w.do(tx); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, w := range batch {
		w.err = err
		w.turn <- false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing = len(s.waiting) > 0; s.writing {
		s.waiting[0].turn <- true
	}
}

// bury replaces a VM's record by its tombstone.
func (s *store) bury(id string, t tombstone) error {
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encoding %s/%s: %w", bucketGone, id, err)
	}
	return s.commit(func(tx *bolt.Tx) error {
		if err := tx.Bucket([]byte(bucketVMs)).Delete([]byte(id)); err != nil {
			return err
		}
		return tx.Bucket([]byte(bucketGone)).Put([]byte(id), raw)
	})
}

func (s *store) forget(ids []string) error {
	return s.commit(func(tx *bolt.Tx) error {
		for _, id := range ids {
			if err := tx.Bucket([]byte(bucketGone)).Delete([]byte(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// lease is the newest mark that was saved; zero without one.
func (s *store) lease() (m mark, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		if raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(keyLease)); raw != nil {
			return json.Unmarshal(raw, &m)
		}
		return nil
	})
	return m, err
}

// load reads everything.
func (s *store) load() (vms map[string]record, gone map[string]tombstone, f fence, err error) {
	vms, gone = map[string]record{}, map[string]tombstone{}
	err = s.db.View(func(tx *bolt.Tx) error {
		if err := readAll(tx, bucketVMs, vms); err != nil {
			return err
		}
		if err := readAll(tx, bucketGone, gone); err != nil {
			return err
		}
		if raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(keyFence)); raw != nil {
			return json.Unmarshal(raw, &f)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fence{}, fmt.Errorf("reading %s: %w", s.db.Path(), err)
	}
	return vms, gone, f, nil
}

func readAll[V any](tx *bolt.Tx, bucket string, into map[string]V) error {
	return tx.Bucket([]byte(bucket)).ForEach(func(k, raw []byte) error {
		var v V
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("%s/%s: %w", bucket, k, err)
		}
		into[string(k)] = v
		return nil
	})
}

// saveError gives a full disk its own code: the caller can make room and try again.
func saveError(err error) error {
	switch {
	case err == nil:
		return nil
	case isDiskFull(err):
		return api.Errorf(api.CodeStorageFull, "the host's disk is full; nothing was changed: free space under the data directory")
	}
	return fmt.Errorf("saving: %w", err)
}
