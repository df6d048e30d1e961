package service

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestUnitsAreWhatSystemdTakes(t *testing.T) {
	for _, role := range []string{roleNode, roleCentral} {
		p := place{role: role, program: "/bin/true", config: "/etc/my/" + role + ".toml"}
		text, err := p.text()
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"ExecStart=/bin/true " + role + " --config /etc/my/" + role + ".toml --data /var/lib/fluxvm/" + role, "Type=notify", "WatchdogSec=60", "RestartPreventExitStatus=78 79"} {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("%s lacks %q", role, line)
			}
		}
		if node := role == roleNode; strings.Contains(text, "\nKillMode=process\n") != node || strings.Contains(text, "\nDelegate=yes\n") != node {
			t.Errorf("%s: VMs must outlive the daemon, and nothing else has to", role)
		}
		t.Run(role+" verified", func(t *testing.T) {
			if _, err := exec.LookPath("systemd-analyze"); err != nil {
				t.Skip("there is no systemd-analyze")
			}
			path := filepath.Join(t.TempDir(), p.label())
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
			for line := range strings.Lines(string(out)) {
				// Others' units, and keys of newer versions, which the unit says are not known to older ones.
				if strings.Contains(line, p.label()) && !strings.Contains(line, "RestartSteps") && !strings.Contains(line, "RestartMaxDelaySec") {
					t.Errorf("systemd-analyze: %s", line)
				}
			}
			if err != nil && len(out) == 0 {
				t.Error(err)
			}
		})
	}
	bad := place{role: roleNode, program: "/a b", config: "/c"}
	if _, err := bad.text(); err == nil {
		t.Error("a path is taken that systemd would cut in two")
	}
}

func TestLaunchAgentsAreWellFormedAndFilledIn(t *testing.T) {
	p := place{role: roleNode, mac: true, program: "/opt/a & b/fluxvm-agent", config: "/Users/ci/node.toml", home: "/Users/ci", uid: 501}
	text, err := p.text()
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if chars, ok := token.(xml.CharData); ok && strings.TrimSpace(string(chars)) != "" {
			words = append(words, string(chars))
		}
	}
	all := strings.Join(words, "\n")
	for _, want := range []string{"/opt/a & b/fluxvm-agent\nnode\n--config\n/Users/ci/node.toml", "AbandonProcessGroup", "/Users/ci/Library/Logs/fluxvm-node.log", "dev.fluxvm.node"} {
		if !strings.Contains(all, want) {
			t.Errorf("the property list lacks %q; it holds %q", want, words)
		}
	}
	if strings.Contains(all, "PROGRAM") || strings.Contains(all, "CONFIG") {
		t.Error("something was not filled in")
	}
	if p.path() != "/Users/ci/Library/LaunchAgents/dev.fluxvm.node.plist" || strings.Join(p.start()[0], " ") != "launchctl bootstrap gui/501 "+p.path() {
		t.Errorf("got %s and %q", p.path(), p.start())
	}
	p.role = roleCentral
	if _, err := p.text(); err == nil {
		t.Error("macOS has no service central, and none is refused")
	}
}

func TestAServiceThatCouldNotStartIsRefusedWithTheFlagToSet(t *testing.T) {
	c := Command()
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SetArgs([]string{"install", "node", "--program", filepath.Join(t.TempDir(), "none"), "--config", os.Args[0]})
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "--program") {
		t.Errorf("got %v", err)
	}
	c.SetArgs([]string{"install", "replica"})
	if err := c.Execute(); err == nil {
		t.Error("an unknown role is taken")
	}
	var out strings.Builder
	c.SetOut(&out)
	c.SetArgs([]string{"install", "node", "--print", "--program", "/x/agent", "--config", "/x/node.toml"})
	if err := c.Execute(); err != nil || !strings.Contains(out.String(), "/x/agent") || !strings.Contains(out.String(), "/x/node.toml") {
		t.Errorf("got %v and %s", err, &out)
	}
}

