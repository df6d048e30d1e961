package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// recovery is how long a fleet may take to serve again, all replicas and all hosts, after a fault was healed. It is far
// more than it needs, for the machine may be busy with other things.
const recovery = 2 * time.Minute

// fault is one thing to do to the fleet. do makes it, keeps it for a while and heals it, also when ctx ends; what it gives
// is said to whoever reads along. None means that there was nothing to do it to.
type fault struct {
	name string
	do   func(ctx context.Context, rng *rand.Rand) (what string, err error)
}

// deck deals faults in the order of chance, each as often as the others.
type deck struct {
	rng    *rand.Rand
	faults []fault
	left   []fault
}

func (d *deck) next() fault {
	if len(d.left) == 0 {
		d.left = append(d.left, d.faults...)
		d.rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	one := d.left[0]
	d.left = d.left[1:]
	return one
}

// torment makes one fault after the other until ctx ends. After each, recovered says what does not serve yet.
func (f *fleet) torment(ctx context.Context, d *deck, rest time.Duration, recovered func(context.Context) string) {
	for ctx.Err() == nil && len(d.faults) > 0 {
		one := d.next()
		began := time.Now()
		what, err := one.do(ctx, d.rng)
		switch {
		case err != nil && ctx.Err() == nil:
			f.rec.broken(checkRecovery, "%s could not be made or healed: %v", one.name, err)
		case what != "":
			f.rec.fault(one.name)
		}
		if ctx.Err() != nil {
			return
		}
		healed := time.Now()
		if why := until(ctx, recovery, func() string { return recovered(ctx) }); why != "" && ctx.Err() == nil {
			f.rec.broken(checkRecovery, "%s after %s (%s) was healed: %s", recovery, one.name, what, why)
		}
		if what != "" {
			f.rec.log("%-16s %s: %.1f s, whole again %.1f s later", one.name, what, healed.Sub(began).Seconds(), time.Since(healed).Seconds())
		}
		pause(ctx, time.Duration(d.rng.Int64N(int64(rest))))
	}
}

// hold is for how long a fault lasts.
func hold(ctx context.Context, rng *rand.Rand, least, most time.Duration) time.Duration {
	d := least + time.Duration(rng.Int64N(int64(most-least)))
	pause(ctx, d)
	return d
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// victims are members by chance, at most as many as the cluster can do without.
func (f *fleet) victims(rng *rand.Rand) []*place {
	all := f.members()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+rng.IntN((len(all)-1)/2)]
}

func names(places []*place) string {
	var all []string
	for _, p := range places {
		all = append(all, p.name())
	}
	return strings.Join(all, " and ")
}

// replicaFaults are what can happen to replicas on this machine.
func (f *fleet) replicaFaults() []fault {
	all := f.wanted([]fault{
		{"kill-leader", f.killLeader},
		{"kill", f.killSome},
		{"kill-all", f.killAll},
		{"stop", f.stopOne},
		{"pause", f.pauseSome},
		{"pause-leader", f.pauseLeader},
		{"partition", f.partition},
		{"one-way-loss", f.loseOneWay},
		{"delay", f.delay},
		{"reset", f.reset},
		{"full-disk", f.fillDisk},
		{"clock", f.jump},
		{"member", f.exchange},
		{"snapshots", f.storm},
		{"transfer", f.transfer},
		{"slow-disk", f.slowDisk},
	})
	if _, err := exec.LookPath("strace"); err != nil {
		all = slices.DeleteFunc(all, func(one fault) bool { return one.name == "slow-disk" })
		f.rec.with(func() { f.rec.skipped["slow-disk"] = "there is no strace" })
	}
	return all
}

// wanted are the faults that the campaign is to make; with none named, all.
func (f *fleet) wanted(all []fault) []fault {
	if len(f.cfg.Faults) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(one fault) bool { return !slices.Contains(f.cfg.Faults, one.name) })
}

