package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	soakNodes = 6
	soakKills = 5 // of leaders
)

// soak is a fleet of processes under launches and faults, and what came of it.
type soak struct {
	*fleet
	t     *testing.T
	c     *client.Client
	nodes map[string]string // URL by name

	claims, cold, unsure, faults, kills atomic.Int64

	mu     sync.Mutex
	holder map[string]string // the launch that was given a VM, by the VM's id
}

// TestSoak lets clients take VMs from warm pools and delete them while nodes lose answers, refuse creates, fall silent,
// forget how to rename and reboot, and while the leader is killed five times. At the end no VM was given to two
// launches, every pool is full, no row is stuck and the nodes have exactly the VMs that the fleet knows.
// SOAK_CLAIMS says how many claims; SOAK_SEED repeats a run's choices.
func TestSoak(t *testing.T) {
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("whose process a number is can be told by /proc alone")
	}
	claims, seed := int64(150), uint64(time.Now().UnixNano())
	if n, err := strconv.ParseInt(os.Getenv("SOAK_CLAIMS"), 10, 64); err == nil {
		claims = n
	}
	if n, err := strconv.ParseUint(os.Getenv("SOAK_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%d claims, SOAK_SEED=%d", claims, seed)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(claims)*time.Second)
	defer cancel()
	s := &soak{fleet: startFleet(ctx, t, "--processes", "--replicas", "3", "--nodes", strconv.Itoa(soakNodes), "--log-level", "error"), t: t, nodes: map[string]string{}, holder: map[string]string{}}
	s.c = s.client(t)
	for _, one := range strings.Split(s.env(t, "FLUXVM_NODE_URLS"), ",") {
		name, url, _ := strings.Cut(one, "=")
		s.nodes[name] = url
	}
	pools := map[string]int{"p0": 16, "p1": 16}
	for name, wanted := range pools {
		most := 100
		if _, err := s.c.CreateImage(ctx, api.ImageRequest{Name: "img-" + name, Path: "sim:?boot_ms=20&agent_ms=20", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := s.c.CreatePool(ctx, api.PoolRequest{Name: name, Image: "img-" + name, MinReady: &wanted, MaxTotal: &most}, ""); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	over, stop := context.WithCancel(ctx)
	var clients, faults sync.WaitGroup
	for i := range 12 {
		clients.Go(func() { s.launches(ctx, i, claims, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	faults.Go(func() { s.torment(over, claims, rand.New(rand.NewPCG(seed, 1<<32))) })
	clients.Wait()
	stop()
	faults.Wait()
	took := time.Since(began)
	s.calm(ctx)
	s.settled(ctx, pools)
	s.t.Logf("%d claims, %d cold launches, %d answers repeated, %d faults and %d leader kills in %s", s.claims.Load(), s.cold.Load(), s.unsure.Load(), s.faults.Load(), s.kills.Load(), took.Round(time.Second))
	if !s.enough(claims) {
		t.Errorf("it took too long, and did too little: %v", ctx.Err())
	}
	s.interrupt(ctx, t)
}

// enough says that so much was claimed, and that there were faults meanwhile.
func (s *soak) enough(claims int64) bool {
	return s.claims.Load() >= claims && s.kills.Load() == soakKills && s.faults.Load() >= 3
}

// launches takes VMs and deletes most of them again, until all together have taken enough.
func (s *soak) launches(ctx context.Context, who int, claims int64, rng *rand.Rand) {
	for n := 0; ctx.Err() == nil && !s.enough(claims); n++ {
		name := fmt.Sprintf("c%d-%d", who, n)
		req := api.LaunchRequest{Name: name, Pool: fmt.Sprintf("p%d", rng.IntN(2))}
		answer, err := s.launch(ctx, req)
		if err != nil {
			if ctx.Err() == nil {
				s.t.Errorf("launching %s: %v", name, err)
			}
			return
		}
		if answer.Warm {
			s.claims.Add(1)
		} else {
			s.cold.Add(1)
			wait(ctx, 200*time.Millisecond) // for spares, which this is about
		}
		s.mu.Lock()
		if other := s.holder[answer.VM.ID]; other != "" {
			s.t.Errorf("VM %s was given to %s and to %s", answer.VM.ID, other, name)
		}
		s.holder[answer.VM.ID] = name
		s.mu.Unlock()
		s.insist(ctx, func() error {
			err := s.c.DeleteVM(ctx, answer.VM.ID)
			if hasCode(err, api.CodeNotFound) { // it went with its host
				return nil
			}
			return err
		})
	}
}

// launch repeats a launch under its key until it has an answer. A fleet without room for a moment is asked again.
func (s *soak) launch(ctx context.Context, req api.LaunchRequest) (answer api.LaunchAnswer, err error) {
	s.insist(ctx, func() error {
		answer, _, err = s.c.Launch(ctx, req, client.LaunchOptions{Key: "key-" + req.Name})
		if hasCode(err, api.CodeOutcomeUnknown) {
			s.unsure.Add(1)
		}
		return err
	})
	return answer, err
}

// insist repeats until it works, or is refused for a reason that does not pass.
func (s *soak) insist(ctx context.Context, do func() error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		final := hasCode(err, api.CodeInvalid) || hasCode(err, api.CodeNameTaken) || hasCode(err, api.CodeKeyReused) || hasCode(err, api.CodeNotFound) || hasCode(err, api.CodeInternal)
		if err == nil || final {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// torment does one thing after the other to nodes and kills the leader five times, spread over the claims.
func (s *soak) torment(ctx context.Context, claims int64, rng *rand.Rand) {
	for ctx.Err() == nil {
		if s.claims.Load() >= claims*(s.kills.Load()+1)/7 && s.kills.Load() < soakKills {
			s.killLeader(ctx)
			continue
		}
		name := fmt.Sprintf("node-%d", 1+rng.IntN(soakNodes))
		hold := time.Duration(100+rng.IntN(1500)) * time.Millisecond
		switch rng.IntN(6) {
		case 0:
			s.steer(ctx, name, `{"lost_replies":`+strconv.Itoa(1+rng.IntN(4))+`}`)
		case 1:
			s.fault(ctx, name, hold, `{"refuse_creates":"not now"}`, `{"refuse_creates":null}`)
		case 2:
			s.fault(ctx, name, hold, `{"freeze":true}`, `{"freeze":false}`)
		case 3:
			s.fault(ctx, name, hold, `{"rename":false}`, `{"rename":true}`)
		case 4:
			s.fault(ctx, name, hold, `{"pressure_level":"critical"}`, `{"pressure_level":"normal"}`)
		case 5:
			if rng.IntN(4) == 0 {
				s.steer(ctx, name, `{"boot_id":"boot-`+strconv.Itoa(rng.Int())+`"}`)
			}
		}
		s.faults.Add(1)
		wait(ctx, hold)
	}
}

func (s *soak) fault(ctx context.Context, node string, hold time.Duration, on, off string) {
	s.steer(ctx, node, on)
	wait(ctx, hold)
	s.steer(context.WithoutCancel(ctx), node, off)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// killLeader kills it and waits until the process that takes its place is one of three healthy replicas.
func (s *soak) killLeader(ctx context.Context) {
	cluster, err := s.c.Cluster(ctx)
	if err != nil || cluster.Leader == "" {
		return
	}
	name := strings.Replace(cluster.Leader, "central-", "replica-", 1)
	pid := s.pids()[name]
	if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		return
	}
	s.kills.Add(1)
	for ctx.Err() == nil {
		now, err := s.c.Cluster(ctx)
		healthy := 0
		for _, r := range now.Replicas {
			if r.Healthy {
				healthy++
			}
		}
		if again := s.pids()[name]; err == nil && healthy == 3 && again != 0 && again != pid {
			return
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// node asks a node's own API.
func (s *soak) node(ctx context.Context, method, name, path, body string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.nodes[name]+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.env(s.t, "FLUXVM_TOKEN"))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s of %s: %s %s %w", method, path, name, resp.Status, raw, err)
	}
	return json.Unmarshal(raw, into)
}

func (s *soak) steer(ctx context.Context, name, change string) {
	var now any
	if err := s.node(ctx, http.MethodPatch, name, "/v1/sim", change, &now); err != nil && ctx.Err() == nil {
		s.t.Errorf("steering %s: %v", name, err)
	}
}

// calm ends every fault and every VM that a client still has.
func (s *soak) calm(ctx context.Context) {
	for name := range s.nodes {
		s.steer(ctx, name, `{"lost_replies":0,"refuse_creates":null,"freeze":false,"rename":true,"pressure_level":"normal"}`)
	}
}

// settled waits until pools are full, nothing waits for a node, and each node has exactly the VMs that rows place there.
func (s *soak) settled(ctx context.Context, pools map[string]int) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	why := "nothing was looked at"
	for ctx.Err() == nil && why != "" {
		if why = s.unsettled(ctx, pools); why != "" {
			wait(ctx, 500*time.Millisecond)
		}
	}
	if why != "" {
		s.t.Errorf("in the end: %s", why)
	}
}

func (s *soak) unsettled(ctx context.Context, pools map[string]int) string {
	rows, spares := map[string]map[string]string{}, map[string]int{}
	for vm, err := range s.c.VMs(ctx, client.Filter{PageSize: 500}) {
		if err != nil {
			return err.Error()
		}
		if vm.State != api.StateRunning || vm.WarmState != "ready" {
			return fmt.Sprintf("VM %s (%s) on %s is %s, warm state %q, since %s", vm.Name, vm.ID, vm.Node, vm.State, vm.WarmState, vm.CreatedAt)
		}
		if rows[vm.Node] == nil {
			rows[vm.Node] = map[string]string{}
		}
		rows[vm.Node][vm.ID] = vm.Name
		spares[vm.WarmPool]++
	}
	for name, wanted := range pools {
		if spares[name] != wanted {
			return fmt.Sprintf("pool %s has %d spares, want %d", name, spares[name], wanted)
		}
	}
	for name := range s.nodes {
		var have api.List[api.Machine]
		if err := s.node(ctx, http.MethodGet, name, "/v1/vms?limit=500", "", &have); err != nil {
			return err.Error()
		}
		for _, m := range have.Items {
			if rows[name][m.ID] != m.Name {
				return fmt.Sprintf("%s has VM %s (%s, %s), which the fleet knows as %q", name, m.ID, m.Name, m.State, rows[name][m.ID])
			}
			delete(rows[name], m.ID)
		}
		if len(rows[name]) > 0 {
			return fmt.Sprintf("%s lacks %v", name, rows[name])
		}
	}
	return ""
}

func hasCode(err error, code api.Code) bool {
	var refused *api.Error
	return err != nil && errors.As(err, &refused) && refused.Code == code
}
