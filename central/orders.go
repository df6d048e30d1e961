package central

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	orderTries   = 5 // in a row; then the next pass goes on
	firstRetry   = 50 * time.Millisecond
	longestRetry = time.Second

	// handOverPatience is how long a claimed spare waits for a host that takes no connection: its daemon may only be
	// starting again, which is sooner over than the boot of another VM.
	handOverPatience = 3 * time.Second
)

// orders brings nodes to what the rows of VMs ask for: create, hand over, change, delete. It is level-triggered:
// whoever asks, only the row decides what is done, one order at a time for each VM. A handler that waits and the
// reconciler that repeats what a dead leader left are the same code.
type orders struct {
	reign *reign

	mu        sync.Mutex
	active    map[string]*order
	confirmed map[string]uint64    // the order a node confirmed for a VM, while that is not committed
	doubtful  map[string]string    // the node that may have made a VM, though its answer did not arrive
	absent    map[string]time.Time // when a node first said that it does not have a VM, while its list is awaited
	parked    map[string]time.Time // VMs that wait to boot anew, as all hosts refused them, until when
	busy      map[string]bool      // what else is being done, by name
	closed    bool
	running   sync.WaitGroup
}

// order is one VM being worked on.
type order struct {
	again  bool
	done   chan struct{}
	result settled // valid after done
}

// settled is how far a VM got. The zero value: its node has been told everything.
type settled struct {
	ended      *api.Error // no host takes it; it is gone
	replacedBy string     // its hand-over failed; its launch goes on as this VM
	waits      bool       // its node is starting as many others as it may; it starts in its turn
	claimMS    int64
	open       error // not settled yet; the reconciler goes on
}

func newOrders(r *reign) *orders {
	return &orders{reign: r, active: map[string]*order{}, confirmed: map[string]uint64{}, doubtful: map[string]string{}, absent: map[string]time.Time{}, parked: map[string]time.Time{}, busy: map[string]bool{}}
}

// close waits for the orders under way; no more are given.
func (o *orders) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.running.Wait()
}

// once does what is named in the background, unless that is under way.
func (o *orders) once(what string, do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.busy[what] {
		return
	}
	o.busy[what] = true
	o.running.Go(func() {
		do()
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.busy, what)
	})
}

// ensure works on the VM, or makes whoever does so look at its row once more.
func (o *orders) ensure(id string) *order {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.active[id]; one != nil {
		one.again = true
		return one
	}
	one := &order{done: make(chan struct{})}
	if o.closed {
		one.result.open = errDeposed
		close(one.done)
		return one
	}
	o.active[id] = one
	o.running.Go(func() { o.run(id, one) })
	return one
}

// settle waits until the VM's node has been told all, the VM has ended, or ctx ends. A launch whose hand-over
// failed is followed to the VM that it goes on as.
func (o *orders) settle(ctx context.Context, id string) (settled, error) {
	for {
		one := o.ensure(id)
		select {
		case <-ctx.Done():
			return settled{}, ctx.Err()
		case <-o.reign.ctx.Done():
			return settled{}, errDeposed
		case <-one.done:
		}
		switch res := one.result; {
		case res.replacedBy != "":
			id = res.replacedBy
		case res.open != nil:
			pause(ctx, firstRetry)
		default:
			return res, nil
		}
	}
}

var errDeposed = errors.New("this replica no longer leads")

func (o *orders) run(id string, one *order) {
	for {
		took := one.result.claimMS
		one.result = o.bring(id)
		one.result.claimMS = max(one.result.claimMS, took)
		o.mu.Lock()
		if one.again && o.reign.ctx.Err() == nil && one.result.replacedBy == "" && one.result.ended == nil {
			one.again = false
			o.mu.Unlock()
			continue
		}
		delete(o.active, id)
		o.mu.Unlock()
		close(one.done)
		return
	}
}

