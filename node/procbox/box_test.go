//go:build linux

package procbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// The contract, held at compile time.
var (
	_ machine.Driver  = (*Driver)(nil)
	_ machine.Claimer = (*box)(nil)
	_ machine.Grouped = (*box)(nil)
	_ machine.Renewer = (*box)(nil)
)

// daemonEnv makes this program a daemon that starts the box described there and then does nothing more.
const daemonEnv = "FLUXVM_TEST_DAEMON"

// agentPath is fluxvm-guest, built once.
var agentPath string

func TestMain(m *testing.M) {
	if described := os.Getenv(daemonEnv); described != "" {
		fmt.Println(daemon(described))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "fluxvm-agent-")
	if err != nil {
		panic(err)
	}
	agentPath = filepath.Join(dir, agentProgram)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", agentPath, "../../cmd/fluxvm-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building %s: %v\n%s", agentProgram, err, out)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(os.RemoveAll(dir), goleak.Find()); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// daemon starts the box, says so, and waits to be killed.
func daemon(described string) error {
	var start struct {
		Spec       machine.Spec
		Dir, Agent string
	}
	if err := json.Unmarshal([]byte(described), &start); err != nil {
		return err
	}
	if _, err := New(Config{Agent: start.Agent}).Start(context.Background(), start.Spec, start.Dir); err != nil {
		return err
	}
	fmt.Println("started")
	select {}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// testDriver is a driver that can run boxes here, or skips the test loudly.
func testDriver(t testing.TB) *Driver {
	t.Helper()
	d := New(Config{Agent: agentPath, Logger: hclog.New(&hclog.LoggerOptions{Output: testLog{t}, Level: hclog.Debug})})
	if err := d.Ready(within(t)); err != nil {
		t.Skipf("SKIPPED, no box was run: %v", err)
	}
	return d
}

func testSpec() machine.Spec {
	return machine.Spec{MachineRequest: api.MachineRequest{ID: uuid.NewString(), Name: "box-1", Backend: api.BackendProcbox, MemoryMiB: 128}}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// started builds the box, waits for its agent, and sees to its end.
func started(t testing.TB, d *Driver, spec machine.Spec, dir string) machine.Machine {
	t.Helper()
	m, err := d.Start(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Release()
		if err := d.Remove(spec, dir); err != nil {
			t.Error(err)
		}
	})
	awaitAgent(t, m)
	return m
}

func awaitAgent(t testing.TB, m machine.Machine) {
	t.Helper()
	ctx := within(t)
	for {
		err := m.Ping(ctx)
		if err == nil {
			return
		}
		select {
		case <-m.Done():
			t.Fatalf("the box has ended: %v", m.Err())
		case <-ctx.Done():
			console, _ := m.Console(4096)
			t.Fatalf("no agent answered: %v; console:\n%s", err, console)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func shell(t testing.TB, m machine.Machine, script string) string {
	t.Helper()
	got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", script}})
	if err != nil || got.ExitCode != 0 {
		t.Fatalf("running %q: %+v, %v", script, got, err)
	}
	return strings.TrimSpace(got.Stdout)
}

func awaitDone(t *testing.T, m machine.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-within(t).Done():
		t.Fatal("the box does not end")
	}
}

func TestABoxIsASystemOfItsOwn(t *testing.T) {
	d := testDriver(t)
	spec := testSpec()
	// Deeper than a socket's path may be long, and below a directory that only the daemon may enter.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 20), spec.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m := started(t, d, spec, dir)
	t.Logf("the agent answers after %s", time.Since(began).Round(time.Millisecond))

	for script, want := range map[string]string{
		"hostname; id -u; cat /etc/hostname":                                                                        "box-1\n0\nbox-1",
		"ls /proc | grep -c '^[0-9]'; cat /proc/1/comm":                                                             "", // looked at below
		"tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '":                                                        "lo",
		"grep -E '^(CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status | cut -f2 | sort -u | tr '\\n' ' '":  "0000000000000000 1",
		"unshare -U true 2>/dev/null && echo more || echo none":                                                     "none",
		"mount -t tmpfs x /tmp 2>/dev/null && echo may || echo no":                                                  "no",
		"touch /usr/x 2>/dev/null && echo may || echo no":                                                           "no",
		"hostname other 2>/dev/null && echo may || echo no":                                                         "no",
		"echo 1 >/proc/sys/vm/drop_caches && echo may || echo no":                                                   "no",
		"kill -0 2 2>/dev/null; cat /proc/2/environ 2>/dev/null | wc -c; ls /proc/1/fd 2>&1 | grep -c denied; true": "",
		"ls " + dir + " >/dev/null 2>&1 && echo seen || echo no":                                                    "no",
		"ls -d /home/* /root/.* /etc/shadow /var/lib 2>/dev/null | grep -v '/\\.\\.\\?$' | wc -l":                   "0",
		"echo kept > /root/kept; cat /root/kept":                                                                    "kept",
	} {
		got := shell(t, m, script)
		if want != "" && got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	if n := shell(t, m, "ls /proc | grep -c '^[0-9]'"); len(n) != 1 {
		t.Errorf("%s processes are seen from within, want a handful", n)
	}
	if said := shell(t, m, "cat /proc/1/environ /proc/2/environ 2>&1 | grep -c denied"); said != "2" {
		t.Errorf("%s of process 1 and the agent are out of a command's reach, want both", said)
	}
	claimer := m.(machine.Claimer)
	if !claimer.CanClaim() {
		t.Fatal("the box takes no claims")
	}
	var claim api.GuestClaim
	claim.Hostname, claim.Env, claim.Secrets = "taken", map[string]string{"STAGE": "test"}, map[string]string{"TOKEN": "s3cret"}
	if err := claimer.Claim(within(t), claim); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, m, `hostname; echo $STAGE; cat /run/fluxvm/secrets/TOKEN`); got != "taken\ntest\ns3cret" {
		t.Errorf("after the claim: got %q", got)
	}

	if told := d.Confinement(); slices.Contains(told, api.ConfinedByUser) != (os.Geteuid() == 0) || !slices.Contains(told, "cgroup_memory") {
		t.Errorf("it is told to be confined by %q", told)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		user := fmt.Sprint(process.UserOf(spec.ID))
		if want := "Uid:\t" + strings.Join([]string{user, user, user, user}, "\t"); !strings.Contains(string(status), want) || !strings.Contains(string(status), "Groups:\t \n") {
			t.Errorf("want a user of its own, %s, and no groups; got\n%s", user, status)
		}
	}
	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if err := m.Err(); err != nil {
		t.Errorf("after a clean stop: %v", err)
	}
	if console, _ := m.Console(1 << 10); !strings.Contains(string(console), "has shut down") {
		t.Errorf("the console says %q", console)
	}
	if _, err := d.Adopt(within(t), spec, dir); !errors.Is(err, machine.ErrGone) {
		t.Errorf("adopting what has ended: got %v, want ErrGone", err)
	}
	if _, err := os.Stat(filepath.Join(dir, groupFile)); !os.IsNotExist(err) {
		t.Errorf("the control group was not removed: %v", err)
	}
}

func TestABoxIsBoundedAndItsProcessesAreCounted(t *testing.T) {
	d := testDriver(t)
	spec, dir := testSpec(), t.TempDir()
	spec.MemoryMiB = 64
	m := started(t, d, spec, dir)
	got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", "head -c 200000000 /dev/zero | tail -c 190000000 >/dev/null"}})
	if err != nil || got.ExitCode == 0 {
		t.Errorf("190 MB in a box of 64 MiB: %+v, %v", got, err)
	}
	awaitAgent(t, m)
	if got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", "head -c 100000000 /dev/zero > /root/big"}}); err != nil || got.ExitCode == 0 {
		t.Errorf("a file of 100 MB: %+v, %v", got, err)
	}
	shell(t, m, "rm -f /root/big")
	before, err := m.(machine.Grouped).PIDs()
	if err != nil || !slices.Contains(before, m.PID()) {
		t.Fatalf("got %v, %v; want process %d among them", before, err, m.PID())
	}
	if _, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", "sleep 1000 & (setsid sleep 1000 &); wait"}, Detach: true}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		pids, err := m.(machine.Grouped).PIDs()
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) >= len(before)+3 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes and %d before, want three more", len(pids), len(before))
		}
	}
	pids, _ := m.(machine.Grouped).PIDs()
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if process.HasArgument(pid, "sleep", "1000") {
			t.Errorf("process %d outlived its box", pid)
		}
	}
}

