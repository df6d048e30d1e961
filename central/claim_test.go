package central

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const testSecret = "hunter2-hunter2"

func claimBody(name string, more body) body {
	b := body{"name": name, "image": "tiny", "claim": body{"hostname": name, "env": body{"STAGE": "test"}, "files": []body{{"path": "/etc/job", "content": "42"}}, "secrets": body{"TOKEN": testSecret}}}
	for k, v := range more {
		b[k] = v
	}
	return b
}

// given is what a VM's guest was given, on whichever node it is.
func (r *rig) given(id string) (out []api.GuestClaim) {
	for _, n := range r.nodes {
		n.mu.Lock()
		out = append(out, n.claims[id]...)
		n.mu.Unlock()
	}
	return out
}

// holds says whether anything that a replica keeps or shows has the text.
func (r *rig) holds(t *testing.T, text string) (where string) {
	t.Helper()
	for _, name := range r.names {
		m := r.member(name)
		if m == nil {
			continue
		}
		var snapshot bytes.Buffer
		if _, err := m.state.View().WriteTo(&snapshot); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(snapshot.Bytes(), []byte(text)) {
			where += " snapshot of " + name
		}
		events, _, _ := m.state.Events().After(1, 1<<30, 1<<20)
		for _, e := range events {
			if raw, err := json.Marshal(e.Row); err != nil || bytes.Contains(raw, []byte(text)) {
				where += " an event"
			}
		}
	}
	for _, path := range []string{"/fleet/vms", "/fleet/activity", "/fleet/pools", "/fleet/ledger"} {
		if got := r.call(r.leader(), "GET", path, nil); strings.Contains(string(got.body), text) {
			where += " " + path
		}
	}
	return where
}

// strand lets a leader commit a launch and lose its office before any node hears of it.
func (r *rig) strand(key string, launch body) (id, next string) {
	r.t.Helper()
	old := r.leader()
	for _, n := range r.nodes {
		n.with(func() { n.silent = true })
	}
	lost := r.ask(old, "POST", "/fleet/vms", launch, api.HeaderIdempotencyKey, key)
	r.eventually("the launch to be committed", 10*time.Second, func() bool {
		if op := r.member(old).state.View().Operation("", key); op != nil {
			id = op.Ref
		}
		return id != ""
	})
	r.cutOff(old)
	r.network.Isolate(old)
	for _, n := range r.nodes {
		n.with(func() { n.silent = false })
	}
	next = r.newLeader(old)
	<-lost
	return id, next
}

func TestAClaimReachesAWarmGuestAtHandOverAndAColdOneOnceItsAgentAnswers(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		for name, more := range map[string]body{"warm": {}, "cold": {"balloon": body{}}} {
			got := r.launch(r.follower(), claimBody(name, more))
			if got.Warm != (name == "warm") || got.VM.ReadyAt == 0 {
				t.Errorf("launch %s got %+v; secrets are answered for once the guest has them", name, got)
			}
			given := r.given(got.VM.ID)
			if len(given) != 1 || given[0].Hostname != name || given[0].Env["STAGE"] != "test" || given[0].Secrets["TOKEN"] != testSecret || given[0].Files[0].Content != "42" || given[0].RotateIdentity {
				t.Errorf("the guest of %s was given %+v", name, given)
			}
			r.eventually("nothing of the claim to be left", time.Minute, func() bool {
				row := r.member(r.leader()).state.View().VM(got.VM.ID)
				return row.Claim == nil && (row.Launch == nil || row.Reschedulable && row.Launch.Claim == nil) && !row.NeedsOrder()
			})
			r.full("p")
		}
		if where := r.holds(t, testSecret); where != "" {
			t.Errorf("the secret is in%s", where)
		}
		if n := r.secretsHeld(); n != 0 {
			t.Errorf("secrets of %d launches are still held", n)
		}
	})
}

// secretsHeld is of how many launches the leader holds secrets.
func (r *rig) secretsHeld() int {
	s := &r.member(r.leader()).reign.Load().secrets
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 && s.bytes != 0 {
		r.t.Errorf("no secrets are held, in %d bytes", s.bytes)
	}
	return len(s.held)
}

func TestSecretsAreForgottenHoweverTheirVMEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, n1 *modelNode){
		"it is deleted":        func(r *rig, _ *modelNode) { r.call(r.leader(), "DELETE", "/fleet/vms/a", nil) },
		"its host loses it":    func(_ *rig, n1 *modelNode) { n1.with(func() { clear(n1.vms) }) },
		"its host is rebooted": func(_ *rig, n1 *modelNode) { n1.reboot() },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1")
				n1 := r.node("n1")
				n1.with(func() { n1.bootTakes = time.Hour })
				answer := r.ask(r.leader(), "POST", "/fleet/vms", claimBody("a", nil))
				r.eventually("the VM to boot", time.Minute, func() bool { return n1.count() == 1 })
				r.wait(20 * time.Second)
				if n := r.secretsHeld(); n != 1 {
					t.Errorf("while it boots, secrets of %d launches are held", n)
				}
				end(r, n1)
				r.eventually("no secrets to be held", 30*time.Second, func() bool { return r.secretsHeld() == 0 })
				<-answer
			})
		})
	}
}

