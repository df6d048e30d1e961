package guest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestARenewalReachesTheAgentWholeAndItsFailureComesBack(t *testing.T) {
	want := Renewal{Seed: []byte("0123456789abcdef"), UnixNanos: 42, Hostname: "copy", MachineID: "m", BootID: "b", HostKeys: true}
	p := newPort(t)
	c := client(t, p)
	got := make(chan Renewal, 1)
	serve(t, p, &Server{Renew: func(r Renewal) error {
		got <- r
		if r.Hostname == "" {
			return errors.New("no clock here")
		}
		return nil
	}})
	if err := c.Renew(soon(t), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error(diff)
	}
	if err := c.Renew(soon(t), Renewal{}); err == nil || !strings.Contains(err.Error(), "no clock here") {
		t.Errorf("got %v", err)
	}
}
