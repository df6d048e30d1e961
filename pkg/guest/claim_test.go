package guest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeOwner notes what it was asked to do.
type fakeOwner struct {
	hostname, inMemory string
	renewed            []Renewal
	fail               error
}

func (o *fakeOwner) SetHostname(name string) error { o.hostname = name; return o.fail }

func (o *fakeOwner) Renew(r Renewal) error { o.renewed = append(o.renewed, r); return o.fail }

func (o *fakeOwner) InMemory(dir string) error { o.inMemory = dir; return o.fail }

func TestAClaimReachesTheGuest(t *testing.T) {
	root, owner := t.TempDir(), &fakeOwner{}
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{Root: root, Owner: owner})
	hello, err := c.Ping(soon(t))
	if err != nil || !hello.Claims {
		t.Fatalf("got %+v, %v; want an agent that takes claims", hello, err)
	}
	claim := Claim{Hostname: "build-42", Env: map[string]string{"STAGE": "te st", "QUOTE": "it's\n$(x)"}, Secrets: map[string]string{"TOKEN": "s3cret"},
		Files: []File{{Path: "/opt/job/run.sh", Content: "#!/bin/sh\n", Mode: 0o750}}}
	for range 2 { // a repeat changes nothing
		if err := c.Claim(soon(t), claim); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"/etc/hostname":             {"build-42\n", 0o644},
		"/run/fluxvm/secrets/TOKEN": {"s3cret", 0o600},
		"/opt/job/run.sh":           {"#!/bin/sh\n", 0o750},
	} {
		raw, err := os.ReadFile(root + path)
		info, _ := os.Stat(root + path)
		if err != nil || string(raw) != want.content || info.Mode().Perm() != want.mode {
			t.Errorf("%s: %q %v %v, want %q with mode %o", path, raw, info, err, want.content, want.mode)
		}
	}
	if dir, err := os.Stat(root + secretsDir); err != nil || dir.Mode().Perm() != 0o700 || owner.inMemory != filepath.Join(root, secretsDir) {
		t.Errorf("the directory of secrets is %v (%v), kept in memory: %q", dir, err, owner.inMemory)
	}
	if owner.hostname != "build-42" || len(owner.renewed) != 0 {
		t.Errorf("got %+v", owner)
	}
	got, err := c.Exec(soon(t), ExecRequest{Argv: []string{"sh", "-c", `. "$0"/run/fluxvm/env; printf '%s|%s|%s' "$STAGE" "$QUOTE" "$MORE"`, root}, Env: map[string]string{"MORE": "m"}})
	if err != nil || string(got.Stdout) != "te st|it's\n$(x)|m" {
		t.Errorf("a shell that reads env: %q %v", got.Stdout, err)
	}
	got, err = c.Exec(soon(t), ExecRequest{Argv: []string{"sh", "-c", `printf '%s|%s' "$STAGE" "$QUOTE"`}, Env: map[string]string{"STAGE": "mine"}})
	if err != nil || string(got.Stdout) != "mine|it's\n$(x)" {
		t.Errorf("a command in the claim's environment: %q %v", got.Stdout, err)
	}
}

func TestAClaimThatCannotBeCarriedOutSaysWhyAndNoValue(t *testing.T) {
	const secret = "s3cret"
	p := newPort(t)
	c := client(t, p)
	owner := &fakeOwner{fail: errors.New("not permitted")}
	serve(t, p, &Server{Root: t.TempDir(), Owner: owner})
	for name, claim := range map[string]Claim{
		"hostname":        {Hostname: "h"},
		"off the disk":    {Secrets: map[string]string{"A": secret}},
		"making room for": {Files: []File{{Path: "/etc/hostname/x", Content: secret}}},
	} {
		if name == "making room for" {
			owner.fail = nil
			if err := c.Claim(soon(t), Claim{Hostname: "h"}); err != nil {
				t.Fatal(err)
			}
		}
		err := c.Claim(soon(t), claim)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
		owner.fail = errors.New("not permitted")
	}
	owner.fail = nil
	if err := c.Claim(soon(t), Claim{Secrets: map[string]string{"../x": secret}}); err == nil {
		t.Error("a secret climbed out of its directory")
	}
}

func TestAnAgentWithoutAnOwnerSaysThatItTakesNoClaims(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	if hello, err := c.Ping(soon(t)); err != nil || hello.Claims {
		t.Errorf("got %+v, %v", hello, err)
	}
	if err := c.Claim(soon(t), Claim{Hostname: "h"}); err == nil {
		t.Error("the claim was taken")
	}
}