// What a launch brought that came to nothing is not given to the next one under its key.
func TestALaunchThatNoHostTookLeavesNoSecrets(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		n1.with(func() { n1.refuse = api.Errorf(api.CodeHostFull, "full") })
		old := claimBody("a", nil)
		old["claim"].(body)["secrets"] = body{"TOKEN": "old"}
		for _, key := range []string{"k", "other"} {
			if got := r.call(r.leader(), "POST", "/fleet/vms", old, api.HeaderIdempotencyKey, key); got.code() != api.CodeNoCapacity {
				t.Errorf("got %s", got)
			}
		}
		n1.with(func() { n1.refuse = nil })
		a := into[api.LaunchAnswer](t, r.call(r.leader(), "POST", "/fleet/vms", claimBody("a", nil), api.HeaderIdempotencyKey, "k"))
		if given := r.given(a.VM.ID); len(given) != 1 || given[0].Secrets["TOKEN"] != testSecret {
			t.Errorf("the guest was given %+v", given)
		}
		r.eventually("no secrets to be held", 2*unknownPatience, func() bool { return r.secretsHeld() == 0 })
	})
}

func TestAClaimWithoutSecretsDoesNotHoldTheAnswerBack(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.node("n1").with(func() { r.node("n1").bootTakes = time.Minute })
		got := r.launch(r.leader(), body{"name": "a", "image": "tiny", "claim": body{"hostname": "ci"}})
		if got.VM.State == api.StateRunning || !strings.Contains(got.VM.Reason, "claim") {
			t.Errorf("got %+v, want a VM that boots and says what is to come", got.VM)
		}
		r.eventually("the guest to have its claim", 2*time.Minute, func() bool { return len(r.given(got.VM.ID)) > 0 })
	})
}

func TestSecretsOutliveTheLeaderInTheClientsRepeatAlone(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		id, next := r.strand("k", claimBody("a", nil))
		r.wait(time.Minute)
		if row := r.member(next).state.View().VM(id); !row.HandOver || len(r.given(id)) != 0 {
			t.Errorf("without the secrets the VM was handed over: %+v", row)
		}
		if where := r.holds(t, testSecret); where != "" {
			t.Errorf("while its guest waits, the secret is in%s", where)
		}
		if vm := into[api.VM](t, r.call(next, "GET", "/fleet/vms/"+id, nil)); !strings.Contains(vm.Reason, "Idempotency-Key") {
			t.Errorf("the VM says %q, want how to go on", vm.Reason)
		}
		other := claimBody("a", nil)
		other["claim"].(body)["hostname"] = "other"
		if got := r.call(next, "POST", "/fleet/vms", other, api.HeaderIdempotencyKey, "k"); got.code() != api.CodeKeyReused {
			t.Errorf("another claim under the key: %s, want key_reused", got)
		}
		got := r.insist("POST", "/fleet/vms", claimBody("a", nil), "k")
		again := into[api.LaunchAnswer](t, got)
		given := r.given(id)
		if again.VM.ID != id || !again.Warm || got.header.Get(api.HeaderReplayed) != "true" || len(given) != 1 || given[0].Secrets["TOKEN"] != testSecret {
			t.Errorf("the repeat got %+v, and the guest %+v", again, given)
		}
		if where := r.holds(t, testSecret); where != "" {
			t.Errorf("the secret is in%s", where)
		}
	})
}

func TestAVMWhoseSecretsNeverComeEndsAfterAQuarterOfAnHour(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		r.strand("k", claimBody("a", nil))
		r.wait(10 * time.Minute)
		if r.member(r.leader()).state.View().VMNamed("", "a") == nil {
			t.Error("it ended early")
		}
		r.eventually("the VM to end", 10*time.Minute, func() bool { return r.member(r.leader()).state.View().VMNamed("", "a") == nil })
		r.full("p")
	})
}

func TestAnAgentThatTakesNoClaimsCostsAColdBootOrTheVM(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.addNode("n1", func(n *modelNode) { n.oldAgents = true })
		r.registered()
		r.image("tiny")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		if got := r.call(r.leader(), "POST", "/fleet/vms", claimBody("a", nil)); got.status != http.StatusConflict || !strings.Contains(string(got.body), "claim") {
			t.Errorf("with secrets and an old agent: %s, want 409", got)
		}
		got := r.launch(r.leader(), body{"name": "b", "image": "tiny", "claim": body{"hostname": "ci"}})
		if got.Warm || got.ColdReason != "claim" {
			t.Errorf("got %+v, want a cold boot because of the claim", got)
		}
		r.eventually("the VM that cannot have its claim to end", time.Minute, func() bool { return r.member(r.leader()).state.View().VM(got.VM.ID) == nil })
		n1 := r.node("n1")
		n1.with(func() { n1.facts.Capabilities.Claim = false })
		r.eventually("the node to say that its daemon gives no claims", time.Minute, func() bool { return !r.member(r.leader()).state.View().Node("n1").Claim })
		if got := r.call(r.leader(), "POST", "/fleet/vms", claimBody("c", nil)); got.code() != api.CodeNoCapacity {
			t.Errorf("where no daemon gives claims: %s, want no_capacity", got)
		}
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "d", "image": "tiny", "claim": body{"hostnam": "ci"}}); got.status != http.StatusBadRequest {
			t.Errorf("an unknown field of the claim: %s", got)
		}
	})
}

func TestAFailedHandOverBringsTheClaimToTheNewVM(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		spare := r.vms()[0]
		n := r.node(spare.Node)
		n.with(func() { n.noRename = api.Errorf(api.CodeNotFound, "no such route") })
		other := "n1"
		if spare.Node == other {
			other = "n2"
		}
		n.with(func() { n.refuse = api.Errorf(api.CodeHostFull, "full") })
		got := r.launch(r.leader(), claimBody("a", nil))
		if got.Warm || got.ColdReason != "rename_failed" || got.Node != other {
			t.Errorf("got %+v, want a boot on %s", got, other)
		}
		if given := r.given(got.VM.ID); len(given) != 1 || given[0].Secrets["TOKEN"] != testSecret {
			t.Errorf("the new VM's guest was given %+v", given)
		}
		n.with(func() { n.noRename, n.refuse = nil, nil })
	})
}
