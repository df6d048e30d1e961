package fleettest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// partEnv holds the part that this program plays, when it was started to be a process of a large fleet.
const partEnv = "FLEETTEST_PART"

// part is one process: a replica, or a number of simulated nodes.
type part struct {
	Token    string
	Name     string // of a replica; empty for nodes
	Raw      bool   // the replica is the baseline's: a log with nothing behind it
	Bare     bool   // it is the baseline of lists: a handler that serves the pages in Dir
	Profile  string // file for a profile of the processor time of the part's whole life
	Listen   string
	Cluster  string
	Dir      string
	Initial  []consensus.Server
	Replicas []string // nodes report to these
	From, To int      // the numbers of the nodes
}

// play runs the part until SIGTERM, or until who started it is gone.
func play(raw string) error {
	var p part
	if err := json.Unmarshal([]byte(raw), &p); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // nothing is ever written
		stop()
	}()
	if p.Profile != "" {
		file, err := os.Create(p.Profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if p.Bare {
		return playBare(ctx, p)
	}
	if p.Name == "" {
		return playNodes(ctx, p)
	}
	listener, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return err
	}
	cluster, err := net.Listen("tcp", p.Cluster)
	if err != nil {
		return err
	}
	if p.Raw {
		return playRaw(ctx, p, listener, cluster)
	}
	r, err := central.New(central.Config{Name: p.Name, Listener: listener, Cluster: cluster, DataDir: p.Dir, Bootstrap: true, Initial: p.Initial, OperatorToken: p.Token, ElectionTimeout: 2 * time.Second,
		Exit: func(code int, why string) {
			fmt.Fprintf(os.Stderr, "         %s ends with %d: %s\n", p.Name, code, why)
			os.Exit(code)
		}})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// scaleNode is a host that runs nothing: what it is told to make runs at once, and it reports as a daemon does.
type scaleNode struct {
	report api.Register
	client *http.Client

	mu      sync.Mutex
	vms     map[string]api.ReportedVM
	changes int // of vms
}

// playNodes plays nodes, each at an address of its own, as central wants it.
func playNodes(ctx context.Context, p part) error {
	var beating sync.WaitGroup
	for i := p.From; i < p.To; i++ {
		name := fmt.Sprintf("scale-%05d", i)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		n := &scaleNode{client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}, vms: map[string]api.ReportedVM{}}
		n.report = api.Register{Name: name, UUID: fmt.Sprintf("0198c0de-0000-7000-8000-%012d", i), BootID: "boot", Instance: name, URL: "http://" + listener.Addr().String(),
			Backends: []string{api.BackendSim}, Capabilities: api.Capabilities{Rename: true}, VCPUsTotal: 64, MemoryMiBTotal: 65536, CPUOvercommit: 8, Labels: map[string]string{"host": name, "zone": fmt.Sprint("z", i%10)},
			Images: []string{}, Credential: "fvn_secret-of-" + name, Density: api.Density{HostMemAvailableMiB: 60_000}}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			parts := strings.Split(req.URL.Path, "/") // "" v1 vms ID
			n.serve(w, req, parts[len(parts)-1])
		})}
		beating.Go(func() { _ = server.Serve(listener) }) // it says that it was closed
		beating.Go(func() { <-ctx.Done(); server.Close() })
		for _, url := range p.Replicas {
			beating.Go(func() { n.beat(ctx, url, p.Token) })
		}
	}
	beating.Wait()
	return nil
}

