package vz

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	// pingWithin bounds a question to the agent that the caller does not bound.
	pingWithin = 30 * time.Second

	// firstPingWithin is how long the agent may take to show that it is there before it is given anything to do.
	firstPingWithin = 10 * time.Second

	// execDefault is a command's time when the request names none.
	execDefault = 60 * time.Second

	// execGrace is how much longer than the command the agent has for its answer.
	execGrace = 30 * time.Second

	// seedBytes of randomness go to a guest that goes on from a saved state.
	seedBytes = 64
)

// agentLink is the way to one guest's agent. It dials when first asked, and anew after the stream has ended.
type agentLink struct {
	dial func(context.Context) (net.Conn, error)

	mu     sync.Mutex
	client *guest.Client
	closed bool
	claims bool // the agent that last answered takes claims
}

// get is a client whose stream is open. Nobody listens in a guest that still boots: then dialling fails at once.
func (a *agentLink) get(ctx context.Context) (*guest.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, guest.ErrClosed
	}
	if a.client != nil {
		select {
		case <-a.client.Done():
			a.client = nil
		default:
			return a.client, nil
		}
	}
	conn, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	a.client = guest.Attach(conn)
	return a.client, nil
}

func (a *agentLink) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.client != nil {
		_ = a.client.Close()
	}
}

func (a *agentLink) ping(ctx context.Context) error {
	_, err := a.answering(ctx, pingWithin)
	return err
}

// answering is a client whose agent has just answered.
func (a *agentLink) answering(ctx context.Context, within time.Duration) (*guest.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client, err := a.get(ctx)
	var hello guest.Hello
	if err == nil {
		hello, err = client.Ping(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrNoAgent, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims = hello.Claims
	return client, nil
}

func (a *agentLink) canClaim() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claims
}

func (a *agentLink) claim(ctx context.Context, claim api.GuestClaim) error {
	if claim.RotateIdentity { // first: what the claim brings is for the guest as it will be
		who := machine.NewIdentity("")
		who.BootID = "" // it did not boot again
		if err := a.renew(ctx, who); err != nil {
			return err
		}
	}
	client, err := a.answering(ctx, firstPingWithin)
	if err != nil {
		return err
	}
	give := guest.Claim{Hostname: claim.Hostname, Env: claim.Env, Secrets: claim.Secrets}
	for _, f := range claim.Files {
		give.Files = append(give.Files, guest.File{Path: f.Path, Content: f.Content, Mode: f.Permissions()})
	}
	return lost(client.Claim(ctx, give))
}

func (a *agentLink) renew(ctx context.Context, who machine.Identity) error {
	client, err := a.answering(ctx, firstPingWithin)
	if err != nil {
		return err
	}
	seed := make([]byte, seedBytes)
	if _, err := rand.Read(seed); err != nil {
		return err
	}
	return lost(client.Renew(ctx, guest.Renewal{
		Seed: seed, UnixNanos: time.Now().UnixNano(), Hostname: who.Hostname, MachineID: who.MachineID, BootID: who.BootID, HostKeys: who.HostKeys,
	}))
}

// lost makes the end of the stream what it means: there is no agent now.
func lost(err error) error {
	if errors.Is(err, guest.ErrClosed) {
		return fmt.Errorf("%w: %w", machine.ErrNoAgent, err)
	}
	return err
}

func (a *agentLink) exec(ctx context.Context, req api.ExecRequest) (api.ExecAnswer, error) {
	client, err := a.answering(ctx, firstPingWithin)
	if err != nil {
		return api.ExecAnswer{}, err
	}
	timeout := execDefault
	if req.TimeoutSecs > 0 {
		timeout = time.Duration(req.TimeoutSecs) * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, timeout+execGrace)
	defer cancel()
	got, err := client.Exec(bounded, guest.ExecRequest{
		Argv: req.Argv, Env: req.Env, Stdin: []byte(req.Stdin), TimeoutMS: timeout.Milliseconds(), Detach: req.Detach,
	})
	switch {
	case err == nil:
		return api.ExecAnswer{
			ExitCode: got.ExitCode, Stdout: string(got.Stdout), Stderr: string(got.Stderr), Truncated: got.Truncated, TimedOut: got.TimedOut,
		}, nil
	case ctx.Err() == nil && (bounded.Err() != nil || errors.Is(err, guest.ErrClosed)):
		return api.ExecAnswer{}, fmt.Errorf("%w: it went silent while a command ran: %w", machine.ErrNoAgent, err)
	}
	return api.ExecAnswer{}, err
}

func (a *agentLink) poweroff(ctx context.Context) error {
	client, err := a.answering(ctx, askWithin/2)
	if err != nil {
		return err
	}
	return client.Poweroff(ctx)
}
