package process

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

	// execPingWithin is how long the agent may take to show that it is there before a command is sent.
	execPingWithin = 10 * time.Second

	// poweroffPingWithin is the same before the wish to shut down: the guest may have other ears.
	poweroffPingWithin = 2 * time.Second

	// execDefault is a command's time when the request names none.
	execDefault = 60 * time.Second

	// execGrace is how much longer than the command the agent has for its answer.
	execGrace = 30 * time.Second
)

// Agent is the way to one guest's agent. It dials when first asked, and anew after the stream has ended. A machine that
// embeds it is a machine.Claimer and a machine.Renewer.
type Agent struct {
	Dial  func(context.Context) (net.Conn, error) // fails at once while nobody listens
	Awake func() error                            // refuses what a guest that is halted or has ended could only time out on

	mu     sync.Mutex
	client *guest.Client
	closed bool
	claims bool // the agent that last answered takes claims
}

func (a *Agent) get(ctx context.Context) (*guest.Client, error) {
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
	conn, err := a.Dial(ctx)
	if err != nil {
		return nil, err
	}
	a.client = guest.Attach(conn)
	return a.client, nil
}

// Close ends the stream. The agent cannot be reached any more.
func (a *Agent) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.client != nil {
		_ = a.client.Close()
	}
}

// Ping asks the agent; machine.ErrNoAgent while it does not answer.
func (a *Agent) Ping(ctx context.Context) error { return a.ping(ctx, pingWithin) }

func (a *Agent) ping(ctx context.Context, within time.Duration) error {
	if err := a.Awake(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client, err := a.get(ctx)
	var hello guest.Hello
	if err == nil {
		hello, err = client.Ping(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", machine.ErrNoAgent, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims = hello.Claims
	return nil
}

// CanClaim says whether the agent that last answered takes claims.
func (a *Agent) CanClaim() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claims
}

// reach is the client of an agent that has just answered.
func (a *Agent) reach(ctx context.Context, within time.Duration) (*guest.Client, error) {
	if err := a.ping(ctx, within); err != nil {
		return nil, err
	}
	client, err := a.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrNoAgent, err)
	}
	return client, nil
}

// Renew passes a new identity on, with randomness of the host's and the time.
func (a *Agent) Renew(ctx context.Context, who machine.Identity) error {
	return a.renew(ctx, who, pingWithin)
}

func (a *Agent) renew(ctx context.Context, who machine.Identity, within time.Duration) error {
	client, err := a.reach(ctx, within)
	if err != nil {
		return err
	}
	seed := make([]byte, 64)
	rand.Read(seed)
	return gone(client.Renew(ctx, guest.Renewal{Seed: seed, UnixNanos: time.Now().UnixNano(), Hostname: who.Hostname, MachineID: who.MachineID, BootID: who.BootID, HostKeys: who.HostKeys}))
}

// Claim gives the guest its claim, as machine.Claimer says.
func (a *Agent) Claim(ctx context.Context, claim api.GuestClaim) error {
	if claim.RotateIdentity { // first: what the claim brings is for the guest as it will be
		who := machine.NewIdentity("")
		who.BootID = "" // it did not boot again
		if err := a.renew(ctx, who, execPingWithin); err != nil {
			return err
		}
	}
	client, err := a.reach(ctx, execPingWithin)
	if err != nil {
		return err
	}
	give := guest.Claim{Hostname: claim.Hostname, Env: claim.Env, Secrets: claim.Secrets}
	for _, f := range claim.Files {
		give.Files = append(give.Files, guest.File{Path: f.Path, Content: f.Content, Mode: f.Permissions()})
	}
	return gone(client.Claim(ctx, give))
}

// gone says of an agent that went away over a request that there is none.
func gone(err error) error {
	if errors.Is(err, guest.ErrClosed) {
		return fmt.Errorf("%w: %w", machine.ErrNoAgent, err)
	}
	return err
}

// Exec runs a command in the guest, as machine.Machine says.
func (a *Agent) Exec(ctx context.Context, req api.ExecRequest) (api.ExecAnswer, error) {
	client, err := a.reach(ctx, execPingWithin)
	if err != nil {
		return api.ExecAnswer{}, err
	}
	timeout := execDefault
	if req.TimeoutSecs > 0 {
		timeout = time.Duration(req.TimeoutSecs) * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, timeout+execGrace)
	defer cancel()
	answer, err := client.Exec(bounded, guest.ExecRequest{
		Argv: req.Argv, Env: req.Env, Stdin: []byte(req.Stdin), TimeoutMS: timeout.Milliseconds(), Detach: req.Detach,
	})
	switch {
	case err == nil:
		return api.ExecAnswer{
			ExitCode: answer.ExitCode, Stdout: string(answer.Stdout), Stderr: string(answer.Stderr),
			Truncated: answer.Truncated, TimedOut: answer.TimedOut,
		}, nil
	case ctx.Err() == nil && (bounded.Err() != nil || errors.Is(err, guest.ErrClosed)):
		return api.ExecAnswer{}, fmt.Errorf("%w: it went silent while a command ran: %w", machine.ErrNoAgent, err)
	}
	return api.ExecAnswer{}, err
}

// Poweroff asks the guest to shut down and returns when the agent has agreed. An agent that does not answer soon is not
// waited for. One that is gone before its answer is out has agreed: the shutdown ends it with everything else.
func (a *Agent) Poweroff(ctx context.Context) error {
	client, err := a.reach(ctx, poweroffPingWithin)
	if err != nil {
		return err
	}
	if err := client.Poweroff(ctx); !errors.Is(err, guest.ErrClosed) {
		return err
	}
	return nil
}
