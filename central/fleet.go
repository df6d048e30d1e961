package central

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fleet is the weather: what nodes report, kept in memory by every replica, never in the log.
type fleet struct {
	mu      sync.Mutex
	beats   map[string]*beat
	started time.Time       // no silence is longer than from here
	ticked  time.Time       // when this process last showed that it runs
	heard   map[string]bool // nodes that beat since takeHeard
	moved   chan struct{}   // poked, never blocking, when there are such
	news    map[string]bool // nodes whose last beat is another one since takeNews

	tooOld map[string]string // nodes that said they could rename and could not: the instance of their daemon
}

// beat is the last that was heard from one node. A stored beat does not change; news replaces it.
type beat struct {
	report     api.Register
	credential string                     // the node's own secret, to speak to it with
	at         time.Time                  // when it was heard, with the monotonic clock
	vms        map[string]*api.ReportedVM // its whole list, as of its digest; nil before the first
	holds      weather                    // what the VMs of that list take together
	digest     string
	listed     time.Time            // when that list was heard: how long ago a VM ended counts from then
	missing    map[string]time.Time // rows that were first missed in the list at that time
	strangers  map[string]time.Time // VMs of this cluster that no row knows, since when
	twins      twins
	fault      string // what an operator has to mend before the node is believed
}

func newFleet(now time.Time) *fleet {
	return &fleet{beats: map[string]*beat{}, tooOld: map[string]string{}, started: now, ticked: now, heard: map[string]bool{}, news: map[string]bool{}, moved: make(chan struct{}, 1)}
}

// weather is what placement looks at. It works on nil: a node that was not heard yet.
func (b *beat) weather() (w weather) {
	if b == nil {
		return w
	}
	w = b.holds
	w.known, w.density, w.images = true, b.report.Density, b.report.Images
	return w
}

// totals adds up what the VMs of a list take. It is done once a list, for placement asks of every host at every launch.
func totals(vms map[string]*api.ReportedVM, overcommit int) (w weather) {
	for _, vm := range vms {
		if vm.State == api.StateGone {
			continue
		}
		w.vms++
		if vm.State == api.StateFailed {
			continue
		}
		weight := vm.VCPUs
		if vm.GuestOS == api.GuestMacOS {
			weight *= max(overcommit, 1)
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

// hear takes a beat in and says whether the node should send its whole list. One that was under way for long is late: the
// node has said more since.
func (f *fleet) hear(report api.Register, credential string, now time.Time) (wantVMs, late bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !report.Capabilities.Rename { // it says so itself
		delete(f.tooOld, report.Name)
	}
	old := f.beats[report.Name]
	b := &beat{report: report, credential: credential, at: now, missing: map[string]time.Time{}, strangers: map[string]time.Time{}}
	if old != nil {
		if old.report.Instance == report.Instance && report.Seq < old.report.Seq {
			return false, true
		}
		b.missing, b.strangers, b.twins = old.missing, old.strangers, old.twins
		if old.report.Instance != report.Instance {
			b.twins.heard = 0
		}
		b.twins.heard++
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
		b.holds = totals(b.vms, report.CPUOvercommit)
	case old != nil && old.vms != nil && old.digest == report.VMsDigest && old.report.Instance == report.Instance:
		b.digest, b.listed, b.vms, b.holds = old.digest, old.listed, old.vms, old.holds
		if old.report.CPUOvercommit != report.CPUOvercommit {
			b.holds = totals(b.vms, report.CPUOvercommit)
		}
	default:
		wantVMs = true
	}
	b.report.VMs = nil
	f.beats[report.Name], f.heard[report.Name], f.news[report.Name] = b, true, true
	select {
	case f.moved <- struct{}{}:
	default:
	}
	return wantVMs, false
}

// takeHeard gives the nodes that beat since the last time.
func (f *fleet) takeHeard() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.heard
	f.heard = map[string]bool{}
	return out
}

// takeNews gives the nodes whose beat changed since the last time.
func (f *fleet) takeNews() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.news) == 0 {
		return nil
	}
	out := f.news
	f.news = map[string]bool{}
	return out
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

// cannotRename notes that a node's daemon, whatever it says of itself, is too old to hand VMs over.
func (f *fleet) cannotRename(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.beats[node]; b != nil && b.report.Capabilities.Rename {
		f.tooOld[node] = b.report.Instance
	}
}

// handsOut says whether the node was heard within two beats, from a daemon that is not too old to hand VMs over.
func (f *fleet) handsOut(node string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.beats[node]
	return f.silent(b, now) <= twoBeats && (b == nil || b.report.Instance == "" || f.tooOld[node] != b.report.Instance)
}

// isTooOld says whether that instance of the node's daemon is known not to be able to hand VMs over.
func (f *fleet) isTooOld(node, instance string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return instance != "" && f.tooOld[node] == instance
}

// forget drops a node that was deleted.
func (f *fleet) forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.beats, node)
	f.news[node] = true
}

