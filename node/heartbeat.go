package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	beatTimeout  = 10 * time.Second
	beatGather   = 20 * time.Millisecond // changes this close together make one beat
	backoffFirst = 250 * time.Millisecond
	backoffMost  = 5 * time.Second
	maxAnswer    = 1 << 20
)

// beats reports to every replica of central, each on a loop of its own, so that one that hangs delays no other.
type beats struct {
	d      *Daemon
	client *http.Client
	seq    atomic.Uint64

	join   sync.Mutex   // held by the one loop that presents the join token
	joined atomic.Int64 // how often it was used

	mu      sync.Mutex
	ctx     context.Context // nil until run
	ended   bool
	targets map[string]*target // by URL
	loops   sync.WaitGroup
}

// target is one replica.
type target struct {
	url    string
	poke   chan struct{} // capacity 1
	cancel context.CancelFunc
	acked  string // digest of the list of VMs that this replica has; only its loop uses it
	wrong  string // the last failure that was logged; only its loop uses it
}

func newBeats(d *Daemon) *beats {
	return &beats{
		d: d, targets: map[string]*target{},
		client: &http.Client{
			Timeout:       beatTimeout,
			Transport:     d.centralTransport(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// run reports until ctx ends.
func (b *beats) run(ctx context.Context) {
	b.mu.Lock()
	b.ctx = ctx
	b.mu.Unlock()
	b.follow(nil)
	<-ctx.Done()
	b.stop()
	b.loops.Wait()
	b.client.CloseIdleConnections()
}

func (b *beats) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for _, t := range b.targets {
		t.cancel()
	}
}

// follow makes the targets the configured replicas and those that central names.
func (b *beats) follow(named []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.ctx == nil || len(b.d.cfg.Central) == 0 {
		return
	}
	want := slices.Clone(b.d.cfg.Central)
	for _, u := range named {
		if isURL(u) {
			want = append(want, strings.TrimRight(u, "/"))
		}
	}
	for url, t := range b.targets {
		if !slices.Contains(want, url) {
			t.cancel()
			delete(b.targets, url)
		}
	}
	for _, url := range want {
		if b.targets[url] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(b.ctx)
		t := &target{url: url, poke: make(chan struct{}, 1), cancel: cancel}
		b.targets[url] = t
		b.loops.Go(func() { b.loop(ctx, t) })
	}
}

// poke sends a beat to every replica soon. It never blocks.
func (b *beats) poke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.targets {
		select {
		case t.poke <- struct{}{}:
		default:
		}
	}
}

func (b *beats) loop(ctx context.Context, t *target) {
	backoff := backoffFirst
	for ctx.Err() == nil {
		next, err := b.beat(ctx, t)
		if err != nil && ctx.Err() == nil {
			b.d.metrics.beat("failed")
			if why := err.Error(); why != t.wrong {
				t.wrong = why
				level := hclog.Warn
				if errors.Is(err, &api.Error{Code: api.CodeNotLeader}) {
					level = hclog.Debug // it only joins at the leader, whichever replica that is
				}
				b.d.log.Log(level, "a replica does not take this node's report; trying again", "replica", t.url, "error", err)
			}
			// Half of the wait is random, lest many nodes come back at one moment.
			pause(ctx, nil, backoff/2+rand.N(backoff/2))
			backoff = min(2*backoff, backoffMost)
			continue
		}
		if err == nil && t.wrong != "" {
			t.wrong = ""
			b.d.log.Info("a replica takes this node's reports again", "replica", t.url)
		}
		backoff = backoffFirst
		b.d.metrics.beat("ok")
		if pause(ctx, t.poke, next) {
			pause(ctx, nil, beatGather)
			select {
			case <-t.poke:
			default:
			}
		}
	}
}

// pause waits; it says whether a poke ended the wait.
func pause(ctx context.Context, poke <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-poke:
		return true
	}
	return false
}

// beat sends one report and gives the time until the next.
func (b *beats) beat(ctx context.Context, t *target) (time.Duration, error) {
	every := time.Duration(b.d.cfg.HeartbeatSecs) * time.Second
	if b.d.steer != nil && b.d.steer.Silent() {
		return min(every, time.Second), nil
	}
	report := b.d.report()
	digest := report.VMsDigest
	if t.acked == digest || b.d.issue.lacks(b.d) { // without its list it gets no orders, and it could take none yet
		report.VMs, report.HasVMs = nil, false
	}
	take, err := b.d.issue.request(b.d, &report)
	if err != nil {
		return 0, err
	}
	sent := now(b.d.cfg.Facts)
	answer, err := b.register(ctx, t, report)
	take(answer.Certificate, err)
	if err != nil {
		return 0, err
	}
	if answer.LeaseMS > 0 {
		b.d.renew(sent, time.Duration(answer.LeaseMS)*time.Millisecond)
	}
	t.acked = digest
	if answer.WantVMs {
		t.acked = ""
	}
	if len(answer.Replicas) > 0 {
		b.follow(answer.Replicas)
	}
	switch {
	case !answer.WantVMs || report.HasVMs:
	case b.d.issue.lacks(b.d):
		return min(every, time.Second), nil
	default:
		return 0, nil
	}
	if answer.NextInMS > 0 {
		every = min(time.Duration(answer.NextInMS)*time.Millisecond, 5*time.Minute)
	}
	return every, nil
}

// register shows the node's own credential; a replica that does not know it gets the join token, from one loop at
// a time, as a token may be good for one use.
func (b *beats) register(ctx context.Context, t *target, report api.Register) (api.RegisterAnswer, error) {
	joined := b.joined.Load()
	answer, err := b.post(ctx, t.url, b.d.id.credential, report)
	if !errors.Is(err, &api.Error{Code: api.CodeUnauthenticated}) || b.d.cfg.JoinToken == "" {
		return answer, err
	}
	if !b.join.TryLock() {
		return answer, err
	}
	defer b.join.Unlock()
	if b.joined.Load() != joined {
		return answer, err // another loop joined while this one was told that it had not: the next beat is known
	}
	report.Credential = b.d.id.credential
	report.Seq = b.seq.Add(1)
	if answer, err = b.post(ctx, t.url, b.d.cfg.JoinToken, report); err == nil {
		b.joined.Add(1)
	}
	return answer, err
}

func (b *beats) post(ctx context.Context, url, bearer string, report api.Register) (api.RegisterAnswer, error) {
	var answer api.RegisterAnswer
	raw, err := json.Marshal(report)
	if err != nil {
		return answer, fmt.Errorf("encoding the report: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/fleet/register", bytes.NewReader(raw))
	if err != nil {
		return answer, fmt.Errorf("addressing %s: %w", url, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := b.client.Do(req)
	if err != nil {
		return answer, fmt.Errorf("sending the report: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer, fmt.Errorf("reading the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		refusal := api.Error{}
		if json.Unmarshal(body, &refusal) != nil || !refusal.Code.Known() {
			return answer, fmt.Errorf("the replica answered %s", resp.Status)
		}
		return answer, &refusal
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("reading the answer: %w", err)
	}
	return answer, nil
}

// report is the node as it is now, its VMs included.
func (d *Daemon) report() api.Register {
	vms := d.reportedVMs()
	running := 0
	for _, vm := range vms {
		if vm.State != api.StateGone {
			running++
		}
	}
	out := api.Register{
		Name: d.cfg.Name, UUID: d.id.uuid, BootID: d.cfg.Facts.BootID(), Instance: d.instance.Load().(string), Seq: d.beats.seq.Add(1),
		URL: d.cfg.AdvertiseURL, Version: version(), Backends: driverNames(d.cfg.Drivers), Capabilities: api.Capabilities{Rename: true, Claim: true},
		VCPUsTotal: d.cfg.VCPUsTotal, MemoryMiBTotal: d.cfg.MemoryMiBTotal, CPUOvercommit: d.cfg.CPUOvercommit,
		VMCount: running, Labels: d.cfg.Labels, Density: d.density(), Apple: d.apple(), Confinement: confinement(d.cfg.Drivers), Images: d.imagePaths(),
		VMsDigest: digest(vms), VMs: vms, HasVMs: true,
	}
	if d.steer != nil {
		out.Capabilities = d.steer.Capabilities()
	}
	return out
}

// confinement is what holds the processes of each driver's machines.
func confinement(drivers []machine.Driver) map[string][]string {
	out := map[string][]string{}
	for _, driver := range drivers {
		if c, ok := driver.(machine.Confiner); ok {
			if words := c.Confinement(); len(words) > 0 {
				out[driver.Name()] = words
			}
		}
	}
	return out
}

// reportedVMs are the VMs in the order of ids, those that ended lately among them.
func (d *Daemon) reportedVMs() []api.ReportedVM {
	vms := []api.ReportedVM{}
	for _, v := range d.list() {
		vms = append(vms, v.reported())
	}
	at, wall := now(d.cfg.Facts), d.wall()
	d.mu.Lock()
	for id, t := range d.tombs {
		if ago := t.ago(at, wall); ago <= keepGone && d.vms[id] == nil {
			last := t.last(ago)
			vms = append(vms, last)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(vms, func(a, b api.ReportedVM) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(vms, func(a, b api.ReportedVM) bool { return a.ID == b.ID })
}

func (t tombstone) last(ago time.Duration) api.ReportedVM {
	out := t.Last
	out.EndedMSAgo = ago.Milliseconds()
	return out
}

func (v *vm) reported() api.ReportedVM {
	m := v.view()
	return api.ReportedVM{ID: m.ID, Name: m.Name, State: m.State, Reason: m.Reason, GuestOS: m.GuestOS, VCPUs: m.VCPUs, MemoryMiB: m.MemoryMiB,
		IP: m.IP, Agent: m.Agent, CanClaim: m.CanClaim, Cluster: m.Labels[api.LabelCluster]}
}

// digest tells one list of VMs from another. How long ago a VM ended is left out: it changes by itself.
func digest(vms []api.ReportedVM) string {
	still := slices.Clone(vms)
	for i := range still {
		still[i].EndedMSAgo = 0
	}
	raw, err := json.Marshal(still)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// density is the host's load.
func (d *Daemon) density() api.Density {
	var out api.Density
	if m, err := d.cfg.Facts.Memory(); err == nil {
		out.HostPressureLevel, out.HostMemAvailableMiB = m.PressureLevel, m.MemAvailableMiB
	}
	for _, v := range d.list() {
		v.countIn(&out)
	}
	return out
}

// apple is what only a Mac reports; nil elsewhere.
func (d *Daemon) apple() *api.AppleHost {
	if !d.runsMacOS() {
		return nil
	}
	return &api.AppleHost{Chip: d.cfg.AppleChip, MacOSGuests: d.used().macos, MacOSLimit: api.MacOSPerHost}
}

func (d *Daemon) runsMacOS() bool {
	for _, driver := range d.cfg.Drivers {
		if driver.Features().MacOS {
			return true
		}
	}
	return false
}
