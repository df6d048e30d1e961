package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
	"github.com/fluxvm/fluxvm/pkg/cli"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// secureFleet is a fleet of processes with TLS everywhere, each with its own flags as an operator would give them.
type secureFleet struct {
	t       *testing.T
	dir     string
	token   string
	urls    []string          // of the API, by replica
	cluster []string          // cluster addresses
	nodes   map[string]string // listen addresses
	level   string            // of the logs; empty: info

	mu    sync.Mutex
	procs map[string]*proc
}

// proc is one process and what it says.
type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid after done
	log  string
}

func (f *secureFleet) path(name string) string { return filepath.Join(f.dir, name) }

// fluxctl runs a command that needs no fleet.
func (f *secureFleet) fluxctl(args ...string) {
	f.t.Helper()
	var said bytes.Buffer
	if code := cli.Run(f.t.Context(), cli.Env{Err: &said, Getenv: os.Getenv}, args); code != 0 {
		f.t.Fatalf("fluxctl %v: exit %d: %s", args, code, &said)
	}
}

// cert makes a certificate in a directory of the fleet's.
func (f *secureFleet) cert(dir, role, name string, more ...string) certs.Files {
	f.t.Helper()
	if err := os.MkdirAll(f.path(dir), 0o700); err != nil {
		f.t.Fatal(err)
	}
	f.fluxctl(append([]string{"tls", "cert", role, name, "--dir", f.path(dir), "--ca", f.path("ca.pem"), "--ca-key", f.path("ca-key.pem"), "--san", "127.0.0.1"}, more...)...)
	return certs.Files{Cert: filepath.Join(f.path(dir), name+".pem"), Key: filepath.Join(f.path(dir), name+"-key.pem"), CA: f.path("ca.pem")}
}

func (f *secureFleet) start(name string, args ...string) *proc {
	f.t.Helper()
	p := &proc{cmd: exec.Command(agent, args...), done: make(chan struct{}), log: f.path(name + ".log")}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		p.err = errors.Join(p.cmd.Wait(), out.Close())
		close(p.done)
	}()
	f.mu.Lock()
	f.procs[name] = p
	f.mu.Unlock()
	f.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended already where the test stopped it
		<-p.done
	})
	return p
}

// stop ends a process as a service manager would.
func (f *secureFleet) stop(name string) {
	f.t.Helper()
	f.mu.Lock()
	p := f.procs[name]
	f.mu.Unlock()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
	<-p.done
	if p.err != nil {
		f.t.Errorf("%s ended with %v\n%s", name, p.err, p.said(f.t))
	}
}

func (p *proc) said(t *testing.T) string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		t.Error(err)
	}
	return string(raw)
}

// central is the command line of a replica, with the files of cert.
func (f *secureFleet) central(name, listen, cluster string, cert certs.Files, more ...string) []string {
	return append([]string{"central", "--name", name, "--listen", listen, "--cluster-listen", cluster, "--data", f.path("data-" + name),
		"--tls-cert", cert.Cert, "--tls-key", cert.Key, "--tls-ca", cert.CA, "--election-timeout", "1s", "--log-level", cmp.Or(f.level, "info")}, more...)
}

func (f *secureFleet) node(name, listen string, more ...string) []string {
	return append([]string{"node", "--name", name, "--listen", listen, "--advertise-url", "https://" + listen, "--backend", "sim", "--data", f.path("data-" + name),
		"--central", strings.Join(f.urls, ","), "--tls-ca", f.path("ca.pem"), "--admin-token-file", f.path("operator-token"), "--stop-machines", "--heartbeat-secs", "1", "--log-level", cmp.Or(f.level, "info")}, more...)
}

