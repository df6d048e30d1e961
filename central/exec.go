package central

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// execAnswer is a node's answer to a command; replayed says that it answers as it did the first time.
type execAnswer struct {
	api.ExecAnswer
	replayed bool
}

func (a *execAnswer) hear(h http.Header) { a.replayed = h.Get(api.HeaderReplayed) == "true" }

// execVM runs a command in the guest. The request's key is the order's OP, so that the node knows a repeat and answers
// it as the first time.
func (q *request) execVM() error {
	var body api.ExecRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	view := q.r.state.View()
	v, err := q.vm(view)
	if err != nil {
		return err
	}
	if err := mayExec(v); err != nil {
		return err
	}
	node, b := view.Node(v.Node), q.r.fleet.get(v.Node)
	if node == nil || b == nil {
		return api.Errorf(api.CodeUnavailable, "node %s was not heard yet; try again in a moment", v.Node)
	}
	seconds := body.TimeoutSecs
	if seconds == 0 {
		seconds = 60
	}
	ctx, cancel := context.WithTimeout(q.Context(), time.Duration(seconds)*time.Second+endTimeout)
	defer cancel()
	token := fmt.Sprintf("%d.%d.exec-%s", view.Meta().Epoch, g.term, hashToken(q.caller.tenant + "\n" + q.key)[:32])
	var out execAnswer
	err = q.r.calls.call(ctx, node.URL, b.credential, http.MethodPost, "/v1/vms/"+url.PathEscape(v.ID)+"/exec", token, body, &out)
	var unsent notSent
	switch {
	case err == nil:
		if out.replayed {
			q.w.Header().Set(api.HeaderReplayed, "true")
		}
		return q.send(http.StatusOK, out.ExecAnswer)
	case codeOf(err) == api.CodeStaleToken:
		return api.Errorf(api.CodeNotLeader, "another replica leads now; try again")
	case codeOf(err) != "":
		return err
	}
	q.r.logger.Warn("a node did not answer a command", "node", v.Node, "vm", v.ID, "error", err)
	if errors.As(err, &unsent) {
		return noAnswer(v.Node)
	}
	return api.Errorf(api.CodeOutcomeUnknown, "node %s did not answer, and may have run the command all the same; repeat it with the same Idempotency-Key to get its answer", v.Node)
}

// mayExec says why no command can run in the VM.
func mayExec(v *fsm.VM) error {
	switch {
	case v.NoAgent:
		return api.Errorf(api.CodeConflict, "VM %s has no guest agent, so no command can run in it; launch it from an image that has one", v.Name)
	case v.State == api.StateFailed, v.State == api.StateStopped, v.State == api.StateDeleting, v.State == api.StateLost:
		return api.Errorf(api.CodeConflict, "VM %s is %s, so no command can run in it; launch another one", v.Name, v.State)
	case v.State == api.StateUnknown:
		return api.Errorf(api.CodeConflict, "the state of VM %s is unknown while node %s is silent; try again when the node is back", v.Name, v.Node)
	case v.State == api.StatePaused:
		return api.Errorf(api.CodeConflict, "VM %s is paused; resume it on its node", v.Name)
	case v.State != api.StateRunning || v.ReadyAt == 0:
		return api.Errorf(api.CodeConflict, "the guest agent of VM %s does not answer yet (it is %s); try again, or launch with wait=ready", v.Name, v.State)
	}
	return nil
}

// noAnswer is for a request that a node certainly did not get.
func noAnswer(node string) error {
	return api.Errorf(api.CodeUnavailable, "node %s does not answer; try again, or see fluxctl fleet node %s", node, node)
}
