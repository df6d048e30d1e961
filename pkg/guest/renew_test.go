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
	owner := &fakeOwner{}
	serve(t, p, &Server{Owner: owner})
	if err := c.Renew(soon(t), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Renewal{want}, owner.renewed); diff != "" {
		t.Error(diff)
	}
	owner.fail = errors.New("no clock here")
	if err := c.Renew(soon(t), Renewal{}); err == nil || !strings.Contains(err.Error(), "no clock here") {
		t.Errorf("got %v", err)
	}
}
