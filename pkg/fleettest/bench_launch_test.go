package fleettest

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	benchPairs = 7
	benchHosts = 50
	benchPools = 60

	// What the baseline commits has as many bytes as what it is compared with. rawClaim is the command of a warm claim
	// here, rawCycle all that a claim brings into the log, with its outcome and the spare that takes its place, which come
	// in one entry for many claims.
	rawClaim = 414
	rawCycle = 809
)

// rawLog is the baseline: three replicas that only commit.
type rawLog struct {
	*scale
	b      *bench
	leader string
}

func (b *bench) rawLog() *rawLog {
	r := &rawLog{b: b, scale: &scale{t: b.t, ctx: b.ctx, raw: true, dir: filepath.Join(b.dir, b.name("raw")), fail: b.fail, parts: map[string]*process{}}}
	r.startReplicas()
	r.find()
	return r
}

// name makes a directory's name that no other step uses.
func (b *bench) name(what string) string {
	return what + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

// find waits for a leader.
func (r *rawLog) find() {
	r.t.Helper()
	eventually(r.ctx, r.t, "for the baseline's leader", func() bool {
		for _, r.leader = range r.urls {
			if r.commit() == nil {
				return true
			}
		}
		return false
	})
}

func (r *rawLog) commit() error { return r.commitOf(rawClaim) }

func (r *rawLog) commitOf(bytes int) error {
	_, _, err := r.b.ask(http.MethodPost, r.leader, "", make([]byte, bytes))
	return err
}

// benchFleet is three replicas and simulated hosts.
type benchFleet struct {
	*scale
	b     *bench
	lead  string // the leader's URL
	turn  atomic.Int64
	cold  atomic.Int64
	pools int
}

func (b *bench) fleet(hosts int) *benchFleet {
	f := &benchFleet{b: b, scale: &scale{t: b.t, ctx: b.ctx, token: central.NewToken("fvx_op_"), dir: filepath.Join(b.dir, b.name("fleet")), fail: b.fail, parts: map[string]*process{}}}
	f.startReplicas()
	eventually(f.ctx, f.t, "for the cluster", func() bool { _, err := f.client.Capacity(f.ctx); return err == nil })
	f.start(part{Token: f.token, Replicas: f.urls, To: hosts, Profile: f.profile("hosts")})
	if _, err := f.client.CreateImage(f.ctx, api.ImageRequest{Name: "tiny", Path: "sim:?tiny", VCPUs: 1, MemoryMiB: 128, HasAgent: true}, ""); err != nil {
		f.t.Fatal(err)
	}
	eventually(f.ctx, f.t, "for the hosts", func() bool {
		c, err := f.client.Capacity(f.ctx)
		return err == nil && c.Healthy == hosts
	})
	f.lead = f.leader()
	return f
}

// fill makes the pools, of 32 spares each, and waits until they are full. Hosts that have nothing to boot may start many
// spares at a time.
func (f *benchFleet) fill(pools int) {
	f.t.Helper()
	f.pools = pools
	if _, err := f.client.PatchPolicy(f.ctx, api.PolicyPatch{MaxBootsPerNode: api.Some(64)}); err != nil {
		f.t.Fatal(err)
	}
	ready, most := api.MaxMinReady, api.MaxMaxTotal
	for i := range pools {
		if _, err := f.client.CreatePool(f.ctx, api.PoolRequest{Name: fmt.Sprint("pool-", i), Image: "tiny", MinReady: &ready, MaxTotal: &most}, ""); err != nil {
			f.t.Fatal(err)
		}
	}
	f.full()
}

// full waits until every pool has all its spares and none is taken.
func (f *benchFleet) full() {
	f.t.Helper()
	f.pooled("for full pools", func(s api.PoolStatus) bool { return s.ClaimedRunning == 0 })
}

// refilled waits until every pool has all its spares, with what was taken of them still there and all of it on record,
// and gives the newest index of the log.
func (f *benchFleet) refilled() float64 {
	f.t.Helper()
	f.pooled("for pools to be full again", func(api.PoolStatus) bool { return true })
	f.quiet()
	return f.metric(f.lead, "fluxvm_raft_applied_index")
}

func (f *benchFleet) pooled(what string, and func(api.PoolStatus) bool) {
	f.t.Helper()
	eventually(f.ctx, f.t, what, func() bool {
		n := 0
		for p, err := range f.client.Pools(f.ctx, client.Filter{}) {
			if err == nil && p.Status.Ready == p.MinReady && and(p.Status) {
				n++
			}
		}
		return n == f.pools
	})
}

// launch sends a launch to the leader.
func (f *benchFleet) launch(body string) ([]byte, http.Header, error) {
	return f.b.ask(http.MethodPost, f.lead+"/fleet/vms", f.token, []byte(body))
}

// claim takes a warm VM: of one pool after the other.
func (f *benchFleet) claim() error {
	raw, _, err := f.launch(fmt.Sprintf(`{"pool":"pool-%d"}`, f.turn.Add(1)%int64(f.pools)))
	if err == nil && !bytes.Contains(raw, []byte(`"warm":true`)) {
		f.cold.Add(1)
	}
	return err
}

// boot launches a VM that no pool answers.
func (f *benchFleet) boot() error {
	_, _, err := f.launch(`{"image":"tiny","vcpus":2}`)
	return err
}

// reset deletes what was launched and waits until all is as before.
func (f *benchFleet) reset() {
	f.t.Helper()
	ids := make(chan string)
	var deleting sync.WaitGroup
	for range 32 {
		deleting.Go(func() {
			for id := range ids {
				if _, _, err := f.b.ask(http.MethodDelete, f.lead+"/fleet/vms/"+id, f.token, nil); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	var all []string
	for vm, err := range f.client.VMs(f.ctx, client.Filter{PageSize: 500}) {
		if err != nil {
			f.t.Error(err)
			break
		}
		if vm.WarmPool == "" && vm.Labels["bench"] == "" {
			all = append(all, vm.ID)
		}
	}
	for _, id := range all {
		ids <- id
	}
	close(ids)
	deleting.Wait()
	f.full()
	f.quiet()
}

// quiet waits until nothing is written to the log any more.
func (f *benchFleet) quiet() {
	f.t.Helper()
	was := f.commands(f.lead)
	for same := 0; same < 5 && f.ctx.Err() == nil; {
		pauseFor(f.ctx, 50*time.Millisecond)
		if now := f.commands(f.lead); now == was {
			same++
		} else {
			was, same = now, 0
		}
	}
}

// launches measures one client: claims and cold launches against the bare log.
func (b *bench) launches() {
	raw, fleet := b.rawLog(), b.fleet(benchHosts)
	fleet.fill(benchPools)
	var base, base99, claim, claim99, boot []float64
	one := func(call func() error, p50, p99 *[]float64, done func()) func() {
		return func() {
			k := b.block(1, blockTime, call)
			*p50 = append(*p50, k.ms(0.5))
			*p99 = append(*p99, k.ms(0.99))
			done()
		}
	}
	var ignored []float64
	pairs(benchPairs, one(raw.commit, &base, &base99, func() {}), one(fleet.claim, &claim, &claim99, fleet.reset), one(fleet.boot, &boot, &ignored, fleet.reset))
	b.add(benchFigure{ID: 1, Name: "warm claim p50 / raw commit p50, one client", Goal: 2, Stretch: 1.6, Unit: "ms"}, ratios(claim, base), base)
	b.add(benchFigure{ID: 2, Name: "warm claim p99 / raw commit p99, one client", Goal: 3, Stretch: 2, Unit: "ms"}, ratios(claim99, base99), base99)
	b.add(benchFigure{ID: 5, Name: "cold launch / raw commit p50", Goal: 8, Stretch: 4, Unit: "ms"}, ratios(boot, base), base)
	fleet.allWarm()
}

// crowd measures claims of 64 clients, and what all of it writes to the log.
func (b *bench) crowd() {
	raw, fleet := b.rawLog(), b.fleet(benchHosts)
	fleet.fill(benchPools)
	var before []float64
	for range 20 {
		fleet.quiet()
		_, header, err := fleet.b.ask(http.MethodGet, fleet.lead+"/fleet/images", fleet.token, nil)
		if err != nil {
			b.t.Fatal(err)
		}
		from := indexOf(header)
		if _, header, err = fleet.launch(`{"pool":"pool-0"}`); err != nil {
			b.t.Fatal(err)
		}
		before = append(before, indexOf(header)-from)
	}
	fleet.reset()
	var baseRate, claimRate, entries []float64
	pairs(benchPairs, func() {
		baseRate = append(baseRate, b.block(64, blockTime, func() error { return raw.commitOf(rawCycle) }).rate())
	}, func() {
		from := fleet.refilled()
		k := b.block(64, blockTime, fleet.claim)
		claimRate = append(claimRate, k.rate())
		entries = append(entries, (fleet.refilled()-from)/float64(len(k.took)))
		fleet.reset()
	})
	b.add(benchFigure{ID: 3, Name: "claims/s / raw commits/s, 64 clients", Goal: 0.25, Stretch: 0.40, Unit: "commits/s", Higher: true}, ratios(claimRate, baseRate), baseRate)
	b.add(benchFigure{ID: 4, Name: "log entries before a claim's answer", Goal: 1, Stretch: 1, Unit: "entry"}, before, []float64{1})
	b.add(benchFigure{ID: 4, Name: "log entries per claim with outcome and refill, 64 clients", Goal: 1.5, Stretch: 1.2, Unit: "entry"}, entries, []float64{1})
	b.t.Logf("%.0f claims/s of 64 clients", median(claimRate))
	fleet.allWarm()
}

// allWarm says so where claims were no claims.
func (f *benchFleet) allWarm() {
	if cold := f.cold.Load(); cold > 0 {
		f.b.missing = append(f.b.missing, fmt.Sprintf("note: %d claims of the figures above were answered cold, for their pool was empty", cold))
	}
}

func indexOf(h http.Header) float64 {
	n, _ := strconv.ParseFloat(h.Get(api.HeaderIndex), 64) // 0 makes the figure absurd
	return n
}
