package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// ErrClosed is what calls on a Client return once it was closed or its stream has ended.
var ErrClosed = errors.New("the stream to the guest agent is closed")

const (
	// pingAgain is how long an unanswered ping stands for later ones as well. A guest that never reads is then
	// sent a few bytes a minute, however often it is asked.
	pingAgain = 5 * time.Second

	// pingsKept is how many unanswered pings are remembered, so that a slow answer to an older one counts too.
	pingsKept = 16

	// cancelWithin bounds how long a call that was given up tells the guest so.
	cancelWithin = 250 * time.Millisecond
)

// Client is the host's end. Any number of calls may be under way at once. The guest is not trusted: what it sends
// can fail a call, and no more.
type Client struct {
	conn    net.Conn
	writing chan struct{} // holds a token while a frame is written
	done    chan struct{} // closed when the stream has ended and the reader is gone

	mu     sync.Mutex
	next   uint64
	calls  map[uint64]*call
	ping   *call
	pinged time.Time
	ended  bool
}

// call is one request under way. Its answer is set before answered is closed. A ping that was sent again has
// several ids.
type call struct {
	ids      []uint64
	answered chan struct{}
	answer   message
}

// Attach makes conn the stream to a guest agent; it is the Client's from now on.
func Attach(conn net.Conn) *Client {
	c := &Client{
		conn: conn, writing: make(chan struct{}, 1), done: make(chan struct{}), calls: map[uint64]*call{},
		// Ids begin anywhere, so that answers meant for an earlier host find no call here.
		next: rand.Uint64() >> 16,
	}
	go c.read()
	return c
}

// Close ends the stream and all calls. It returns when no goroutine of the Client is left.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Done is closed once the stream has ended, by Close or at the other end.
func (c *Client) Done() <-chan struct{} { return c.done }

// Ping returns when the agent has answered. Callers that wait at the same time share one question, so that asking
// often a guest that is still booting costs nothing.
func (c *Client) Ping(ctx context.Context) (Hello, error) {
	p, err := c.sharedPing(ctx)
	if err != nil {
		return Hello{}, fmt.Errorf("asking the guest agent: %w", err)
	}
	var hello Hello
	if err := c.await(ctx, p, &hello); err != nil {
		return Hello{}, fmt.Errorf("asking the guest agent: %w", err)
	}
	return hello, nil
}

func (c *Client) sharedPing(ctx context.Context) (*call, error) {
	c.mu.Lock()
	p := c.ping
	if p != nil && time.Since(c.pinged) < pingAgain {
		c.mu.Unlock()
		return p, nil
	}
	if p == nil {
		p = &call{answered: make(chan struct{})}
	}
	if len(p.ids) == pingsKept {
		delete(c.calls, p.ids[0])
		p.ids = p.ids[1:]
	}
	id, err := c.register(p)
	if err == nil {
		c.ping, c.pinged = p, time.Now()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.send(ctx, message{ID: id, Op: opPing}); err != nil {
		// The next caller asks anew, rather than wait for a question that was never sent.
		c.mu.Lock()
		c.pinged = time.Time{}
		c.mu.Unlock()
		return nil, err
	}
	return p, nil
}

// Exec runs a command in the guest and returns what it left. When ctx ends first the command is killed.
func (c *Client) Exec(ctx context.Context, req ExecRequest) (ExecAnswer, error) {
	var answer ExecAnswer
	if err := c.call(ctx, opExec, req, &answer); err != nil {
		return ExecAnswer{}, fmt.Errorf("running a command in the guest: %w", err)
	}
	return answer, nil
}

// Poweroff asks the guest to shut down. It returns when the agent has agreed, not when the guest is off.
func (c *Client) Poweroff(ctx context.Context) error {
	if err := c.call(ctx, opPoweroff, nil, nil); err != nil {
		return fmt.Errorf("asking the guest to power off: %w", err)
	}
	return nil
}

func (c *Client) call(ctx context.Context, op string, body, into any) error {
	request := message{Op: op}
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		request.Body = raw
	}
	p := &call{answered: make(chan struct{})}
	c.mu.Lock()
	id, err := c.register(p)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		c.mu.Lock()
		c.forget(p)
		c.mu.Unlock()
	}()
	request.ID = id
	if err := c.send(ctx, request); err != nil {
		return err
	}
	err = c.await(ctx, p, into)
	if ctx.Err() != nil && op == opExec {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWithin)
		defer cancel()
		_ = c.send(short, message{ID: id, Op: opCancel})
	}
	return err
}

// register gives the call an id of its own; c.mu is held.
func (c *Client) register(p *call) (uint64, error) {
	if c.ended {
		return 0, ErrClosed
	}
	c.next++
	c.calls[c.next] = p
	p.ids = append(p.ids, c.next)
	return c.next, nil
}

// forget ends the wait for answers to the call; c.mu is held.
func (c *Client) forget(p *call) {
	for _, id := range p.ids {
		delete(c.calls, id)
	}
}

func (c *Client) await(ctx context.Context, p *call, into any) error {
	select {
	case <-p.answered:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return ErrClosed
	}
	if p.answer.Error != "" {
		return fmt.Errorf("the agent refuses: %s", p.answer.Error)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(p.answer.Body, into); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

// send writes one frame, whole unless ctx ends or the stream does. The guest passes over a frame that was cut.
func (c *Client) send(ctx context.Context, m message) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	frame, err := appendFrame(nil, raw)
	if err != nil {
		return err
	}
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return ErrClosed
	}
	if err := c.conn.SetWriteDeadline(time.Time{}); err != nil {
		return ErrClosed
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(late)
	})
	_, err = c.conn.Write(frame)
	if !stop() {
		<-late // or the deadline would hit the next frame
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%w: %v", ErrClosed, err)
	}
	return nil
}

// read hands answers to their calls until the stream ends.
func (c *Client) read() {
	defer close(c.done)
	frames := newFrameReader(c.conn)
	for {
		raw, err := frames.next()
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(raw, &m) != nil || m.Op != "" {
			continue
		}
		c.settle(m)
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	_ = c.conn.Close()
}

func (c *Client) settle(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.calls[m.ID]
	if p == nil {
		return
	}
	c.forget(p)
	if p == c.ping {
		c.ping = nil
	}
	p.answer = m
	close(p.answered)
}