func TestABoxIsHaltedAndGoesOn(t *testing.T) {
	d := testDriver(t)
	spec, dir := testSpec(), t.TempDir()
	m := started(t, d, spec, dir)
	shell(t, m, "(while :; do echo x >>/root/ticks; sleep 0.01; done) >/dev/null 2>&1 &")
	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("a halted box: got %v, want ErrNoAgent", err)
	}
	m.Release()
	m, err := testDriver(t).Adopt(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	if err := m.Ping(within(t)); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("halted, and taken over: got %v, want ErrNoAgent", err)
	}
	if err := m.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	awaitAgent(t, m)
	shell(t, m, "a=$(wc -l </root/ticks); until [ $(wc -l </root/ticks) -gt $a ]; do sleep 0.01; done")
	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Errorf("ending a halted box: %v", err)
	}
}

func TestABoxOutlivesADaemonThatIsKilled(t *testing.T) {
	d := testDriver(t)
	spec, dir := testSpec(), t.TempDir()
	described, err := json.Marshal(map[string]any{"Spec": spec, "Dir": dir, "Agent": agentPath})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(described))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if said != "started\n" {
		t.Fatalf("the daemon said %q, %v", said, err)
	}
	m, err := d.Adopt(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Release()
		if err := d.Remove(spec, dir); err != nil {
			t.Error(err)
		}
	})
	awaitAgent(t, m)
	if got := shell(t, m, "hostname"); got != spec.Name {
		t.Errorf("got %q", got)
	}
	p, err := process.Open(m.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if m.Err() == nil || m.PID() != 0 {
		t.Errorf("a box that was killed: %v, process %d", m.Err(), m.PID())
	}
}