func free(t *testing.T) string {
	t.Helper()
	addr, err := freePort("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// startSecure runs three replicas, node-1 with a certificate of its own and node-2 with one that central signs.
func startSecure(ctx context.Context, t *testing.T, logLevel string) *secureFleet {
	f := &secureFleet{t: t, level: logLevel, dir: t.TempDir(), nodes: map[string]string{"node-1": free(t), "node-2": free(t)}, procs: map[string]*proc{}, token: "fvx_op_0123456789abcdefghijklmnopqrstuv"}
	f.fluxctl("tls", "ca", "--dir", f.dir)
	f.fluxctl("tls", "ca", "--dir", f.dir, "--nodes")
	if err := os.WriteFile(f.path("operator-token"), []byte(f.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var listen, initial []string
	for i := range 3 {
		listen, f.cluster = append(listen, free(t)), append(f.cluster, free(t))
		f.urls = append(f.urls, "https://"+listen[i])
		initial = append(initial, fmt.Sprintf("central-%d=%s", i+1, f.cluster[i]))
	}
	for i := range 3 {
		name := fmt.Sprintf("central-%d", i+1)
		f.start(name, f.central(name, listen[i], f.cluster[i], f.cert("certs", "replica", name), "--bootstrap", "--initial", strings.Join(initial, ","),
			"--operator-token-file", f.path("operator-token"), "--node-ca-cert", f.path("node-ca.pem"), "--node-ca-key", f.path("node-ca-key.pem"))...)
	}
	c := f.client(client.Config{})
	eventually(ctx, t, "a leader", func() bool { _, err := c.Cluster(ctx); return err == nil })
	token, err := c.JoinToken(ctx, api.JoinTokenRequest{Kind: "node", Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("join-token"), []byte(token.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	own := f.cert("certs", "node", "node-1")
	f.start("node-1", f.node("node-1", f.nodes["node-1"], "--join-token-file", f.path("join-token"), "--tls-cert", own.Cert, "--tls-key", own.Key)...)
	f.start("node-2", f.node("node-2", f.nodes["node-2"], "--join-token-file", f.path("join-token"))...)
	f.healthy(ctx, c)
	return f
}

func (f *secureFleet) healthy(ctx context.Context, c *client.Client) {
	f.t.Helper()
	for name := range f.nodes {
		eventually(ctx, f.t, name+" to be healthy", func() bool {
			n, err := c.Node(ctx, name)
			return err == nil && n.State == api.NodeHealthy
		})
	}
}

// client is the operator's, with what cfg says otherwise.
func (f *secureFleet) client(cfg client.Config) *client.Client {
	f.t.Helper()
	if cfg.CACertPEM == nil {
		cfg.CACertPEM = f.read("ca.pem")
	}
	if cfg.Endpoints == nil {
		cfg.Endpoints = f.urls
	}
	cfg.Token, cfg.Timeout = f.token, 20*time.Second
	c, err := client.New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *secureFleet) read(name string) []byte {
	f.t.Helper()
	raw, err := os.ReadFile(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return raw
}

func (f *secureFleet) pair(files certs.Files) client.Config {
	f.t.Helper()
	cert, err := os.ReadFile(files.Cert)
	if err != nil {
		f.t.Fatal(err)
	}
	key, err := os.ReadFile(files.Key)
	if err != nil {
		f.t.Fatal(err)
	}
	return client.Config{CertPEM: cert, KeyPEM: key}
}

// aged makes a certificate whose time is over.
func (f *secureFleet) aged(id certs.Identity) certs.Files {
	f.t.Helper()
	ca, err := certs.LoadAuthority(f.read("ca.pem"), f.read("ca-key.pem"))
	if err != nil {
		f.t.Fatal(err)
	}
	key, keyPEM, err := certs.NewKey()
	if err != nil {
		f.t.Fatal(err)
	}
	// The authority signs as of two days ago, for one.
	pair, err := ca.Sign(id, []string{"127.0.0.1"}, key.Public(), time.Now().Add(-48*time.Hour), 24*time.Hour)
	if err != nil {
		f.t.Fatal(err)
	}
	files := certs.Files{Cert: f.path("aged.pem"), Key: f.path("aged-key.pem"), CA: f.path("ca.pem")}
	if err := errors.Join(os.WriteFile(files.Cert, pair.CertPEM, 0o600), os.WriteFile(files.Key, keyPEM, 0o600)); err != nil {
		f.t.Fatal(err)
	}
	return files
}

// speak tries the cluster port: a handshake, the byte that stands for HTTP, and a question that every member answers.
func (f *secureFleet) speak(ctx context.Context, addr string, files *certs.Files) error {
	conf := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} // this test is about what the server takes
	if files != nil {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			f.t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "\x02GET /peer/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !bytes.Contains(answer, []byte(`"cluster_id"`)) {
		err = fmt.Errorf("it answered %q", answer)
	}
	return err
}

func TestTLSEverywhere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f := startSecure(ctx, t, "info")
	c := f.client(client.Config{})
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "img", Path: "sim:?boot_ms=10&agent_ms=10", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	for name := range f.nodes { // orders reach both kinds of node
		answer, _, err := c.Launch(ctx, api.LaunchRequest{Image: "img", Node: name}, client.LaunchOptions{WaitReady: true})
		if err != nil || answer.Node != name {
			t.Errorf("launching on %s: got %+v, %v", name, answer, err)
		}
	}
	t.Run("what is shown", func(t *testing.T) { f.shows(ctx, t, c) })
	for entry, err := range c.Activity(ctx, client.ActivityFilter{}) {
		if err != nil || entry.Action == "POST /fleet/images" && entry.Detail["from"] != "127.0.0.1" {
			t.Errorf("the activity log does not say from where: %+v, %v", entry, err)
		}
	}
	t.Run("strangers", func(t *testing.T) { f.refusesStrangers(ctx, t) })
	t.Run("cluster port", func(t *testing.T) { f.guardsClusterPort(ctx, t, c) })
	t.Run("roles", func(t *testing.T) { f.holdsToRoles(ctx, t) })
	t.Run("starts", func(t *testing.T) { f.refusesStarts(t) })
	t.Run("reload", func(t *testing.T) { f.reloads(ctx, t) })
	t.Run("restart", func(t *testing.T) {
		f.stop("node-2") // its token is used up by now, its certificate is on its disk
		f.start("node-2", f.node("node-2", f.nodes["node-2"])...)
		f.healthy(ctx, c)
		eventually(ctx, t, "a launch on node-2", func() bool {
			_, _, err := c.Launch(ctx, api.LaunchRequest{Image: "img", Node: "node-2"}, client.LaunchOptions{WaitReady: true})
			return err == nil
		})
	})
	for name := range f.procs {
		if p := f.procs[name]; p.cmd.ProcessState == nil {
			f.stop(name)
		}
	}
}

// shows: expiry in the status, in readiness and as a metric; TLS 1.3 and nothing older; nothing without TLS.
func (f *secureFleet) shows(ctx context.Context, t *testing.T, c *client.Client) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range cluster.Replicas {
		if left := time.Until(r.CertificateExpiresAt.Std()); left < 300*24*time.Hour || !strings.HasPrefix(r.URL, "https://") {
			t.Errorf("%s: its certificate has %s left, its URL is %s", r.Name, left, r.URL)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.read("ca.pem"))
	get := func(conf *tls.Config, url string) (string, error) {
		transport := &http.Transport{TLSClientConfig: conf}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(url)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		return string(raw), err
	}
	for path, want := range map[string]string{"/readyz": "certificate_expires_at", "/metrics": "fluxvm_tls_not_after_seconds"} {
		if got, err := get(&tls.Config{RootCAs: pool}, f.urls[0]+path); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %v, %.200s", path, err, got)
		}
	}
	if _, err := get(&tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12}, f.urls[0]+"/healthz"); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	if got, err := get(nil, strings.Replace(f.urls[0], "https", "http", 1)+"/healthz"); err == nil && !strings.Contains(got, "HTTPS server") {
		t.Errorf("it answers without TLS: %s", got)
	}
	if got, err := get(nil, "http://"+f.nodes["node-2"]+"/healthz"); err == nil && !strings.Contains(got, "HTTPS server") {
		t.Errorf("a node answers without TLS: %s", got)
	}
}

// trusting is the TLS of a client of that authority.
func trusting(ca []byte) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
}

// refusesStrangers: a client that trusts, or shows a certificate of, another authority, or shows one whose time is over.
func (f *secureFleet) refusesStrangers(ctx context.Context, t *testing.T) {
	other, err := certs.NewAuthority("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.client(client.Config{CACertPEM: other.CertPEM}).Cluster(ctx); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a client with another authority: got %v", err)
	}
	signer, err := certs.LoadAuthority(other.CertPEM, other.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	key, keyPEM, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := signer.Sign(certs.Identity{Role: certs.API, Name: "ci"}, nil, key.Public(), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(foreign.CertPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := tls.Dial("tcp", strings.TrimPrefix(f.urls[0], "https://"), &tls.Config{InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }}); err == nil { // unasked, as no honest client would
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("a client with a certificate of another authority was served: %s", answer)
		}
		_ = conn.Close()
	}
	for name, cfg := range map[string]client.Config{
		"whose time is over": f.pair(f.aged(certs.Identity{Role: certs.API, Name: "ci"})),
		"of a node":          f.pair(f.cert("strangers", "node", "node-1")),
		"of a replica":       f.pair(f.cert("strangers", "replica", "central-1")),
	} {
		if _, err := f.client(cfg).Cluster(ctx); err == nil {
			t.Errorf("a client with a certificate %s was served", name)
		}
	}
	if _, err := f.client(f.pair(f.cert("strangers", "api", "ci"))).Cluster(ctx); err != nil {
		t.Errorf("a client with a good certificate: %v", err)
	}
}

// guardsClusterPort: only members, by their own certificates; one that joins, from when it has; one that was removed no more.
func (f *secureFleet) guardsClusterPort(ctx context.Context, t *testing.T, c *client.Client) {
	aged, fourth := f.aged(certs.Identity{Role: certs.Replica, Name: "central-2"}), f.cert("certs", "replica", "central-4")
	node, caller := f.cert("cluster", "node", "central-2"), f.cert("cluster", "api", "ci")
	for _, addr := range f.cluster {
		member := f.cert("cluster-"+strings.ReplaceAll(addr, ":", "-"), "replica", "central-2")
		if err := f.speak(ctx, addr, &member); err != nil {
			t.Errorf("a member's certificate at %s: %v", addr, err)
		}
		for name, files := range map[string]*certs.Files{"none": nil, "one whose time is over": &aged, "a node's of a member's name": &node, "a caller's": &caller, "one of no member": &fourth} {
			if err := f.speak(ctx, addr, files); err == nil {
				t.Errorf("%s was let in at %s with %s", name, addr, name)
			}
		}
	}
	token, err := c.JoinToken(ctx, api.JoinTokenRequest{Kind: "replica", Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("replica-token"), []byte(token.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	var refused *api.Error
	bare := client.Config{Endpoints: f.urls, CACertPEM: f.read("ca.pem"), Token: token.Token, Timeout: time.Minute}
	joiner, err := client.New(bare)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := joiner.AddReplica(ctx, api.ReplicaRequest{Name: "central-4", ClusterAddr: free(t)}, ""); !errors.As(err, &refused) || refused.Code != api.CodeForbidden {
		t.Errorf("joining without a certificate: got %v", err)
	}
	args := f.central("central-4", free(t), free(t), fourth, "--join", f.urls[0], "--join-token-file", f.path("replica-token"))
	f.start("central-4", args...)
	role := func(name string) string {
		cluster, err := c.Cluster(ctx)
		if err != nil {
			return "?"
		}
		for _, r := range cluster.Replicas {
			if r.Name == name {
				return r.Role
			}
		}
		return ""
	}
	eventually(ctx, t, "central-4 to have a vote", func() bool { return role("central-4") == "voter" })
	if err := f.speak(ctx, f.cluster[0], &fourth); err != nil {
		t.Errorf("once it has joined: %v", err)
	}
	raft, asking := f.connect(ctx, f.cluster[0], fourth), f.connect(ctx, f.cluster[0], fourth) // what it may have open when it is removed
	if _, err := raft.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := asking.Write([]byte{2}); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(asking)
	if got := askOver(t, asking, answers, "/peer/status"); got != http.StatusOK {
		t.Errorf("a member that asks over HTTP: got %d", got)
	}
	f.mu.Lock()
	p := f.procs["central-4"]
	f.mu.Unlock()
	_ = p.cmd.Process.Kill() // nobody can tell it that it is removed
	<-p.done
	if err := c.RemoveReplica(ctx, "central-4"); err != nil {
		t.Fatal(err)
	}
	for _, addr := range f.cluster {
		eventually(ctx, t, "central-4 to be shut out at "+addr, func() bool { return f.speak(ctx, addr, &fourth) != nil })
	}
	if err := raft.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := raft.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection that a removed replica had open: got %v", err)
	}
	for path, want := range map[string]int{"/peer/status": http.StatusForbidden, "/fleet/vms": http.StatusForbidden, "/peer/standing?name=central-1": http.StatusForbidden, "/peer/standing?name=central-4": http.StatusOK} {
		if got := askOver(t, asking, answers, path); got != want {
			t.Errorf("%s over a connection that a removed replica had open: got %d, want %d", path, got, want)
		}
	}
	p = f.start("central-4", args...)
	eventually(ctx, t, "central-4 to learn that it was removed", func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	if code := p.cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(p.said(t), "was removed from the cluster") {
		t.Errorf("a replica that was removed while it was down ended with %d: %s", code, p.said(t))
	}
}

// connect makes a connection to the cluster port, which the test ends.
func (f *secureFleet) connect(ctx context.Context, addr string, files certs.Files) net.Conn {
	f.t.Helper()
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		f.t.Fatal(err)
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}}).DialContext(ctx, "tcp", addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// askOver asks over a connection that stays open and gives the status.
func askOver(t *testing.T, conn net.Conn, answers *bufio.Reader, path string) int {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// holdsToRoles: a node reports as itself only, and the credential of a node gives no orders without a replica's certificate.
func (f *secureFleet) holdsToRoles(ctx context.Context, t *testing.T) {
	credential := strings.TrimSpace(string(f.read("data-node-1/credential")))
	post := func(files certs.Files, bearer, url, body string) int {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	one, two, ci := f.cert("roles", "node", "node-1"), f.cert("roles", "node", "node-2"), f.cert("roles", "api", "ci")
	report := `{"name":"node-1","uuid":"00000000-0000-4000-8000-000000000000","boot_id":"x","instance":"x","seq":1,"url":"https://127.0.0.1:1","backends":["sim"],"capabilities":{"rename":true},"vcpus_total":1,"memory_mib_total":1,"cpu_overcommit":1,"vm_count":0,"labels":{},"density":{},"apple":null,"images":[],"vms_digest":""}`
	if got := post(two, credential, f.urls[0]+"/fleet/register", report); got != http.StatusForbidden {
		t.Errorf("a report of node-1 with the certificate of node-2: got %d", got)
	}
	if got := post(one, f.token, f.urls[0]+"/fleet/join-tokens", `{"kind":"node"}`); got != http.StatusForbidden {
		t.Errorf("a node's certificate with the operator's token: got %d", got)
	}
	for _, node := range f.nodes {
		if got := post(one, credential, "https://"+node+"/v1/vms", `{}`); got != 0 {
			t.Errorf("an order with a node's certificate: got %d", got)
		}
		if got := post(ci, credential, "https://"+node+"/v1/vms", `{}`); got != http.StatusUnauthorized {
			t.Errorf("an order with a node's credential and no replica's certificate: got %d", got)
		}
	}
}

// refusesStarts: a program that would be open to others, or has the wrong certificate, says what to do instead.
func (f *secureFleet) refusesStarts(t *testing.T) {
	node, aged := f.cert("starts", "node", "central-9"), f.aged(certs.Identity{Role: certs.Replica, Name: "central-9"})
	other := f.cert("starts", "replica", "central-8")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"central beyond loopback":      {[]string{"central", "--bootstrap", "--listen", "0.0.0.0:0", "--cluster-listen", "127.0.0.1:0", "--data", f.path("x")}, "--tls-cert"},
		"cluster port beyond loopback": {[]string{"central", "--bootstrap", "--listen", "127.0.0.1:0", "--cluster-listen", "0.0.0.0:0", "--data", f.path("x")}, "--tls-cert"},
		"node beyond loopback":         {[]string{"node", "--backend", "sim", "--central", "https://127.0.0.1:1", "--listen", "0.0.0.0:0", "--advertise-url", "http://10.0.0.1:1", "--data", f.path("x")}, "--tls-ca"},
		"a certificate alone":          {[]string{"central", "--bootstrap", "--tls-cert", node.Cert, "--data", f.path("x")}, "--tls-key"},
		"a node's certificate":         {f.central("central-9", "127.0.0.1:0", "127.0.0.1:0", node, "--bootstrap"), "fluxctl tls cert replica central-9"},
		"another replica's":            {f.central("central-9", "127.0.0.1:0", "127.0.0.1:0", other, "--bootstrap"), "fluxctl tls cert replica central-9"},
		"one whose time is over":       {f.central("central-9", "127.0.0.1:0", "127.0.0.1:0", aged, "--bootstrap"), "expired"},
		"the whole authority":          {f.central("central-8", "127.0.0.1:0", "127.0.0.1:0", other, "--bootstrap", "--node-ca-cert", f.path("ca.pem"), "--node-ca-key", f.path("ca-key.pem")), "tls ca --nodes"},
		"a node with another's":        {f.node("node-9", "127.0.0.1:0", "--tls-cert", node.Cert, "--tls-key", node.Key), "fluxctl tls cert node node-9"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, agent, c.args...).CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: got %v, %s; want %q", name, err, out, c.want)
		}
	}
}

// reloads replaces every certificate while requests come in on new connections, and none of them fails.
func (f *secureFleet) reloads(ctx context.Context, t *testing.T) {
	var load sync.WaitGroup
	over, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	asked := 0
	for range 3 {
		load.Go(func() {
			for over.Err() == nil {
				answer, _, err := f.client(client.Config{}).Launch(ctx, api.LaunchRequest{Image: "img"}, client.LaunchOptions{})
				if err == nil {
					err = f.client(client.Config{}).DeleteVM(ctx, answer.VM.ID)
				}
				if err != nil {
					t.Errorf("while certificates are replaced: %v", err)
				}
				mu.Lock()
				asked++
				mu.Unlock()
			}
		})
	}
	serial := func(addr string) string {
		conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	ports := map[string]string{"node-1": f.nodes["node-1"]}
	for i, url := range f.urls {
		ports[fmt.Sprintf("central-%d", i+1)] = strings.TrimPrefix(url, "https://")
	}
	before := map[string]string{}
	for name, addr := range ports {
		role, _, _ := strings.Cut(name, "-")
		if role == "central" {
			role = "replica"
		}
		before[name] = serial(addr)
		next := f.cert("next", role, name)
		for from, to := range map[string]string{next.Cert: f.path("certs/" + name + ".pem"), next.Key: f.path("certs/" + name + "-key.pem")} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, addr := range ports {
		eventually(ctx, t, name+" to show its new certificate", func() bool { now := serial(addr); return now != before[name] && !strings.Contains(now, " ") })
	}
	good := serial(ports["central-1"])
	if err := os.WriteFile(f.path("certs/central-1.pem"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	p := f.procs["central-1"]
	f.mu.Unlock()
	eventually(ctx, t, "central-1 to say that the file is of no use", func() bool { return strings.Contains(p.said(t), "the last good ones stay") })
	if now := serial(ports["central-1"]); now != good {
		t.Errorf("with a bad file it shows %s, want %s", now, good)
	}
	eventually(ctx, t, "enough requests", func() bool { mu.Lock(); defer mu.Unlock(); return asked >= 20 })
	stop()
	load.Wait()
}

// TestCallersShowACertificateWhereCentralAsksForOne: with --require-client-cert a token alone is not enough, neither for a
// caller nor for a host.
func TestCallersShowACertificateWhereCentralAsksForOne(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f := &secureFleet{t: t, dir: t.TempDir(), nodes: map[string]string{"node-1": free(t)}, procs: map[string]*proc{}, token: "fvx_op_0123456789abcdefghijklmnopqrstuv"}
	f.fluxctl("tls", "ca", "--dir", f.dir)
	if err := os.WriteFile(f.path("operator-token"), []byte(f.token), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := free(t)
	f.urls = []string{"https://" + listen}
	f.start("central-1", f.central("central-1", listen, free(t), f.cert("certs", "replica", "central-1"), "--bootstrap", "--require-client-cert", "--operator-token-file", f.path("operator-token"))...)
	caller := f.client(f.pair(f.cert("certs", "api", "ci")))
	eventually(ctx, t, "a caller with a certificate and the token to be served", func() bool { _, err := caller.Cluster(ctx); return err == nil })
	if _, err := f.client(client.Config{}).Cluster(ctx); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a caller without one: got %v", err)
	}
	fluxctl := func(more map[string]string) (code int, said string) {
		env := map[string]string{"FLUXVM_FLEET_URL": f.urls[0], "FLUXVM_TOKEN": f.token, "FLUXVM_CA_CERT": f.path("ca.pem"), "HOME": f.dir}
		maps.Copy(env, more)
		var out bytes.Buffer
		code = cli.Run(ctx, cli.Env{Out: &out, Err: &out, Getenv: func(key string) string { return env[key] }, Now: time.Now}, []string{"cluster", "status"})
		return code, out.String()
	}
	if code, said := fluxctl(map[string]string{"FLUXVM_CLIENT_CERT": f.path("certs/ci.pem"), "FLUXVM_CLIENT_KEY": f.path("certs/ci-key.pem")}); code != 0 || !strings.Contains(said, "central-1 leads") {
		t.Errorf("fluxctl with a certificate: exit %d, %s", code, said)
	}
	own := f.cert("certs", "node", "node-1")
	f.start("node-1", f.node("node-1", f.nodes["node-1"], "--join-token-file", f.path("operator-token"), "--tls-cert", own.Cert, "--tls-key", own.Key)...)
	f.healthy(ctx, caller)
	bare := f.start("node-2", f.node("node-2", free(t), "--join-token-file", f.path("operator-token"))...)
	eventually(ctx, t, "a host without one to say what it lacks", func() bool { return strings.Contains(bare.said(t), "certificate required") })
	if _, err := caller.Node(ctx, "node-2"); err == nil {
		t.Error("a host without one has joined")
	}
}