// beat reports to one replica, at the times that it is told. What did not change is not written anew: on one machine the
// hosts must not cost more than the replicas that are measured.
func (n *scaleNode) beat(ctx context.Context, url, token string) {
	acked, digest, seen, body := "", "", -1, []byte(nil)
	for ctx.Err() == nil {
		if n.mu.Lock(); body == nil || n.changes != seen {
			seen = n.changes
			digest, body = n.encode(acked)
		}
		n.mu.Unlock()
		next := time.Second
		var answer api.RegisterAnswer
		if err := n.post(ctx, url+"/fleet/register", token, body, &answer); err == nil {
			if answer.WantVMs {
				digest, next = "", 0
			} else {
				next = time.Duration(answer.NextInMS) * time.Millisecond
			}
			if acked != digest {
				acked, body = digest, nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// encode is the report, with the VMs unless the replica has just them. n.mu is held.
func (n *scaleNode) encode(acked string) (digest string, body []byte) {
	report := n.report
	report.VMs = slices.SortedFunc(maps.Values(n.vms), func(a, b api.ReportedVM) int { return cmp.Compare(a.ID, b.ID) })
	raw, _ := json.Marshal(report.VMs) // plain values
	sum := sha256.Sum256(raw)
	report.VMsDigest, report.VMCount, report.HasVMs = hex.EncodeToString(sum[:16]), len(report.VMs), true
	if report.VMsDigest == acked {
		report.VMs, report.HasVMs = nil, false
	}
	body, _ = json.Marshal(report)
	return report.VMsDigest, body
}

func (n *scaleNode) post(ctx context.Context, url, token string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %w", resp.Status, err)
	}
	return json.Unmarshal(raw, out)
}

func (n *scaleNode) serve(w http.ResponseWriter, req *http.Request, id string) {
	var spec api.MachineRequest
	if req.Method == http.MethodPost && json.NewDecoder(req.Body).Decode(&spec) == nil {
		n.mu.Lock()
		n.changes++
		n.vms[spec.ID] = api.ReportedVM{ID: spec.ID, Name: spec.Name, State: api.StateRunning, VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, Agent: true, Cluster: spec.Labels[api.LabelCluster]}
		n.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(api.Machine{ID: spec.ID, Name: spec.Name, State: api.StateRunning, Agent: true})
		return
	}
	if req.Method == http.MethodDelete {
		n.mu.Lock()
		n.changes++
		delete(n.vms, id)
		n.mu.Unlock()
	}
	var patch api.MachinePatch
	if req.Method == http.MethodPatch && json.NewDecoder(req.Body).Decode(&patch) == nil {
		n.mu.Lock()
		vm := n.vms[id]
		if patch.Name.Set {
			vm.Name = patch.Name.V
		}
		n.changes++
		n.vms[id] = vm
		n.mu.Unlock()
		_ = json.NewEncoder(w).Encode(api.Machine{ID: id, Name: vm.Name, State: vm.State, Agent: vm.Agent})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// scale is a large fleet: three replicas and many simulated nodes, as processes.
type scale struct {
	t      *testing.T
	ctx    context.Context
	client *client.Client
	token  string
	dir    string // of the replicas' data
	raw    bool   // replicas are the baseline's
	urls   []string
	parts  map[string]*process // replicas by their URLs
	roles  map[string]part     // what they play
	fail   context.CancelCauseFunc
}

// process is a part that runs.
type process struct {
	*exec.Cmd
	asked atomic.Bool   // to end
	ended chan struct{} // it has
}

// end lets the process end by what is called for, and waits for it.
func (p *process) end(by func() error) {
	p.asked.Store(true)
	_ = by() // it may have ended
	<-p.ended
}

// start runs a part. One that ends without being asked to ends whatever waits for it: fail says why.
func (s *scale) start(p part) *process {
	s.t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		s.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), partEnv+"="+string(raw))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it closes with this process, however that ends
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	out := &process{Cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(out.ended)
		if err := cmd.Wait(); !out.asked.Load() && s.fail != nil {
			s.fail(fmt.Errorf("%s ended by itself (%v); what it said of that is above. Has the disk room, and is nobody else at its ports?", cmp.Or(p.Name, "a part"), err))
		}
	}()
	s.t.Cleanup(func() {
		by := cmd.Process.Kill
		if p.Profile != "" {
			by = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		}
		out.end(by)
	})
	return out
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// nodesAPart is how many simulated nodes one process plays: each has three connections.
const nodesAPart = 1000

// TestAFleetAtScale is small in the quick lane. make scale NODES=… VMS=… makes it large, and shows what it measures.
func TestAFleetAtScale(t *testing.T) {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	nodes, vms := number("FLUXVM_SCALE_NODES", 50), number("FLUXVM_SCALE_VMS", 100)
	limited, cancel := context.WithTimeout(t.Context(), time.Duration(number("FLUXVM_SCALE_MINUTES", 20))*time.Minute)
	defer cancel()
	ctx, fail := context.WithCancelCause(limited)
	defer fail(nil)
	s := &scale{t: t, ctx: ctx, fail: fail, token: central.NewToken("fvx_op_"), dir: t.TempDir(), parts: map[string]*process{}}
	s.startReplicas()
	eventually(ctx, t, "for the cluster", func() bool { _, err := s.client.Capacity(ctx); return err == nil })
	if _, err := s.client.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?tiny", VCPUs: 1, MemoryMiB: 512, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	measured := map[int]bool{}
	for from := 0; from < nodes; {
		to := min(from+nodesAPart, nodes)
		if from == 0 && nodes > 10 {
			to = 10
		}
		s.start(part{Token: s.token, Replicas: s.urls, From: from, To: to})
		s.tell(fmt.Sprintf("of %d nodes healthy", to), func() (int, bool) {
			c, err := s.client.Capacity(ctx)
			return c.Healthy, err == nil && c.Healthy == to
		})
		s.launch(from*vms/nodes, to*vms/nodes, nodes, vms)
		if from = to; !measured[to] && (to == 10 || to == 1000 || to == nodes) {
			measured[to] = true
			t.Logf("%6d nodes: a launch that may go anywhere takes %s", to, s.placement())
		}
	}
	t.Logf("%6d nodes with %d VMs after %s", nodes, vms, time.Since(began).Round(time.Second))
	s.idle(nodes)
	s.failover(nodes)
}

func (s *scale) startReplicas() {
	s.t.Helper()
	var initial []consensus.Server
	var listen []string
	for i := range 3 {
		initial = append(initial, consensus.Server{Name: fmt.Sprint("central-", i+1), Addr: freeAddr(s.t)})
		listen = append(listen, freeAddr(s.t))
		s.urls = append(s.urls, "http://"+listen[i])
	}
	s.roles = map[string]part{}
	for i, one := range initial {
		s.roles[s.urls[i]] = part{Token: s.token, Name: one.Name, Listen: listen[i], Cluster: one.Addr, Dir: filepath.Join(s.dir, one.Name), Initial: initial, Raw: s.raw, Profile: s.profile(one.Name)}
		s.parts[s.urls[i]] = s.start(s.roles[s.urls[i]])
	}
	var err error
	if s.client, err = client.New(client.Config{Endpoints: s.urls, Token: s.token}); err != nil {
		s.t.Fatal(err)
	}
}

// profile names the file for a part's profile, where FLUXVM_BENCH_PROFILES names a directory; else it is empty.
func (s *scale) profile(part string) string {
	dir := os.Getenv("FLUXVM_BENCH_PROFILES")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, filepath.Base(s.dir)+"-"+part+".pprof")
}

// launch makes the VMs with the given numbers, each on its node.
func (s *scale) launch(from, to, nodes, vms int) {
	s.t.Helper()
	next := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range next {
				_, _, err := s.client.Launch(s.ctx, api.LaunchRequest{Name: fmt.Sprint("vm-", i), Image: "tiny", Node: fmt.Sprintf("scale-%05d", i*nodes/vms)}, client.LaunchOptions{})
				if err != nil && s.ctx.Err() == nil {
					s.t.Errorf("launching VM %d: %v", i, err)
				}
			}
		})
	}
	said := time.Now()
	for i := from; i < to && !s.t.Failed(); i++ {
		next <- i
		if time.Since(said) > progressEvery {
			said = time.Now()
			s.t.Logf("         %d of %d VMs launched", i, to)
		}
	}
	close(next)
	workers.Wait()
}