// killLeader also measures how long no write is taken.
func (f *fleet) killLeader(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.leader(ctx)
	if p == nil {
		return "", nil
	}
	at := time.Now()
	p.daemon.end(syscall.SIGKILL, stopPatience)
	what := fmt.Sprintf("%s, back after %s", p.name(), seconds(hold(ctx, rng, 200*time.Millisecond, 3*time.Second)))
	p.daemon.start()
	gap, ok := f.writes.after(ctx, at)
	if !ok {
		return what, ctx.Err()
	}
	f.rec.with(func() { f.rec.gaps = append(f.rec.gaps, gap) })
	return fmt.Sprintf("%s, no write for %s", what, seconds(gap)), nil
}

func (f *fleet) killSome(ctx context.Context, rng *rand.Rand) (string, error) {
	return f.kill(ctx, rng, f.victims(rng))
}

// killAll is a power cut: disks keep what was written.
func (f *fleet) killAll(ctx context.Context, rng *rand.Rand) (string, error) {
	return f.kill(ctx, rng, f.members())
}

func (f *fleet) kill(ctx context.Context, rng *rand.Rand, places []*place) (string, error) {
	var all sync.WaitGroup
	for _, p := range places {
		all.Go(func() { p.daemon.end(syscall.SIGKILL, stopPatience) })
	}
	all.Wait()
	d := hold(ctx, rng, 200*time.Millisecond, 6*time.Second)
	for _, p := range places {
		p.daemon.start()
	}
	return names(places) + " for " + seconds(d), nil
}

func (f *fleet) stopOne(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	if rng.IntN(2) == 0 {
		if p = f.leader(ctx); p == nil {
			return "", nil
		}
	}
	p.daemon.end(syscall.SIGTERM, stopPatience)
	d := hold(ctx, rng, 100*time.Millisecond, 2*time.Second)
	p.daemon.start()
	return p.name() + " for " + seconds(d), nil
}

func (f *fleet) pauseSome(ctx context.Context, rng *rand.Rand) (string, error) {
	return f.freeze(ctx, rng, f.victims(rng))
}

func (f *fleet) pauseLeader(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.leader(ctx)
	if p == nil {
		return "", nil
	}
	return f.freeze(ctx, rng, []*place{p})
}

func (f *fleet) freeze(ctx context.Context, rng *rand.Rand, places []*place) (string, error) {
	for _, p := range places {
		p.daemon.signal(syscall.SIGSTOP)
	}
	d := hold(ctx, rng, 500*time.Millisecond, 8*time.Second)
	var waiting sync.WaitGroup
	for _, p := range places { // what they are asked now they answer first, before they learn what has happened
		for range 6 {
			waiting.Go(func() { f.clients.current(ctx, p.target(), operatorToken, "/fleet/tenants/gap") })
		}
	}
	pause(ctx, 50*time.Millisecond) // for the questions to arrive
	for _, p := range places {
		p.daemon.signal(syscall.SIGCONT)
	}
	waiting.Wait()
	return names(places) + " for " + seconds(d), nil
}

// drop loses every packet from some replicas to others, until undone.
func (f *fleet) drop(from, to []*place) (undo func() error, err error) {
	var undos []func() error
	undo = func() error {
		var all error
		for _, u := range undos {
			all = errors.Join(all, u())
		}
		return all
	}
	for _, a := range from {
		for _, b := range to {
			if a == b {
				continue
			}
			if err := lose(replicaNet(a.i), replicaAlias(b.i)); err != nil {
				return undo, err
			}
			undos = append(undos, func() error { return hear(replicaNet(a.i), replicaAlias(b.i)) })
		}
	}
	return undo, nil
}

// others are the members that are not among these.
func (f *fleet) others(some []*place) (rest []*place) {
next:
	for _, p := range f.members() {
		for _, s := range some {
			if s == p {
				continue next
			}
		}
		rest = append(rest, p)
	}
	return rest
}

// partition cuts some replicas off from the others. Clients and hosts still reach all of them.
func (f *fleet) partition(ctx context.Context, rng *rand.Rand) (string, error) {
	some := f.victims(rng)
	if p := f.leader(ctx); p != nil && rng.IntN(2) == 0 {
		some = []*place{p}
	}
	rest := f.others(some)
	there, err := f.drop(some, rest)
	back, err2 := f.drop(rest, some)
	d := hold(ctx, rng, time.Second, 9*time.Second)
	return names(some) + " for " + seconds(d), errors.Join(err, err2, there(), back())
}

