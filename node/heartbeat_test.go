package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// central stands for the replicas behind the beats' HTTP client.
type central struct {
	mu     sync.Mutex
	known  map[string]bool // credentials
	beats  map[string][]heard
	answer func(host string, r api.Register) (int, any) // nil: takes it
}

type heard struct {
	at     time.Time
	bearer string
	api.Register
}

func newCentral() *central { return &central{known: map[string]bool{}, beats: map[string][]heard{}} }

func (c *central) RoundTrip(req *http.Request) (*http.Response, error) {
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var r api.Register
	if err := api.Decode(raw, &r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	bearer := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	c.beats[req.URL.Host] = append(c.beats[req.URL.Host], heard{time.Now(), bearer, r})
	status, answer := 200, any(api.RegisterAnswer{OK: true, NextInMS: 10_000})
	switch {
	case !c.known[bearer] && bearer == "join" && r.Credential != "":
		c.known[r.Credential] = true
	case !c.known[bearer]:
		status, answer = 401, api.Errorf(api.CodeUnauthenticated, "who are you").Filled("r")
	}
	if c.answer != nil && status == 200 {
		if s, a := c.answer(req.URL.Host, r); s != 0 {
			status, answer = s, a
		}
	}
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	out, _ := json.Marshal(answer)
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(bytes.NewReader(out)), Header: http.Header{}, Request: req}, nil
}

func (c *central) heard(host string) []heard {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]heard(nil), c.beats[host]...)
}

func (c *central) say(answer func(host string, r api.Register) (int, any)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// newMember is a host whose replicas are c.
func newMember(t *testing.T, c *central, replicas ...string) *host {
	h := &host{t: t, dir: t.TempDir(), facts: newFacts(), cfg: func(cfg *Config) { cfg.Central, cfg.JoinToken = replicas, "join" }}
	h.startWith(func(d *Daemon) { d.beats.client.Transport = c })
	t.Cleanup(h.stop)
	return h
}

// tardy brings refusals late, b's later than a's.
type tardy struct{ *central }

func (c tardy) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.central.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		<-time.After(map[string]time.Duration{"a": 100 * time.Millisecond, "b": time.Second}[req.URL.Host])
	}
	return resp, err
}

func TestARefusalFromBeforeTheJoinSpendsNoSecondToken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		h := &host{t: t, dir: t.TempDir(), facts: newFacts(), cfg: func(cfg *Config) { cfg.Central, cfg.JoinToken = []string{"http://a", "http://b"}, "join" }}
		h.startWith(func(d *Daemon) { d.beats.client.Transport = tardy{c} })
		defer h.stop()
		passes(15 * time.Second)
		joins := 0
		for _, b := range append(c.heard("a"), c.heard("b")...) {
			if b.bearer == "join" {
				joins++
			}
		}
		if last := c.heard("b"); joins != 1 || last[len(last)-1].bearer != h.id.credential {
			t.Errorf("the join token was used %d times and b was last shown %q, want once and the node's own credential", joins, last[len(last)-1].bearer)
		}
	})
}

func TestANodeJoinsOnceAndThenShowsItsOwnCredential(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		h := newMember(t, c, "http://a", "http://b/", "http://c")
		passes(5 * time.Second)
		joins := 0
		for _, replica := range []string{"a", "b", "c"} {
			beats := c.heard(replica)
			if len(beats) == 0 {
				t.Fatalf("replica %s heard nothing", replica)
			}
			for _, b := range beats {
				if b.bearer == "join" {
					joins++
				}
			}
			last := beats[len(beats)-1]
			if last.bearer != h.id.credential && last.bearer != "join" {
				t.Errorf("replica %s was shown %q", replica, last.bearer)
			}
			if last.bearer != "join" && last.Credential != "" {
				t.Error("the credential was sent where it need not be")
			}
		}
		if joins != 1 {
			t.Errorf("the join token was used %d times, want once", joins)
		}
		uuid, instance := h.report().UUID, h.report().Instance
		h.stop()
		h.startWith(func(d *Daemon) { d.beats.client.Transport = c })
		if r := h.report(); r.UUID != uuid || r.Instance == instance {
			t.Errorf("after a restart: uuid %s → %s, instance %s → %s", uuid, r.UUID, instance, r.Instance)
		}
	})
}

