package central

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestWhereAStreamBegins(t *testing.T) {
	w := newWorld(t)
	r := &Replica{state: w.state}
	for _, c := range []struct {
		from, last string
		index      uint64
		n          int
		bad        bool
	}{
		{"", "", w.index, math.MaxInt, false},
		{"now", "", w.index, math.MaxInt, false},
		{"12.3", "", 12, 3, false},
		{"now", "12.0", 12, 0, false}, // a browser that comes back asks as it did first
		{"12.3", "13.0", 13, 0, false},
		{"0.0", "", 0, 0, false},
		{from: "12", bad: true}, {from: "12.", bad: true}, {from: ".3", bad: true}, {from: "-1.3", bad: true}, {from: "1.-3", bad: true}, {from: "1.2.3", bad: true},
		{from: "99999999999999999999.0", bad: true}, {from: "1.99999999999999999999", bad: true}, {last: "yesterday", bad: true},
	} {
		req := mustRequest("/fleet/events?from=" + c.from)
		if c.last != "" {
			req.Header.Set("Last-Event-ID", c.last)
		}
		index, n, err := (&request{Request: req, r: r}).startOfStream()
		if (err != nil) != c.bad || err == nil && (index != c.index || n != c.n) {
			t.Errorf("from %q after %q: got %d.%d, %v; want %d.%d, refused %t", c.from, c.last, index, n, err, c.index, c.n, c.bad)
		}
	}
}

// stream is an event stream that is read.
type stream struct {
	header http.Header
	pipe   *io.PipeWriter
	begun  chan int // the status

	mu   sync.Mutex
	ids  []string
	says []string // kind, action and name
	over chan struct{}
}

func (s *stream) Header() http.Header         { return s.header }
func (s *stream) Write(b []byte) (int, error) { s.WriteHeader(200); return s.pipe.Write(b) }
func (s *stream) Flush()                      {}

func (s *stream) WriteHeader(status int) {
	select {
	case s.begun <- status:
	default:
	}
}

// follow reads a replica's stream until the function it gives is called.
func (r *rig) follow(replica, query, last string) (*stream, int, func()) {
	r.t.Helper()
	header := http.Header{"Authorization": {"Bearer " + operatorToken}}
	if last != "" {
		header.Set("Last-Event-ID", last)
	}
	return r.followWith(header, replica, query)
}

func (r *rig) followWith(header http.Header, replica, query string) (*stream, int, func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "GET", "/fleet/events"+query, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header = header
	out, in := io.Pipe()
	s := &stream{header: http.Header{}, pipe: in, begun: make(chan int, 1), over: make(chan struct{})}
	handler := r.member(replica).public
	go func() {
		handler.ServeHTTP(s, req)
		in.Close()
	}()
	go func() {
		defer close(s.over)
		s.read(out)
	}()
	return s, <-s.begun, func() {
		cancel()
		out.Close()
		<-s.over
	}
}

func (s *stream) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	id, kind := "", ""
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			var e struct {
				Action string `json:"action"`
				Object struct {
					Name  string `json:"name"`
					State string `json:"state"`
				} `json:"object"`
			}
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				panic(err)
			}
			s.mu.Lock()
			s.ids = append(s.ids, id)
			s.says = append(s.says, strings.TrimSpace(kind+" "+e.Action+" "+e.Object.Name+" "+e.Object.State))
			s.mu.Unlock()
		}
	}
}

func (s *stream) so(far int) (ids, says []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.ids[far:]...), append([]string(nil), s.says[far:]...)
}

// A key that another replica has just acknowledged opens a stream everywhere; one that nobody made opens none.
func TestANewKeyOpensAStreamOnEveryReplica(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.tenant("acme", nil)
		for range 5 {
			key := r.key("acme", api.RoleTenant, 0)
			for _, replica := range r.names {
				_, status, stop := r.followAs(key.Secret, replica, "?from=now")
				stop()
				if status != http.StatusOK {
					t.Errorf("%s answered %d to a new key", replica, status)
				}
			}
		}
		_, status, stop := r.followAs("fvx_nobody", r.follower(), "?from=now")
		stop()
		if status != http.StatusUnauthorized {
			t.Errorf("a token that nobody made got %d", status)
		}
	})
}