// bring works until the VM's node has been told all or a few tries in a row have failed.
func (o *orders) bring(id string) (out settled) {
	wait := firstRetry
	for try := 0; try < orderTries; try++ {
		if err := o.reign.ctx.Err(); err != nil {
			out.open = errDeposed
			return out
		}
		row := o.reign.view().VM(id)
		if row == nil || !row.NeedsOrder() || o.isConfirmed(row) {
			o.mu.Lock()
			delete(o.absent, id)
			delete(o.parked, id)
			o.mu.Unlock()
			out.open = nil
			return out
		}
		next, again := o.step(row)
		if next.claimMS == 0 {
			next.claimMS = out.claimMS
		}
		if out = next; out.ended != nil || out.replacedBy != "" || out.waits {
			return out
		}
		if !again {
			try = -1 // something was achieved: look at the row afresh
			continue
		}
		pause(o.reign.ctx, wait)
		wait = min(wait*2, longestRetry)
	}
	return out
}

func (o *orders) isConfirmed(row *fsm.VM) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.confirmed[row.ID] >= row.Order
}

// confirm notes that the node did as the row asked and queues that for the log.
func (o *orders) confirm(row *fsm.VM, report fsm.VMReport) {
	o.mu.Lock()
	o.confirmed[row.ID] = row.Order
	delete(o.doubtful, row.ID)
	delete(o.absent, row.ID)
	o.mu.Unlock()
	report.ID, report.Node, report.Told = row.ID, row.Node, row.Order
	o.reign.outcomes.add(o.reign.ctx, report, func() {
		if now := o.reign.view().VM(row.ID); row.Claim != nil && (now == nil || now.Claim == nil) {
			o.reign.secrets.drop(row.Scope, row.Key)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.confirmed[row.ID] == row.Order {
			delete(o.confirmed, row.ID)
		}
	})
}

// step gives the VM's node one order. again says that it did not work out and may be tried once more.
func (o *orders) step(row *fsm.VM) (out settled, again bool) {
	node := o.reign.view().Node(row.Node)
	b := o.reign.r.fleet.get(row.Node)
	switch {
	case row.Move == fsm.MoveEnded && node != nil && !node.Adopting:
		return o.relocate(row)
	case node == nil && row.State == api.StateDeleting:
		o.confirm(row, fsm.VMReport{State: api.StateGone, Reason: "its node was removed"})
		return out, false
	case node == nil || b == nil && node.State != api.NodeLost:
		return settled{open: fmt.Errorf("node %s was not heard yet", row.Node)}, true
	case b != nil && b.vms == nil && node.State != api.NodeLost: // a new one may have no certificate yet, and answers nobody
		return settled{open: fmt.Errorf("node %s has not listed its VMs yet", row.Node)}, true
	case node.Adopting && node.State != api.NodeLost:
		return settled{open: fmt.Errorf("node %s has not been heard since the restore", row.Node)}, true
	}
	switch {
	case node.State == api.NodeLost:
		return o.goOn(row)
	case row.State == api.StateDeleting, row.Move == fsm.MoveEnding:
		return o.remove(row, node, b)
	case row.State == api.StatePlaced && row.Told == 0:
		return o.create(row, node, b)
	default:
		return o.change(row, node, b)
	}
}

func (o *orders) send(row *fsm.VM, node *fsm.Node, b *beat, method, path string, body, out any) error {
	timeout := orderTimeout
	if patch, ok := body.(api.MachinePatch); takesLong(method, path) || ok && patch.Claim != nil { // a guest has a say in it
		timeout = endTimeout
	}
	ctx, cancel := context.WithTimeout(o.reign.ctx, timeout)
	defer cancel()
	token := fmt.Sprintf("%d.%d.%d", o.reign.view().Meta().Epoch, o.reign.term, row.Order)
	return o.reign.r.calls.call(ctx, node.URL, b.credential, method, path, token, body, out)
}

func (o *orders) remove(row *fsm.VM, node *fsm.Node, b *beat) (settled, bool) {
	switch err := o.send(row, node, b, "DELETE", "/v1/vms/"+url.PathEscape(row.ID), nil, nil); {
	case err == nil:
		o.confirm(row, fsm.VMReport{State: api.StateGone, Reason: row.Reason})
		return settled{}, false
	case codeOf(err) == api.CodeNotFound:
		return o.gone(row, b, row.Reason)
	default:
		return settled{open: err}, true
	}
}

// gone takes a VM for gone that its node does not have. One that ran is billed until it really ended, which only the
// node's list tells: it is waited for.
func (o *orders) gone(row *fsm.VM, b *beat, reason string) (settled, bool) {
	now := o.reign.r.wall()
	o.mu.Lock()
	said, known := o.absent[row.ID]
	if !known {
		said = now
		o.absent[row.ID] = said
	}
	o.mu.Unlock()
	ago, ok := b.goneFor(row.ID, said, now)
	if !ok && row.RunningAt != 0 {
		return settled{open: fmt.Errorf("node %s does not have the VM, and its list that says since when has not come", row.Node)}, true
	}
	o.confirm(row, fsm.VMReport{State: api.StateGone, Reason: reason, EndedMS: ago.Milliseconds()})
	return settled{}, false
}

// create orders the VM to be made. The node knows a repeat by the id. Only a refusal, or a host that certainly
// was not reached, lets the VM go elsewhere.
func (o *orders) create(row *fsm.VM, node *fsm.Node, b *beat) (settled, bool) {
	if view := o.reign.view(); startsLater(view, row) {
		return settled{waits: true}, false
	}
	var made api.Machine
	err := o.send(row, node, b, "POST", "/v1/vms", createBody(row, o.reign.view().Meta().ClusterID, o.reign.now()), &made)
	if err == nil && changedSince(row) {
		return o.change(row, node, b)
	}
	if err == nil {
		o.confirm(row, fsm.VMReport{State: shown(made.State), Agent: made.Agent, CanClaim: made.CanClaim, IP: made.IP, Reason: made.Reason})
		return settled{}, false
	}
	var unsent notSent
	refusal, why := "", ""
	switch code := codeOf(err); {
	case code == api.CodeStaleToken:
		return settled{open: err}, true
	case code == api.CodeUnauthenticated:
		return settled{open: err}, true // the node has not told this replica its credential yet
	case code.Temporary() && !o.lacks(row, node, b):
		return settled{open: err}, true // a daemon that is only starting says no to all, also to what it has
	case code != "" && code != api.CodeInternal && code != api.CodeOutcomeUnknown:
		refusal, why = errorDetail(err), whyRefused(refusalOf(err))
	case errors.As(err, &unsent) && row.Placed == o.reign.term && !o.doubts(row):
		refusal, why = "node "+row.Node+" cannot be reached", api.WhyUnhealthy
	case errors.As(err, &unsent):
		return settled{open: err}, true
	default:
		o.doubt(row)
		return settled{open: err}, true
	}
	if o.doubts(row) { // an earlier order may still be on its way there; after this one it makes nothing
		if err := o.send(row, node, b, "DELETE", "/v1/vms/"+url.PathEscape(row.ID), nil, nil); err != nil && codeOf(err) != api.CodeNotFound {
			return settled{open: err}, true
		}
	}
	moved, err := o.reign.move(row, refusal, why)
	if err != nil {
		return settled{open: err}, true
	}
	if moved.VM != nil && moved.VM.Move == fsm.MoveEnded {
		o.park(row.ID)
	}
	return settled{ended: moved.Ended}, false
}

// startsLater says whether the row's node has as many VMs to start before it as it may start at a time.
func startsLater(view fsm.View, row *fsm.VM) bool {
	limit := view.Policy().MaxBootsPerNode
	if limit <= 0 || view.Use(row.Node).Booting <= limit {
		return false
	}
	before := 0
	for other := range view.VMsOn(row.Node) {
		if other.State == api.StateBooting || other.State == api.StatePlaced && (other.Order < row.Order || other.Order == row.Order && other.ID < row.ID) {
			before++
		}
	}
	return before >= limit
}

// changedSince says whether a new VM's row was changed after its launch. A node that had made it before that answers a
// repeat with what it has, and has yet to be told.
func changedSince(row *fsm.VM) bool {
	l := row.Launch
	if l == nil {
		return false
	}
	deadline := api.Time(0)
	if l.TTLSeconds > 0 {
		deadline = row.CreatedAt.Add(time.Duration(l.TTLSeconds) * time.Second)
	}
	return row.Name != l.Name || row.ExpiresAt != deadline || !maps.Equal(row.Labels, l.Labels)
}

// lacks says whether the node itself says that it does not have the VM.
func (o *orders) lacks(row *fsm.VM, node *fsm.Node, b *beat) bool {
	ctx, cancel := context.WithTimeout(o.reign.ctx, orderTimeout)
	defer cancel()
	err := o.reign.r.calls.call(ctx, node.URL, b.credential, "GET", "/v1/vms/"+url.PathEscape(row.ID), "", nil, nil)
	return codeOf(err) == api.CodeNotFound
}

// doubt notes that the VM's node may have made it: until it says no, the VM goes nowhere else.
func (o *orders) doubt(row *fsm.VM) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.doubtful[row.ID] = row.Node
}