// silence is how long a node has not been heard: since its last beat, or since this process started.
func (f *fleet) silence(node string, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.silent(f.beats[node], now)
}

// silent is silence of the node whose last beat that is. f.mu is held.
func (f *fleet) silent(b *beat, now time.Time) time.Duration {
	if b != nil && b.at.After(f.started) {
		return now.Sub(b.at)
	}
	return now.Sub(f.started)
}

// longestPause is how long this process may show no sign of life before it stops trusting its own ears.
const longestPause = 5 * time.Second

// awake notes that this process runs. After a pause of the whole process (a stopped machine, a debugger) no node is
// silent for longer than since now: it was this one that did not listen.
func (f *fleet) awake(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.ticked) > longestPause {
		f.started = now
	}
	f.ticked = now
}

// listen notes every second that the process runs, until ctx ends.
func (f *fleet) listen(ctx context.Context, wall func() time.Time) {
	for ctx.Err() == nil {
		f.awake(wall())
		pause(ctx, time.Second)
	}
}

// lists says whether a node's last list has the VM.
func (f *fleet) lists(node, id string) bool {
	b := f.get(node)
	return b != nil && b.vms[id] != nil && b.vms[id].State != api.StateGone
}

// twins is what was noticed of two daemons that report as one node.
type twins struct {
	before  []string  // the instances that reported before the present one, the last first
	rival   string    // one that reported while the present one may still live
	returns int       // how often one of those came back
	last    string    // while there is a fault: the instance that reported last
	proof   time.Time // when both were last seen to report
	heard   int       // reports of the present one
	stray   time.Time // when one that reported once was last taken for a daemon that had ended
}

// twinning is what a report says of a node's identity.
type twinning int

const (
	twinNone     twinning = iota
	twinPossible          // it may be a copy, or the host has booted; it is not believed yet
	twinFound
)

const (
	twinPatience = beatInterval + beatInterval/5 // the present instance reports within it, if it lives
	twinPeace    = time.Minute                   // that only one reports for so long ends a fault
	twinMemory   = 8                             // instances before the present one that are known as such
)

// twin looks at the instance that reports. A daemon that restarts has a new one and never an old one again, so one that
// comes back shows that two report in turn. That the host has booted is believed when the instance of the boot before
// has not reported for longer than it waits between reports: all that ran there is over then.
func (f *fleet) twin(report *api.Register, now time.Time) twinning {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.news[report.Name] = true
	old := f.beats[report.Name]
	if old == nil {
		return twinNone
	}
	b := *old
	w := &b.twins
	same := report.Instance == old.report.Instance
	switch {
	case old.fault != "":
		if report.Instance != w.last {
			w.proof, w.last = now, report.Instance
		}
		if now.Sub(w.proof) >= twinPeace {
			delete(f.beats, report.Name) // it begins anew
			return twinNone
		}
	case same && w.rival != "":
		w.returns = 2
	case same:
		return twinNone
	case slices.Contains(w.before, report.Instance):
		if now.Sub(w.proof) >= twinPeace {
			w.returns = 0
		}
		// Once it may be an old report that was under way for long: what it says, such as the boot before, is not believed.
		if w.returns, w.proof = w.returns+1, now; w.returns < 2 {
			f.beats[report.Name] = &b
			return twinPossible
		}
		if w.heard == 1 && now.Sub(w.stray) >= twinPeace { // the one that seemed newer was such an old report; a copy comes again
			w.before = append([]string{old.report.Instance}, slices.DeleteFunc(slices.Clone(w.before), func(i string) bool { return i == report.Instance })...)
			w.returns, w.stray = 1, now
		}
	case report.BootID != old.report.BootID && now.Sub(old.at) < twinPatience:
		w.rival = report.Instance
		f.beats[report.Name] = &b
		return twinPossible
	default:
		w.before = append([]string{old.report.Instance}, w.before[:min(len(w.before), twinMemory-1)]...)
		w.rival = ""
	}
	found := twinNone
	if old.fault != "" || w.returns > 1 {
		if b.fault == "" {
			b.fault, w.proof, w.last = twinFault(report.Name), now, report.Instance
		}
		b.at, b.vms, found = now, nil, twinFound
	}
	f.beats[report.Name] = &b
	return found
}