func TestAnImageIsSeenReadOnlyWithAnEtcOfItsOwn(t *testing.T) {
	d := testDriver(t)
	image := t.TempDir()
	if err := os.Chmod(image, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+link, filepath.Join(image, link)); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(agentPath) // something static
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{"usr/bin/tool": raw, "etc/issue": []byte("ours\n"), "opt/app/data": []byte("data\n")} {
		at := filepath.Join(image, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec, dir := testSpec(), t.TempDir()
	spec.Image = image
	if err := d.Check(spec); err != nil {
		t.Fatal(err)
	}
	m := started(t, d, spec, dir)
	if got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", "true"}}); err != nil || got.ExitCode != 127 {
		t.Errorf("the host's shell is there, or something else went wrong: %+v, %v", got, err)
	}
	if got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/usr/bin/tool", "no-such-word"}}); err != nil || got.ExitCode != 2 || !strings.Contains(got.Stderr, "the agent inside") {
		t.Errorf("the image's own program: %+v, %v", got, err)
	}
	root := fmt.Sprintf("/proc/%d/root", m.PID())
	for path, want := range map[string]string{"etc/issue": "ours\n", "opt/app/data": "data\n"} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != want {
			t.Errorf("%s in the box: %q, %v; want the image's", path, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "opt/app/data"), nil, 0o600); err == nil {
		t.Error("the image can be written to from within the box")
	}
}

func TestCheckNamesWhatABoxCannotBe(t *testing.T) {
	d := New(Config{})
	for field, change := range map[string]func(*machine.Spec){
		"":             func(s *machine.Spec) { s.Image = "host" },
		"guest_os":     func(s *machine.Spec) { s.GuestOS = "macos" },
		"apple":        func(s *machine.Spec) { s.Apple = &api.Apple{} },
		"cloud_init":   func(s *machine.Spec) { s.CloudInit = &api.CloudInit{} },
		"networks":     func(s *machine.Spec) { s.Networks = []api.NetworkRef{{Name: "lab"}} },
		"network.mode": func(s *machine.Spec) { s.Network = &api.Network{Mode: "nat"} },
		"network.forwards": func(s *machine.Spec) {
			s.Network = &api.Network{Forwards: []api.PortForward{{HostPort: 1, GuestPort: 1}}}
		},
		"disk_size_gib":    func(s *machine.Spec) { s.DiskSizeGiB = 1 },
		"extra_disks":      func(s *machine.Spec) { s.ExtraDisks = []api.ExtraDisk{{SizeGiB: 1}} },
		"security_profile": func(s *machine.Spec) { s.SecurityProfile = "measured" },
		"balloon":          func(s *machine.Spec) { s.Balloon = &api.BalloonDevice{} },
		"hugepages":        func(s *machine.Spec) { s.Hugepages = true },
		"vfio_devices":     func(s *machine.Spec) { s.VFIODevices = []string{"0000:01:00.0"} },
		"memory_mib":       func(s *machine.Spec) { s.MemoryMiB = 16 },
		"image":            func(s *machine.Spec) { s.Image = "/no/such/root" },
	} {
		spec := testSpec()
		change(&spec)
		err := d.Check(spec)
		var refusal *api.Error
		if field == "" && err != nil || field != "" && (!errors.As(err, &refusal) || refusal.Field != field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestReadySaysWhatIsMissing(t *testing.T) {
	if err := New(Config{Agent: "/no/such/agent"}).Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "fluxvm-guest") && !strings.Contains(err.Error(), "control groups") {
		t.Errorf("got %v", err)
	}
}
