package central

import (
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fleet is the weather: what nodes report, kept in memory by every replica, never in the log.
type fleet struct {
	mu      sync.Mutex
	beats   map[string]*beat
	started time.Time
	moved   chan struct{} // poked, never blocking, when a beat brought news
}

// beat is the last that was heard from one node. A stored beat does not change; news replaces it.
type beat struct {
	report     api.Register
	credential string                     // the node's own secret, to speak to it with
	at         time.Time                  // when it was heard, with the monotonic clock
	vms        map[string]*api.ReportedVM // its whole list, as of its digest; nil before the first
	digest     string
	listed     time.Time            // when that list was heard: how long ago a VM ended counts from then
	missing    map[string]time.Time // rows that were first missed in the list at that time
	strangers  map[string]time.Time // VMs of this cluster that no row knows, since when
}

func newFleet(now time.Time) *fleet {
	return &fleet{beats: map[string]*beat{}, started: now, moved: make(chan struct{}, 1)}
}

// weather is what placement looks at. It works on nil: a node that was not heard yet.
func (b *beat) weather() (w weather) {
	if b == nil {
		return w
	}
	w.known, w.density, w.images = true, b.report.Density, b.report.Images
	overcommit := max(b.report.CPUOvercommit, 1)
	for _, vm := range b.vms {
		if vm.State == api.StateGone || vm.State == api.StateFailed {
			continue
		}
		weight := vm.VCPUs
		if vm.GuestOS == api.GuestMacOS {
			weight *= overcommit
			w.macOS++
		}
		w.vcpus += weight
		w.memoryMiB += vm.MemoryMiB
	}
	return w
}

// goneFor says how long a VM has been gone from the node, by its list; one that is not in the list is gone just now. ok
// is false when the list may still lack what the node said at the time: that the VM is not there.
func (b *beat) goneFor(id string, said, now time.Time) (ago time.Duration, ok bool) {
	if vm := b.vms[id]; vm != nil && vm.State == api.StateGone {
		return b.sinceEnd(vm, now), true
	}
	return 0, b.vms != nil && b.at.After(said)
}

// sinceEnd is how long ago a VM of the list ended.
func (b *beat) sinceEnd(vm *api.ReportedVM, now time.Time) time.Duration {
	return time.Duration(vm.EndedMSAgo)*time.Millisecond + max(0, now.Sub(b.listed))
}

// get gives the last beat of a node, nil if this process has not heard it.
func (f *fleet) get(node string) *beat {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beats[node]
}

// weather of a node by its name.
func (f *fleet) weather(node string) weather { return f.get(node).weather() }

// hear takes a beat in and says whether the node should send its whole list.
func (f *fleet) hear(report api.Register, credential string, now time.Time) (wantVMs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.beats[report.Name]
	b := &beat{report: report, credential: credential, at: now, missing: map[string]time.Time{}, strangers: map[string]time.Time{}}
	if old != nil {
		b.missing, b.strangers = old.missing, old.strangers
		if credential == "" {
			b.credential = old.credential
		}
	}
	switch {
	case report.HasVMs:
		b.digest, b.listed, b.vms = report.VMsDigest, now, make(map[string]*api.ReportedVM, len(report.VMs))
		for i := range report.VMs {
			vm := &report.VMs[i]
			vm.Reason, vm.IP = cut(vm.Reason, longestReason), cut(vm.IP, longestIP)
			b.vms[vm.ID] = vm
		}
	case old != nil && old.vms != nil && old.digest == report.VMsDigest && old.report.Instance == report.Instance:
		b.digest, b.listed, b.vms = old.digest, old.listed, old.vms
	default:
		wantVMs = true
	}
	b.report.VMs = nil
	f.beats[report.Name] = b
	select {
	case f.moved <- struct{}{}:
	default:
	}
	return wantVMs
}

// What of a node's words on one VM is kept, in bytes: it may go into the log.
const (
	longestReason = 500
	longestIP     = 64
)

// cut shortens text without leaving half a character.
func cut(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "")
}

// forget drops a node that was deleted.
func (f *fleet) forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.beats, node)
}

// silence is how long a node has not been heard: since its last beat, or since this process started.
func (f *fleet) silence(node string, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.beats[node]; b != nil {
		return now.Sub(b.at)
	}
	return now.Sub(f.started)
}