func TestAServiceIsInstalledShownAndTakenAwayBelowARoot(t *testing.T) {
	if _, err := exec.LookPath("systemctl"); err != nil || runtime.GOOS != "linux" {
		t.Skip("there is no systemctl")
	}
	root := t.TempDir()
	run := func(args ...string) (string, error) {
		c := Command()
		var out strings.Builder
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage = true
		c.SetArgs(append(args, "--root", root))
		err := c.Execute()
		return out.String(), err
	}
	if _, err := run("install", "node"); err == nil || !strings.Contains(err.Error(), filepath.Join(root, "usr/bin/fluxvm-agent")) && !strings.Contains(err.Error(), filepath.Join(root, "etc/fluxvm/node.toml")) {
		t.Errorf("got %v for a system without the program", err)
	}
	for name, mode := range map[string]os.FileMode{"usr/bin/fluxvm-agent": 0o755, "etc/fluxvm/node.toml": 0o644, "etc/fluxvm/central.toml": 0o644} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []string{roleNode, roleCentral} {
		unit, wanted := filepath.Join(root, "etc/systemd/system/fluxvm-"+role+".service"), filepath.Join(root, "etc/systemd/system/multi-user.target.wants/fluxvm-"+role+".service")
		if out, err := run("status", role); err == nil {
			t.Errorf("%s is a service before it was made one: %s", role, out)
		}
		for range 2 { // a repeat changes nothing
			if out, err := run("install", role); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if text, err := os.ReadFile(unit); err != nil || !strings.Contains(string(text), "\nExecStart=/usr/bin/fluxvm-agent "+role+" --config /etc/fluxvm/"+role+".toml ") {
			t.Errorf("got %v and %s", err, text)
		}
		if _, err := os.Lstat(wanted); err != nil {
			t.Errorf("it does not start at boot: %v", err)
		}
		if out, err := run("status", role); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if out, err := run("uninstall", role); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		for _, path := range []string{unit, wanted} {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
		if _, err := run("uninstall", role); err == nil {
			t.Errorf("%s is taken away twice", role)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "etc/fluxvm/node.toml")); err != nil {
		t.Errorf("the configuration is gone with the service: %v", err)
	}
}

// The launchctl of this test keeps what is loaded in a file, ends a service only when it was asked twice whether it is gone,
// and takes no second one of a name, as launchd does.
const fakeLaunchctl = `#!/bin/sh
cd "$(dirname "$0")"
echo "$1" >> said
case $1 in
bootstrap) test ! -e loaded || { echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; }; touch loaded ;;
bootout) touch ending ;;
print)
  if test -e ending2; then rm -f loaded ending ending2; fi
  if test -e ending; then touch ending2; fi
  test -e loaded ;;
esac
`

func TestAServiceOfAMacIsMadeAnewWhereItIsAlready(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "launchctl"), []byte(fakeLaunchctl), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	p := place{role: roleNode, mac: true, program: "/x/agent", config: "/x/node.toml", home: t.TempDir(), uid: 501}
	for range 2 {
		if err := errors.Join(p.makeRoom(t.Context()), p.write(), carryOut(p.start())); err != nil {
			t.Fatal(err)
		}
	}
	said, err := os.ReadFile(filepath.Join(bin, "said"))
	if want := "print bootstrap print bootout print print bootstrap "; err != nil || strings.ReplaceAll(string(said), "\n", " ") != want {
		t.Errorf("launchd was told %q (%v), want %q", said, err, want)
	}
	if err := carryOut(p.start()); err == nil {
		t.Error("a second service of the name is taken; the test proves nothing")
	}
}

// systemd is the other end of the socket.
func systemd(t *testing.T) (socket string, next func() string) {
	socket = filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return socket, func() string {
		t.Helper()
		word := make([]byte, 100)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(word)
		if err != nil {
			t.Fatal(err)
		}
		return string(word[:n])
	}
}

func TestSystemdHearsReadyOnceTheAPIAnswersAndThenTheWatchdog(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 100)
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case asked <- struct{}{}:
				default:
				}
				if r.URL.Path != "/healthz" {
					http.NotFound(w, r)
				}
			})
			server := httptest.NewUnstartedServer(handler)
			addr := server.Listener.Addr().String()
			socket, next := systemd(t)
			env := map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "30000"}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				Notify(ctx, addr, secure, func(k string) string { return env[k] })
			}()
			if secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
				if got := next(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			cancel()
			<-ended
			if !secure && len(asked) < 3 {
				t.Errorf("the API was asked %d times", len(asked))
			}
		})
	}
}

func TestWithoutSystemdNothingIsTold(t *testing.T) {
	Notify(t.Context(), "127.0.0.1:1", false, func(string) string { return "" }) // returns at once
	for addr, want := range map[string]string{"0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "10.0.0.1:1": "10.0.0.1:1"} {
		if got := reachable(addr); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}