func (o *orders) doubts(row *fsm.VM) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.doubtful[row.ID] == row.Node
}

// shown is the state a node's answer stands for; a machine that was only just taken in is booting.
func shown(s api.VMState) api.VMState {
	if s == api.StatePlaced || s == "" {
		return api.StateBooting
	}
	return s
}

// change tells the node of a VM's new name, labels and deadline. For a claimed spare that is the hand-over; one
// that the node cannot carry out ends the spare, and the launch goes on as another VM.
func (o *orders) change(row *fsm.VM, node *fsm.Node, b *beat) (settled, bool) {
	var now api.Machine
	order := changeBody(row, o.reign.now())
	if row.Claim != nil && row.ReadyAt != 0 {
		values, ok := o.reign.secrets.of(row)
		if !ok {
			return settled{open: errNoSecrets}, true
		}
		order.Claim = guestClaim(row.Claim, values)
	}
	err := o.send(row, node, b, "PATCH", "/v1/vms/"+url.PathEscape(row.ID), order, &now)
	if err != nil && row.HandOver {
		err = o.handedOver(row, node, b, err, &now)
	}
	code := codeOf(err)
	var unsent notSent
	alive := now.State == api.StateRunning || now.State == api.StatePaused
	switch {
	case err == nil && (alive || !row.HandOver):
		report := fsm.VMReport{State: shown(now.State), Agent: now.Agent, CanClaim: now.CanClaim, IP: now.IP, Reason: now.Reason, Claimed: order.Claim != nil}
		var out settled
		if row.HandOver {
			out.claimMS = max(1, o.reign.now().Sub(row.ClaimedAt).Milliseconds())
			report.ClaimMS = &out.claimMS
		}
		o.confirm(row, report)
		return out, false
	case row.HandOver && errors.As(err, &unsent) && (o.reign.inherited(row) || o.reign.now().Sub(row.ClaimedAt) < handOverPatience):
		return settled{open: err}, true
	case row.HandOver && (err == nil || errors.As(err, &unsent) || errors.Is(err, errNoRoute) || order.Claim != nil && code == api.CodeOutcomeUnknown || code != "" && code != api.CodeStaleToken && code != api.CodeInternal && code != api.CodeUnauthenticated && !code.Temporary()):
		refusal := errorDetail(err)
		switch {
		case err == nil:
			refusal = "the VM is " + string(now.State)
		case errors.Is(err, errNoRoute), code == api.CodeNotFound && !o.lacks(row, node, b):
			// It has the VM and cannot change it. This costs one spare; the node holds no others until its daemon changes.
			o.reign.r.fleet.cannotRename(row.Node)
			refusal = "the daemon of node " + row.Node + " is too old to rename a VM"
		case code == "": // whatever an earlier try did there, the spare ends and is nobody's
			refusal = "node " + row.Node + " cannot be reached"
		}
		moved, err := o.reign.failHandOver(row, refusal)
		if err != nil {
			return settled{open: err}, true
		}
		if moved.Ended != nil {
			return settled{ended: moved.Ended}, false
		}
		if moved.VM != nil && moved.VM.ID != row.ID {
			o.ensure(row.ID) // the spare has to go
			return settled{replacedBy: moved.VM.ID}, false
		}
		return settled{}, false
	case code == api.CodeNotFound:
		return o.gone(row, b, "its node no longer has it")
	case order.Claim != nil && (code == api.CodeInvalid || code == api.CodeConflict): // the guest never will have it
		if err := o.reign.end(o.reign.ctx, o.reign.view(), []string{row.ID}, "claim", errorDetail(err), actorCentral); err != nil {
			return settled{open: err}, true
		}
		return settled{ended: api.Errorf(api.CodeConflict, "VM %s was deleted, for its guest cannot have the launch's claim: %s", row.Name, errorDetail(err))}, false
	}
	return settled{open: err}, true
}

