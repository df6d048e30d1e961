package fleettest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/fluxvm/fluxvm/central/consensus"
)

// rawState is a state machine that does nothing: what is left is the log.
type rawState struct{}

func (rawState) Apply(entries []consensus.Entry) []any { return make([]any, len(entries)) }

func (rawState) Snapshot() (io.WriterTo, error) { return rawState{}, nil }

func (rawState) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, "nothing")
	return int64(n), err
}

func (rawState) Restore(r io.ReadCloser) error { return r.Close() }

func (rawState) ClusterID() string { return "raw" }

// playRaw is the baseline: a replica of the same log, with the same store, transport, settings and guards as central's,
// and one route that commits the request's body.
func playRaw(ctx context.Context, p part, listener, cluster net.Listener) error {
	port, err := consensus.NewMux(consensus.MuxConfig{Listener: cluster})
	if err != nil {
		return err
	}
	defer port.Close()
	log, err := consensus.Open(consensus.Config{Name: p.Name, DataDir: p.Dir, Mux: port, FSM: rawState{}, Create: true})
	if err != nil {
		return err
	}
	if err := log.Bootstrap(p.Initial); err != nil {
		return errors.Join(err, log.Close())
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		command, err := io.ReadAll(req.Body)
		if err == nil {
			_, _, err = log.Propose(req.Context(), command)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }() // it says that it was closed
	<-ctx.Done()
	_ = server.Close()
	<-ended
	return log.Close()
}
