package guard

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestARateGivesABurstAndThenSoMuchASecond(t *testing.T) {
	now := time.Now()
	r := NewRate(2, 3, func() time.Time { return now })
	for i, want := range []bool{true, true, true, false, false} {
		if ok, wait := r.Take("a"); ok != want || !ok && wait != 500*time.Millisecond {
			t.Errorf("%d: got %v, %s", i, ok, wait)
		}
	}
	if ok, _ := r.Take("b"); !ok {
		t.Error("one key's burst is used up by another")
	}
	now = now.Add(500 * time.Millisecond)
	if ok, _ := r.Take("a"); !ok {
		t.Error("nothing came back after half a second")
	}
	if ok, _ := r.Take("a"); ok {
		t.Error("more came back than was due")
	}
	now = now.Add(time.Hour)
	for i, want := range []bool{true, true, true, false} {
		if ok, _ := r.Take("a"); ok != want {
			t.Errorf("after an hour, %d: got %v", i, ok)
		}
	}
}

func TestARateRemembersOnlySoMany(t *testing.T) {
	now := time.Now()
	r := NewRate(1, 1, func() time.Time { return now })
	for i := range 3 * mostRemembered {
		if i == mostRemembered {
			now = now.Add(time.Minute) // the first ones are whole again, the later ones are not
		}
		if ok, _ := r.Take(fmt.Sprint(i)); !ok {
			t.Fatalf("key %d is refused at its first try", i)
		}
		if len(r.keys) > mostRemembered {
			t.Fatalf("it remembers %d keys", len(r.keys))
		}
	}
}

func TestSlotsAreBoundedEachAndTogether(t *testing.T) {
	s := NewSlots(2, 3)
	var leave []func()
	for _, c := range []struct {
		key  string
		want bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"c", false}} {
		l, ok := s.Enter(c.key)
		if ok != c.want {
			t.Fatalf("%s: got %v", c.key, ok)
		}
		if ok {
			leave = append(leave, l)
		}
	}
	leave[0]()
	if _, ok := s.Enter("c"); !ok {
		t.Error("a slot that was left cannot be taken")
	}
	leave[1]()
	leave[2]()
	if len(s.keys) != 1 || s.total != 1 {
		t.Errorf("left over: %v, %d", s.keys, s.total)
	}
}

func TestAListenerOnLoopbackIsCalledByItsOwnNamesOnly(t *testing.T) {
	for _, c := range []struct {
		local, host string
		want        bool
	}{
		{"127.0.0.1:7788", "127.0.0.1:7788", true},
		{"127.0.0.1:7788", "localhost:7788", true},
		{"127.0.0.1:7788", "LOCALHOST", true},
		{"[::1]:7788", "[::1]:7788", true},
		{"127.0.0.1:7788", "127.8.8.8", true},
		{"127.0.0.1:7788", "", true},
		{"127.0.0.1:7788", "fleet.example:443", true},
		{"127.0.0.1:7788", "evil.example", false},
		{"127.0.0.1:7788", "evil.example:7788", false},
		{"127.0.0.1:7788", "10.0.0.1", false},
		{"127.0.0.1:7788", "localhost.evil.example", false},
		{"10.0.0.1:7788", "evil.example", true}, // not on loopback: everyone shows a token
	} {
		local, err := net.ResolveTCPAddr("tcp", c.local)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		if got := Named(req, "https://fleet.example", ""); got != c.want {
			t.Errorf("%s called %q: got %v", c.local, c.host, got)
		}
	}
}