// handedOver makes good the failure of a hand-over that the node has carried out before: a leader answers its launch as
// soon as the node has it, and may be lost before it has written that down. The name comes with all the rest.
func (o *orders) handedOver(row *fsm.VM, node *fsm.Node, b *beat, failure error, now *api.Machine) error {
	if code := codeOf(failure); code == "" && !errors.Is(failure, errNoRoute) || code == api.CodeStaleToken || code.Temporary() {
		return failure // the order is repeated in any case, or the node is not to be reached
	}
	ctx, cancel := context.WithTimeout(o.reign.ctx, orderTimeout)
	defer cancel()
	var have api.Machine
	if err := o.reign.r.calls.call(ctx, node.URL, b.credential, "GET", "/v1/vms/"+url.PathEscape(row.ID), "", nil, &have); err != nil || have.Name != row.Name {
		return failure
	}
	*now = have
	return nil
}

// errNoSecrets: another replica led when the launch was accepted, and its client has not come back yet.
var errNoSecrets = errors.New("the launch's secrets are not here")

func guestClaim(c *fsm.Claim, secrets map[string]string) *api.GuestClaim {
	return &api.GuestClaim{Claim: api.Claim{Hostname: c.Hostname, Env: c.Env, Files: c.Files, Secrets: secrets}, RotateIdentity: c.RotateIdentity}
}