// progressEvery is how often a step that takes long says how far it is.
const progressEvery = 10 * time.Second

// tell waits for a step and says now and then how far it is.
func (s *scale) tell(what string, far func() (int, bool)) {
	s.t.Helper()
	said := time.Now()
	eventually(s.ctx, s.t, what, func() bool {
		n, done := far()
		if !done && time.Since(said) > progressEvery {
			said = time.Now()
			s.t.Logf("         %d %s", n, what)
		}
		if !done {
			pauseFor(s.ctx, 200*time.Millisecond) // asking costs the leader more the larger the fleet is
		}
		return done
	})
}

// placement is the median time of a launch that ranks all hosts, from the request to the answer: it is committed and
// the host has carried the order out by then.
func (s *scale) placement() time.Duration {
	s.t.Helper()
	var took []time.Duration
	for range 15 {
		began := time.Now()
		if _, _, err := s.client.Launch(s.ctx, api.LaunchRequest{Image: "tiny"}, client.LaunchOptions{}); err != nil {
			s.t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2].Round(10 * time.Microsecond)
}

func (s *scale) leader() string {
	s.t.Helper()
	name := ""
	eventually(s.ctx, s.t, "for a leader", func() bool {
		c, err := s.client.Cluster(s.ctx)
		for _, r := range c.Replicas {
			if err == nil && r.Role == "leader" {
				name = r.URL
			}
		}
		return name != ""
	})
	return name
}

// commands is how many commands a replica has carried out.
func (s *scale) commands(url string) float64 {
	s.t.Helper()
	return s.metric(url, "fluxvm_commands_applied_total")
}

// metric is what a replica shows under that name.
func (s *scale) metric(url, name string) (n float64) {
	s.t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "\n"+name+" ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// used is the processor time and the memory that a process has taken.
func (s *scale) used(cmd *process) (cpu time.Duration, rssKiB int) {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	stat, err1 := os.ReadFile(dir + "stat")
	status, err2 := os.ReadFile(dir + "status")
	if err1 != nil || err2 != nil {
		return 0, 0 // no such files on this system
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	_, _ = fmt.Sscan(rest, &rssKiB)
	return time.Duration(user+system) * 10 * time.Millisecond, rssKiB // the kernel counts in hundredths of a second
}

// idle lets the nodes beat for a while and holds the log to staying as it is.
func (s *scale) idle(nodes int) {
	s.t.Helper()
	leader := s.leader()
	settled := s.commands(leader)
	eventually(s.ctx, s.t, "for what was launched to be recorded", func() bool {
		was := settled
		settled = s.commands(leader)
		pauseFor(s.ctx, 12*time.Second) // every node has reported once more
		return settled == was
	})
	entries := 0.0
	for range 3 { // what beats make, they make each time; a host that a busy machine kept silent makes an entry once
		before, _ := s.used(s.parts[leader])
		began := time.Now()
		pauseFor(s.ctx, 22*time.Second) // every node reports twice
		after, rss := s.used(s.parts[leader])
		share := float64(after-before) / float64(time.Since(began))
		now := s.commands(leader)
		entries, settled = now-settled, now
		s.t.Logf("%6d idle nodes: the leader takes %.1f %% of a core (%.1f µs a second and node) and %d MiB (%d KiB a node); beats made %.0f log entries",
			nodes, 100*share, 1e6*share/float64(nodes), rss/1024, rss/nodes, entries)
		if entries == 0 {
			return
		}
	}
	s.t.Errorf("%.0f log entries in an idle fleet, want none", entries)
}

// failover kills the leader and waits until the next one has heard every node.
func (s *scale) failover(nodes int) {
	s.t.Helper()
	killed := api.TimeOf(time.Now())
	dead := s.parts[s.leader()]
	dead.end(dead.Process.Kill)
	s.tell(fmt.Sprintf("of %d nodes confirmed by the next leader", nodes), func() (int, bool) {
		heard := 0
		for n, err := range s.client.Nodes(s.ctx, client.Filter{}) {
			if err != nil {
				return heard, false
			}
			if n.State == api.NodeHealthy && n.LastSeenAt > killed {
				heard++
			}
		}
		return heard, heard == nodes
	})
	s.t.Logf("%6d nodes: all confirmed %s after the leader was killed", nodes, api.TimeOf(time.Now()).Sub(killed).Round(100*time.Millisecond))
	for a, err := range s.client.Activity(s.ctx, client.ActivityFilter{}) {
		if err != nil {
			s.t.Fatal(err)
		}
		if a.At < killed {
			break
		}
		if strings.HasPrefix(a.Action, "node ") {
			s.t.Errorf("the change of leader made %s: %s", a.Target, a.Action)
		}
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