// loseOneWay loses what one replica says, or what is said to it.
func (f *fleet) loseOneWay(ctx context.Context, rng *rand.Rand) (string, error) {
	some, says := f.victims(rng)[:1], "from"
	if p := f.leader(ctx); p != nil && rng.IntN(2) == 0 {
		some = []*place{p}
	}
	from, to := some, f.others(some)
	if rng.IntN(2) == 0 {
		from, to, says = to, from, "to"
	}
	undo, err := f.drop(from, to)
	d := hold(ctx, rng, time.Second, 9*time.Second)
	return says + " " + names(some) + " for " + seconds(d), errors.Join(err, undo())
}

// links between one replica and the others, either way.
func (f *fleet) linksOf(p *place, do func(from, to int)) {
	for _, other := range f.others([]*place{p}) {
		do(p.i, other.i)
		do(other.i, p.i)
	}
}

func (f *fleet) delay(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	by := time.Duration(20+rng.IntN(600)) * time.Millisecond
	f.linksOf(p, func(from, to int) { f.links.slow(from, to, by) })
	d := hold(ctx, rng, 2*time.Second, 8*time.Second)
	f.linksOf(p, func(from, to int) { f.links.slow(from, to, 0) })
	return fmt.Sprintf("%s by %d ms for %s", p.name(), by.Milliseconds(), seconds(d)), nil
}

// reset ends connections again and again, in some rounds all that are tried.
func (f *fleet) reset(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	rounds := 2 + rng.IntN(6)
	for range rounds {
		stay := rng.IntN(2) == 0
		f.linksOf(p, func(from, to int) { f.links.cut(from, to, stay) })
		hold(ctx, rng, 100*time.Millisecond, 1200*time.Millisecond)
	}
	f.linksOf(p, func(from, to int) { f.links.cut(from, to, false) })
	return fmt.Sprintf("%s %d times", p.name(), rounds), nil
}

// fillDisk leaves no room on a replica's disk.
func (f *fleet) fillDisk(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	if l := f.leader(ctx); l != nil && rng.IntN(2) == 0 {
		p = l
	}
	ballast := filepath.Join(p.disk, "ballast")
	file, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("filling a disk: %w", err)
	}
	var size int64
	for step := int64(16 << 20); step >= 4096; { // as much as there is
		if syscall.Fallocate(int(file.Fd()), 0, size, step) != nil {
			step /= 2
			continue
		}
		size += step
	}
	d := hold(ctx, rng, 2*time.Second, 8*time.Second)
	return fmt.Sprintf("%s for %s", p.name(), seconds(d)), errors.Join(file.Close(), os.Remove(ballast))
}

// slowDisk makes each write to the disk of a replica wait before it counts as done.
func (f *fleet) slowDisk(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	if l := f.leader(ctx); l != nil && rng.IntN(2) == 0 {
		p = l
	}
	pid, by := p.daemon.pid(), 20+rng.IntN(400)
	if pid == 0 {
		return "", nil
	}
	inject := fmt.Sprintf("inject=fdatasync,fsync:delay_enter=%d", by*1000) // µs
	tracer := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject, "-p", strconv.Itoa(pid))
	tracer.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := tracer.Start(); err != nil {
		return "", fmt.Errorf("starting strace: %w", err)
	}
	d := hold(ctx, rng, 2*time.Second, 7*time.Second)
	_ = tracer.Process.Signal(os.Interrupt) // it lets go of the replica and ends by this signal
	_ = tracer.Wait()
	return fmt.Sprintf("%s by %d ms a write for %s", p.name(), by, seconds(d)), nil
}

