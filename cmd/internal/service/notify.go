package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// firstProbe is how often a daemon that starts is asked whether it answers.
	firstProbe = 50 * time.Millisecond

	// probeWithin is how long an answer may take.
	probeWithin = 10 * time.Second
)

// Notified runs the daemon that answers at the address and tells systemd how it is meanwhile.
func Notified(ctx context.Context, addr string, secure bool, run func(context.Context) error) error {
	var notes sync.WaitGroup
	defer notes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	notes.Go(func() { Notify(ctx, addr, secure, os.Getenv) })
	return run(ctx)
}

// Notify tells systemd, where it started the process as Type=notify, that the daemon is ready once its API answers at the
// address, and from then on that it still does, as often as the unit's watchdog wants. It blocks until ctx ends and asks
// the daemon itself, from outside, since that is what a watchdog is about.
func Notify(ctx context.Context, addr string, secure bool, getenv func(string) string) {
	socket := getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	every := watchdogEvery(getenv)
	for wait := firstProbe; answers(ctx, addr, secure) != nil; wait = min(2*wait, time.Second) {
		if !pause(ctx, wait) {
			return
		}
	}
	tell(socket, "READY=1")
	defer tell(socket, "STOPPING=1")
	if every == 0 {
		<-ctx.Done()
		return
	}
	for pause(ctx, every) {
		if answers(ctx, addr, secure) == nil {
			tell(socket, "WATCHDOG=1")
		}
	}
}

// watchdogEvery is a third of what systemd waits for: one late answer does not end the daemon. 0: nobody waits.
func watchdogEvery(getenv func(string) string) time.Duration {
	micros, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || micros <= 0 {
		return 0
	}
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(micros) * time.Microsecond / 3
}

// answers asks for /healthz. Under TLS a handshake shows as much, whoever may ask for what.
func answers(ctx context.Context, addr string, secure bool) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	if secure {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it is this process, and is told nothing
		conn, err := d.DialContext(ctx, "tcp", reachable(addr))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(addr)+"/healthz", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: it is this host
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the daemon answers %s", resp.Status)
	}
	return nil
}

// reachable is the address with a host that can be dialled where it means every address.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// tell sends systemd one word. One that is lost makes the daemon look silent, which is what it is then.
func tell(socket, word string) {
	if strings.HasPrefix(socket, "@") {
		socket = "\x00" + socket[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: socket})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(word))
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