func TestTheListIsSentWhenItChangesOrIsAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		h := newMember(t, c, "http://a")
		passes(35 * time.Second)
		before := c.heard("a")
		withList := 0
		for i, b := range before {
			if b.HasVMs {
				withList++
			}
			if i > 0 && b.Seq <= before[i-1].Seq {
				t.Error("seq does not rise")
			}
		}
		if withList != 2 || len(before) != 5 { // the refused first one, the join, and then every 10 s
			t.Errorf("got %d beats, %d with the list; want 5 and 2", len(before), withList)
		}

		id := h.boot(nil)
		passes(time.Second)
		changed := c.heard("a")[len(before):]
		if len(changed) == 0 || len(changed) > 6 {
			t.Fatalf("got %d beats while a VM booted, want a few at once", len(changed))
		}
		last := changed[len(changed)-1]
		if !last.HasVMs || len(last.VMs) != 1 || last.VMs[0].ID != id || !last.VMs[0].Agent || last.VMs[0].State != api.StateRunning {
			t.Errorf("got %+v, want the VM with its agent", last.VMs)
		}

		n := len(c.heard("a"))
		asked := false
		c.say(func(_ string, r api.Register) (int, any) {
			if r.HasVMs || asked {
				return 0, nil
			}
			asked = true
			return 200, api.RegisterAnswer{OK: true, NextInMS: 10_000, WantVMs: true}
		})
		passes(11 * time.Second)
		after := c.heard("a")[n:]
		if len(after) < 2 || !after[1].HasVMs || after[1].at.Sub(after[0].at) > time.Second {
			t.Errorf("want the list at once when it is asked for, got %d beats", len(after))
		}
	})
}

func TestOneReplicaThatFailsDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		c.say(func(host string, _ api.Register) (int, any) {
			switch host {
			case "b":
				return 503, api.Errorf(api.CodeUnavailable, "starting").Filled("r")
			case "c":
				return 500, "no problem document"
			}
			return 0, nil
		})
		newMember(t, c, "http://a", "http://b", "http://c")
		passes(65 * time.Second)
		if n := len(c.heard("a")); n < 6 || n > 9 {
			t.Errorf("the good replica heard %d beats in 65 s, want one every 10 s", n)
		}
		for _, bad := range []string{"b", "c"} {
			if n := len(c.heard(bad)); n < 8 || n > 40 {
				t.Errorf("replica %s heard %d beats in 65 s, want retries that slow down", bad, n)
			}
		}
		was := len(c.heard("b"))
		c.say(nil)
		passes(6 * time.Second)
		if len(c.heard("b")) == was {
			t.Error("a replica that is back was not tried within 6 s")
		}
	})
}

func TestReplicasThatCentralNamesAreFollowed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		named := []string{"http://a", "http://new"}
		c.say(func(string, api.Register) (int, any) {
			return 200, api.RegisterAnswer{OK: true, NextInMS: 5_000, Replicas: named}
		})
		newMember(t, c, "http://a")
		passes(11 * time.Second)
		if len(c.heard("new")) < 2 {
			t.Error("the new replica hears nothing")
		}
		c.say(func(string, api.Register) (int, any) {
			return 200, api.RegisterAnswer{OK: true, NextInMS: 5_000, Replicas: []string{"http://a"}}
		})
		passes(11 * time.Second)
		n := len(c.heard("new"))
		passes(30 * time.Second)
		if len(c.heard("new")) != n {
			t.Error("a replica that left is still told")
		}
		if len(c.heard("a")) < 8 {
			t.Errorf("the replica that stayed heard %d beats", len(c.heard("a")))
		}
	})
}

func TestAFrozenHostIsSilent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		h := newMember(t, c, "http://a")
		passes(15 * time.Second)
		h.want(200, "PATCH", "/v1/sim", fields{"freeze": true})
		passes(time.Second)
		n := len(c.heard("a"))
		passes(time.Minute)
		if len(c.heard("a")) != n {
			t.Error("a frozen host sent a beat")
		}
		h.want(200, "PATCH", "/v1/sim", fields{"freeze": false, "pressure_level": "warn"})
		passes(time.Second)
		beats := c.heard("a")
		if len(beats) == n || *beats[len(beats)-1].Density.HostPressureLevel != "warn" {
			t.Error("no beat at once after the thaw")
		}
	})
}

func TestTheDigestLeavesOutWhatChangesByItself(t *testing.T) {
	a := []api.ReportedVM{{ID: "1", State: api.StateGone, Reason: "expired", EndedMSAgo: 5}, {ID: "2", State: api.StateRunning}}
	b := []api.ReportedVM{{ID: "1", State: api.StateGone, Reason: "expired", EndedMSAgo: 500}, {ID: "2", State: api.StateRunning}}
	if digest(a) != digest(b) {
		t.Error("the time since a VM's end changes the digest")
	}
	if a[0].EndedMSAgo != 5 {
		t.Error("digest changed the list")
	}
	b[1].Agent = true
	if digest(a) == digest(b) {
		t.Error("an agent that answers does not change the digest")
	}
	if digest(nil) != digest([]api.ReportedVM{}) && digest(nil) == "" {
		t.Error("an empty list has no digest")
	}
}
