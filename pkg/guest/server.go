package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"
)

// maxExecs is how many commands may run at once; a further one is refused.
const maxExecs = 64

// Server is the guest's end.
type Server struct {
	// Poweroff begins the guest's shutdown. Nil: the host's wish is refused.
	Poweroff func() error

	// Owner carries out what a claim or a renewal changes of the guest itself. Nil: they are refused.
	Owner Owner

	// Root is where the guest's files are. Empty: /.
	Root string

	// Idle is how long to wait after an end of file, which says that no host is there. 0: 50 ms.
	Idle time.Duration
}

// Serve answers on the port until ctx ends or the port fails; io.EOF is no failure. The caller interrupts a read
// that waits. Before it returns it kills the commands it runs, except detached ones, and has written all answers.
func (s *Server) Serve(ctx context.Context, port io.ReadWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	session := &session{server: s, port: port, execs: map[uint64]context.CancelFunc{}}
	err := session.run(ctx)
	cancel()
	session.work.Wait()
	return err
}

// session is one run of Serve.
type session struct {
	server *Server
	port   io.ReadWriter
	write  sync.Mutex
	work   sync.WaitGroup

	mu    sync.Mutex
	execs map[uint64]context.CancelFunc // by the id of the request
}

func (s *session) run(ctx context.Context) error {
	idle := s.server.Idle
	if idle == 0 {
		idle = 50 * time.Millisecond
	}
	frames := newFrameReader(s.port)
	for ctx.Err() == nil {
		raw, err := frames.next()
		switch {
		case errors.Is(err, io.EOF):
			select {
			case <-time.After(idle):
			case <-ctx.Done():
			}
		case err != nil:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("reading from the host: %w", err)
		default:
			s.handle(ctx, raw)
		}
	}
	return nil
}

// handle starts what one request asks for. Nothing in it waits for the host, so that reading goes on.
func (s *session) handle(ctx context.Context, raw []byte) {
	var m message
	if json.Unmarshal(raw, &m) != nil || m.Op == "" {
		return
	}
	switch m.Op {
	case opPing:
		s.answerLater(m.ID, func() (any, error) { return s.hello(), nil })
	case opExec:
		s.exec(ctx, m)
	case opCancel:
		s.mu.Lock()
		if cancel := s.execs[m.ID]; cancel != nil {
			cancel()
		}
		s.mu.Unlock()
	case opClaim:
		s.answerLater(m.ID, func() (any, error) {
			var c Claim
			if json.Unmarshal(m.Body, &c) != nil {
				return nil, errors.New("the claim is malformed")
			}
			return struct{}{}, s.server.claim(c)
		})
	case opRenew:
		s.renew(m)
	case opPoweroff:
		s.answerLater(m.ID, func() (any, error) {
			if s.server.Poweroff == nil {
				return nil, errors.New("this agent may not power the guest off")
			}
			return struct{}{}, s.server.Poweroff()
		})
	default:
		s.answerLater(m.ID, func() (any, error) {
			return nil, fmt.Errorf("%q is nothing that this agent can do; update fluxvm-guest in the image", m.Op)
		})
	}
}

func (s *session) exec(ctx context.Context, m message) {
	var req ExecRequest
	err := json.Unmarshal(m.Body, &req)
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	switch {
	case err != nil:
		err = errors.New("the command is malformed")
	case s.execs[m.ID] != nil:
		err = errors.New("a command with this id runs already")
	case len(s.execs) >= maxExecs:
		err = fmt.Errorf("%d commands run already; wait for one to end", maxExecs)
	default:
		s.execs[m.ID] = cancel
	}
	s.mu.Unlock()
	s.answerLater(m.ID, func() (any, error) {
		defer cancel()
		if err != nil {
			return nil, err
		}
		if env := s.server.environ(); env != nil {
			maps.Copy(env, req.Env)
			req.Env = env
		}
		answer, err := run(ctx, req)
		s.mu.Lock()
		delete(s.execs, m.ID)
		s.mu.Unlock()
		return answer, err
	})
}

// answerLater does the work and writes its answer in a goroutine that Serve waits for.
func (s *session) answerLater(id uint64, work func() (any, error)) {
	s.work.Go(func() {
		m := message{ID: id}
		body, err := work()
		if err == nil {
			m.Body, err = json.Marshal(body)
		}
		if err != nil {
			m.Body, m.Error = nil, err.Error()
		}
		s.send(m)
	})
}

// send writes one frame. What cannot be written has no one to be told: the host asks again.
func (s *session) send(m message) {
	raw, err := json.Marshal(m)
	if err != nil {
		return
	}
	frame, err := appendFrame(nil, raw)
	if err != nil {
		return
	}
	s.write.Lock()
	defer s.write.Unlock()
	_, _ = s.port.Write(frame)
}

func (s *session) hello() Hello {
	h := Hello{Protocol: Protocol, Claims: s.server.Owner != nil, BootID: bootID()}
	h.Hostname, _ = os.Hostname()
	return h
}