// codeOf is the code a node refused with, empty when it did not answer with one.
func codeOf(err error) api.Code {
	if refused := refusalOf(err); refused != nil {
		return refused.Code
	}
	return ""
}

// refusalOf is what a node answered instead of carrying an order out; nil when it did not answer.
func refusalOf(err error) *api.Error {
	var refused *api.Error
	errors.As(err, &refused)
	return refused
}

func errorDetail(err error) string {
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		return refused.Detail
	case err != nil:
		return err.Error()
	}
	return ""
}

// nodeLabels are the labels a VM has on its node: the user's and FluxVM's own. null takes one off.
func nodeLabels(row *fsm.VM) map[string]*string {
	out := map[string]*string{api.LabelWarmPool: nil, api.LabelWarmClaimed: nil, api.LabelEphemeral: nil}
	for k, v := range row.Labels {
		out[k] = &v
	}
	yes := "true"
	switch {
	case row.Warm:
		out[api.LabelWarmPool], out[api.LabelEphemeral] = &row.Pool, &yes
	case row.ClaimedFrom != "":
		out[api.LabelWarmClaimed] = &row.ClaimedFrom
	}
	if row.ExpiresAt != 0 {
		out[api.LabelEphemeral] = &yes
	}
	return out
}

func createBody(row *fsm.VM, clusterID string, now api.Time) api.MachineRequest {
	out := api.MachineRequest{ID: row.ID, Name: row.Name, Backend: row.Backend, Image: row.ImagePath, GuestOS: row.GuestOS, VCPUs: row.VCPUs, MemoryMiB: row.MemoryMiB,
		DiskSizeGiB: row.DiskGiB, NoAgent: row.NoAgent, Labels: map[string]string{api.LabelCluster: clusterID}, ExpiresInMS: remaining(row, now)}
	out.Reschedulable = row.Reschedulable
	for k, v := range nodeLabels(row) {
		if v != nil {
			out.Labels[k] = *v
		}
	}
	if x := row.Boot; x != nil {
		out.CloudInit, out.Network, out.Networks, out.Apple, out.ExtraDisks, out.SecurityProfile, out.Balloon = x.CloudInit, x.Network, x.Networks, x.Apple, x.ExtraDisks, x.SecurityProfile, x.Balloon
	}
	return out
}

func changeBody(row *fsm.VM, now api.Time) api.MachinePatch {
	out := api.MachinePatch{Name: api.Some(row.Name), Labels: api.Some(nodeLabels(row)), ExpiresInMS: api.Null[int64]()}
	if left := remaining(row, now); left != nil {
		out.ExpiresInMS = api.Some(*left)
	}
	return out
}

// remaining is what is left of a VM's life in ms, at least 1; nil without a deadline.
func remaining(row *fsm.VM, now api.Time) *int64 {
	if row.ExpiresAt == 0 {
		return nil
	}
	left := max(1, row.ExpiresAt.Sub(now).Milliseconds())
	return &left
}

// newID makes a VM's id. Ids sort by the time they were made.
func newID() string { return uuid.Must(uuid.NewV7()).String() }
