package process

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// Process 1 tells all processes to end as soon as it hears the wish, the agent too, whose answer may not be out by then.
func TestAnAgentThatEndsBeforeItsAnswerHasAgreedToShutDown(t *testing.T) {
	for name, poweroff := range map[string]func(net.Conn) error{
		"it answers":        func(net.Conn) error { return nil },
		"it ends before":    func(c net.Conn) error { return c.Close() },
		"it does not agree": func(net.Conn) error { return errors.New("no") },
		"it may not":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			host, inside := net.Pipe()
			server := &guest.Server{}
			if poweroff != nil {
				server.Poweroff = func() error { return poweroff(inside) }
			}
			served := make(chan struct{})
			go func() { defer close(served); _ = server.Serve(ctx, inside) }() // the pipe ends under it
			a := &Agent{Dial: func(context.Context) (net.Conn, error) { return host, nil }, Awake: func() error { return nil }}
			err := a.Poweroff(ctx)
			if agreed := name == "it answers" || name == "it ends before"; (err == nil) != agreed {
				t.Errorf("got %v", err)
			}
			a.Close()
			_ = inside.Close()
			cancel()
			<-served
		})
	}
}