// jump sets a replica's wall clock.
func (f *fleet) jump(ctx context.Context, rng *rand.Rand) (string, error) {
	p := f.victims(rng)[0]
	if l := f.leader(ctx); l != nil && rng.IntN(2) == 0 {
		p = l
	}
	off := [...]int{3600, -3600, 90, -90, 7200, -86400}[rng.IntN(6)]
	err := os.WriteFile(p.clockFile, []byte(strconv.Itoa(off)), 0o600)
	d := hold(ctx, rng, 2*time.Second, 8*time.Second)
	return fmt.Sprintf("%s by %d s for %s", p.name(), off, seconds(d)), errors.Join(err, os.WriteFile(p.clockFile, []byte("0"), 0o600))
}

// transfer hands the leadership over, to whoever is best or to one by name.
func (f *fleet) transfer(ctx context.Context, rng *rand.Rand) (string, error) {
	body := api.TransferRequest{}
	if rng.IntN(2) == 0 {
		body.To = f.members()[rng.IntN(len(f.members()))].name()
	}
	a := f.call.once(ctx, f.any(rng), request{token: operatorToken, method: "POST", path: "/fleet/cluster/transfer", body: body, key: fmt.Sprintf("transfer-%d", rng.Uint64()), timeout: 20 * time.Second})
	return fmt.Sprintf("to %q: %d", body.To, a.status), nil
}

// storm takes many backups at once, each held to its own checksum and to the state of the replicas.
func (f *fleet) storm(ctx context.Context, rng *rand.Rand) (string, error) {
	over := time.Now().Add(time.Duration(1+rng.IntN(3)) * time.Second)
	var all sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 4 {
		seed := rng.Uint64()
		all.Go(func() {
			own := rand.New(rand.NewPCG(seed, 0))
			for time.Now().Before(over) && ctx.Err() == nil {
				if f.backup(ctx, f.any(own)) {
					mu.Lock()
					taken++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return fmt.Sprintf("%d backups", taken), nil
}

// exchange lets a new replica join and removes another member, the leader or the new one as chance has it.
func (f *fleet) exchange(ctx context.Context, rng *rand.Rand) (string, error) {
	var free *place
	for _, p := range f.places {
		if p.name() == "" {
			free = p
		}
	}
	if free == nil {
		return "", errors.New("there is no place for another replica")
	}
	members := f.members()
	gone := members[rng.IntN(len(members))]
	if rng.IntN(4) == 0 {
		gone = free
	}
	ctx = context.WithoutCancel(ctx) // half a change of members would be left over
	token, err := f.admin.JoinToken(ctx, api.JoinTokenRequest{Kind: "replica"})
	if err != nil {
		return "", fmt.Errorf("asking for a join token: %w", err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "join-token"), []byte(token.Token), 0o600); err != nil {
		return "", fmt.Errorf("writing the join token: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(free.disk, "data")); err != nil {
		return "", fmt.Errorf("emptying a disk: %w", err)
	}
	free.mu.Lock()
	free.member, free.joins = f.newName(), true
	free.mu.Unlock()
	free.daemon.mu.Lock()
	free.daemon.name = free.name()
	free.daemon.mu.Unlock()
	free.daemon.stays()
	free.daemon.start()
	if why := until(ctx, recovery, func() string { return f.missing(ctx) }); why != "" {
		return "", fmt.Errorf("%s did not become a voter: %s", free.name(), why)
	}
	what := fmt.Sprintf("%s joined, %s removed", free.name(), gone.name())
	return what, f.remove(ctx, gone)
}

// remove takes a member out and waits until its process has ended by itself.
func (f *fleet) remove(ctx context.Context, p *place) error {
	left := p.daemon.leaves()
	name := p.name()
	why := until(ctx, recovery, func() string {
		for _, m := range f.members() {
			a := f.call.once(ctx, m.target(), request{token: operatorToken, method: "DELETE", path: "/fleet/cluster/replicas/" + name, timeout: 10 * time.Second})
			if a.what == done || a.code == api.CodeNotFound {
				return ""
			}
		}
		return name + " is not removed"
	})
	if why != "" {
		return errors.New(why)
	}
	select {
	case <-left:
	case <-time.After(recovery):
		return fmt.Errorf("%s was removed and its process did not end", name)
	}
	p.mu.Lock()
	p.member, p.joins = "", false
	p.mu.Unlock()
	return nil
}
