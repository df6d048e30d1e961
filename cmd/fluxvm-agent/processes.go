package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/pkg/fleettest"
)

const (
	restartAfter = time.Second      // between the death of a process and its restart
	restartMost  = time.Minute      // that which ends by itself again and again waits twice as long each time, up to this
	stopPatience = 10 * time.Second // then it is killed
	startup      = time.Minute
)

// keeper runs the parts of a fleet as processes and restarts those that die, as a service manager would.
type keeper struct {
	program string
	data    string
	logger  hclog.Logger

	mu   sync.Mutex
	pids map[string]int
	all  []string // names in the order of their start
}

// part is one process: what it is called in DATA/pids and how it is run.
type part struct {
	name string
	args []string
}

func runProcesses(ctx context.Context, cmd *cobra.Command, o devOptions, logger hclog.Logger) error {
	if err := os.MkdirAll(o.data, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	tokenFile := filepath.Join(o.data, "operator-token")
	raw, err := os.ReadFile(tokenFile)
	if err != nil {
		raw = []byte(central.NewToken("fvx_op_"))
		if err := os.WriteFile(tokenFile, raw, 0o600); err != nil {
			return fmt.Errorf("writing the operator token: %w", err)
		}
	}
	where := address{token: strings.TrimSpace(string(raw))}
	replicas, nodes, err := plan(o, tokenFile, &where)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	k := &keeper{program: self, data: o.data, logger: logger, pids: map[string]int{}}
	keep, stopNodes := context.WithCancel(context.Background())
	defer stopNodes()
	keepReplicas, stopReplicas := context.WithCancel(context.Background())
	defer stopReplicas()
	var nodesRun, replicasRun sync.WaitGroup
	for _, p := range replicas {
		replicasRun.Go(func() { k.keep(keepReplicas, p) })
	}
	for _, p := range nodes {
		nodesRun.Go(func() { k.keep(keep, p) })
	}
	err = where.await(ctx)
	if err == nil {
		err = where.publish(cmd, o.data)
	}
	if err == nil {
		<-ctx.Done()
		fmt.Fprintln(cmd.ErrOrStderr(), "Stopping the fleet…")
	}
	stopNodes()
	nodesRun.Wait()
	stopReplicas()
	replicasRun.Wait()
	return err
}

// plan chooses ports and writes down how each process is run.
func plan(o devOptions, tokenFile string, where *address) (replicas, nodes []part, err error) {
	var api, initial []string
	cluster, err := fleettest.ClusterAddrs(o.data, o.replicas)
	if err != nil {
		return nil, nil, err
	}
	for i := 1; i <= o.replicas; i++ {
		listen := "127.0.0.1:0"
		if i == 1 {
			listen = o.listen
		}
		if listen, err = freePort(listen); err != nil {
			return nil, nil, err
		}
		api = append(api, listen)
		initial = append(initial, fmt.Sprintf("central-%d=%s", i, cluster[i-1]))
		where.replicas = append(where.replicas, "http://"+listen)
	}
	for i := range o.replicas {
		name := fmt.Sprintf("central-%d", i+1)
		replicas = append(replicas, part{fmt.Sprintf("replica-%d", i+1), []string{"central", "--name", name, "--listen", api[i], "--cluster-listen", cluster[i],
			"--data", filepath.Join(o.data, name), "--bootstrap", "--initial", strings.Join(initial, ","), "--operator-token-file", tokenFile,
			"--election-timeout", "1s", "--log-level", o.logLevel}})
	}
	for i := 1; i <= o.nodes; i++ {
		name := fmt.Sprintf("node-%d", i)
		listen, err := freePort("127.0.0.1:0")
		if err != nil {
			return nil, nil, err
		}
		where.nodes = append(where.nodes, name+"=http://"+listen)
		args := []string{"node", "--name", name, "--listen", listen, "--data", filepath.Join(o.data, name), "--backend", o.backend, "--label", "fluxvm.dev/dev-node=" + name,
			"--central", strings.Join(where.replicas, ","), "--join-token-file", tokenFile, "--admin-token-file", tokenFile, "--stop-machines", "--log-level", o.logLevel}
		if i <= o.macs {
			args = append(args, "--pose-as-mac")
		}
		nodes = append(nodes, part{name, args})
	}
	return replicas, nodes, nil
}

// freePort gives an address that is free now. A process that takes it at once will get it.
func freePort(addr string) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// keep runs the process, again and again, until ctx ends or it says that starting it again is of no use.
func (k *keeper) keep(ctx context.Context, p part) {
	wait := restartAfter
	for ctx.Err() == nil {
		began := time.Now()
		err := k.runOnce(ctx, p)
		if ctx.Err() != nil {
			return
		}
		var again bool
		if again, wait = restart(exitCode(err), time.Since(began), wait); !again {
			k.logger.Error("a process ended and asks for an operator: it is not started again", "process", p.name, "error", err, "log", k.logFile(p.name))
			return
		}
		k.logger.Warn("a process ended and is started again", "process", p.name, "error", err, "in", wait, "log", k.logFile(p.name))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// exitCode is what a process ended with: -1 if somebody ended it, or if it could not be started.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// restart says whether a process that ran for so long is started again, and in how long; waited is what that was the last
// time. One that was killed has done nothing wrong.
func restart(code int, ran, waited time.Duration) (again bool, wait time.Duration) {
	switch {
	case code == consensus.ExitConfig || code == central.ExitUpgrade:
		return false, 0
	case code == -1 || ran > restartMost:
		return true, restartAfter
	}
	return true, min(2*waited, restartMost)
}

func (k *keeper) logFile(name string) string { return filepath.Join(k.data, name+".log") }

// runOnce runs the process until it ends; when ctx ends it is asked to end, and killed if it does not.
func (k *keeper) runOnce(ctx context.Context, p part) error {
	out, err := os.OpenFile(k.logFile(p.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening its log: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, k.program, p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for dev, which then stops all in order
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	if err := k.note(p.name, cmd.Process.Pid); err != nil {
		k.logger.Warn("could not write the list of processes", "error", err)
	}
	return cmd.Wait()
}

// note writes DATA/pids anew.
func (k *keeper) note(name string, pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pids[name] == 0 {
		k.all = append(k.all, name)
	}
	k.pids[name] = pid
	var text strings.Builder
	for _, n := range k.all {
		fmt.Fprintf(&text, "%s %d\n", n, k.pids[n])
	}
	return writeWhole(filepath.Join(k.data, "pids"), text.String())
}

// await waits until every replica is ready and every node is registered.
func (a *address) await(ctx context.Context) error {
	deadline := time.Now().Add(startup)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := a.missing(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case waiting == "":
			return nil
		case time.Now().After(deadline):
			return errors.New("the fleet did not come up: " + waiting + "; see the logs in the data directory")
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// missing says what does not answer yet; empty when all do.
func (a *address) missing(ctx context.Context) string {
	for _, url := range a.replicas {
		if !a.answers(ctx, url+"/readyz") {
			return url + " is not ready"
		}
	}
	for _, n := range a.nodes {
		name, _, _ := strings.Cut(n, "=")
		if !a.answers(ctx, a.replicas[0]+"/fleet/nodes/"+name) {
			return name + " has not registered"
		}
	}
	return ""
}

func (a *address) answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