func TestAStreamGoesOnOverALeaderChange(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		first := r.follower()
		r.wait(time.Second) // it may have been behind
		s, status, stop := r.follow(first, "?from=now", "")
		if status != 200 || s.header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("the stream begins with %d and %q", status, s.header.Get("Content-Type"))
		}
		r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		r.eventually("the launch's events", time.Minute, func() bool { _, says := s.so(0); return len(says) == 4 })
		ids, says := s.so(0)
		if diff := cmp.Diff([]string{"vm created a placed", "vm changed a booting", "vm changed a running", "vm changed a running"}, says); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		stop()
		old := r.leader()
		r.crash(old)
		next := r.newLeader(old)
		r.insist("DELETE", "/fleet/vms/a", nil, "")
		r.eventually("the VM to be gone", time.Minute, func() bool { return len(r.vms()) == 0 })
		for _, replica := range r.names { // ids are the same on all
			if r.member(replica) == nil {
				r.start(replica)
				r.eventually("the restarted replica to catch up", time.Minute, func() bool { return r.member(replica).state.View().Index() >= r.member(next).state.View().Index() })
			}
			s, _, stop := r.follow(replica, "", ids[1])
			r.eventually("the rest of the events", time.Minute, func() bool { _, says := s.so(0); return len(says) >= 4 })
			again, says := s.so(0)
			if diff := cmp.Diff([]string{"vm changed a running", "vm changed a running", "vm changed a deleting", "vm deleted a deleting"}, says); diff != "" {
				t.Errorf("%s after %s (-want +got):\n%s", replica, ids[1], diff)
			}
			if again[0] != ids[2] || again[1] != ids[3] {
				t.Errorf("%s calls them %v, the first replica %v", replica, again[:2], ids[2:])
			}
			stop()
		}
		live, _, stop := r.follow(next, "", "")
		r.wait(time.Minute) // kept alive by comments alone
		if ids, _ := live.so(0); len(ids) != 0 {
			t.Errorf("a quiet minute brought %v", ids)
		}
		r.end(next)
		<-live.over // a replica that stops ends its streams
		stop()
	})
}

func TestAStreamFromBeforeASnapshotIsGoneAndOneFromNowGoesOn(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		r.wait(5 * time.Second)
		for _, name := range r.names { // as when a late follower is sent the leader's snapshot
			m := r.member(name)
			var raw bytes.Buffer
			if _, err := m.state.View().WriteTo(&raw); err != nil {
				t.Fatal(err)
			}
			if err := (machine{m.Replica}).Restore(io.NopCloser(&raw)); err != nil {
				t.Fatal(err)
			}
		}
		follower := r.follower()
		for _, from := range []string{"0.0", "5.0", fmt.Sprintf("%d.0", r.member(follower).state.View().Index())} {
			if got := r.call(follower, "GET", "/fleet/events?from="+from, nil); got.status != 410 || got.code() != api.CodeCursorGone {
				t.Errorf("from %s: %s, want 410", from, got)
			}
		}
		s, status, stop := r.follow(follower, "?from=now", "")
		if status != 200 {
			t.Fatalf("from now: %d", status)
		}
		r.launch(r.leader(), body{"name": "b", "image": "tiny"})
		r.eventually("the launch's events", time.Minute, func() bool { _, says := s.so(0); return len(says) == 4 })
		stop()
	})
}

func TestAnOpenStreamEndsWhenARestoreReplacesTheState(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.image("tiny")
		r.applied()
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		streams := map[string]*stream{}
		for _, name := range r.names {
			s, status, stop := r.follow(name, "?from=now", "")
			defer stop()
			if status != 200 {
				t.Fatalf("the stream of %s begins with %d", name, status)
			}
			streams[name] = s
		}
		if got := r.call(r.leader(), "POST", restorePath, backup, "Content-Type", "application/octet-stream"); got.status != 200 {
			t.Fatalf("restoring: %s", got)
		}
		for name, s := range streams {
			select {
			case <-s.over: // what it would go on with is another history; the next try is told so
			case <-time.After(time.Minute):
				t.Errorf("the stream of %s goes on over the restore", name)
			}
		}
	})
}
