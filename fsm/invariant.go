package fsm

import (
	"fmt"
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Check holds the view to what must be true after every command. Tests run it after each one.
func (v View) Check() error {
	names, keys := map[string]string{}, map[string]string{}
	uses, holdings := map[string]Use{}, map[string]holding{}
	for vm := range v.VMs("") {
		if err := v.checkVM(vm); err != nil {
			return fmt.Errorf("VM %s: %w", vm.ID, err)
		}
		if vm.Live() {
			key := text(vm.Tenant, vm.Name)
			if other, ok := names[key]; ok {
				return fmt.Errorf("VMs %s and %s hold the name %s", other, vm.ID, vm.Name)
			}
			names[key] = vm.ID
		}
		if vm.Key != "" && vm.Live() {
			key := text(vm.Scope, vm.Key)
			if other, ok := keys[key]; ok {
				return fmt.Errorf("VMs %s and %s come from one key", other, vm.ID)
			}
			keys[key] = vm.ID
		}
		u := uses[vm.Node]
		u.Node = vm.Node
		overcommit := 1
		if n := v.Node(vm.Node); n != nil {
			overcommit = max(n.CPUOvercommit, 1)
		}
		addUse(&u, vm, +1, overcommit)
		uses[vm.Node] = u
		if vm.counts() {
			h := holdings[vm.Tenant]
			h.tenant = vm.Tenant
			h.add(vm, +1)
			holdings[vm.Tenant] = h
		}
	}
	for h := range v.holdings.each(byID, "") {
		if holdings[h.tenant] != *h {
			return fmt.Errorf("tenant %q is said to hold %+v and holds %+v", h.tenant, *h, holdings[h.tenant])
		}
		delete(holdings, h.tenant)
	}
	if len(holdings) > 0 {
		return fmt.Errorf("what tenants hold is not counted: %+v", holdings)
	}
	if err := v.checkNodes(uses); err != nil {
		return err
	}
	if err := v.checkLeases(); err != nil {
		return err
	}
	if err := v.checkLedger(); err != nil {
		return err
	}
	for p := range v.Pools("") {
		if err := v.checkPool(p); err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	operations := 0
	for range v.operations.each(byID, "") {
		operations++
	}
	if m := v.Meta(); m.Operations != operations {
		return fmt.Errorf("%d operations are counted and %d are there", m.Operations, operations)
	}
	return nil
}

func (v View) checkVM(vm *VM) error {
	switch {
	case vm.Node == "":
		return fmt.Errorf("has no node")
	case vm.Warm && vm.ClaimedFrom != "":
		return fmt.Errorf("is a spare and taken at once")
	case vm.Warm && vm.Live() && v.Pool(vm.Pool) == nil:
		return fmt.Errorf("is a live spare of pool %s, which is not there", vm.Pool)
	case vm.HandOver && (vm.ClaimedFrom == "" || vm.Launch == nil):
		return fmt.Errorf("is handed over without a claim or without what to boot instead")
	case !vm.HandOver && vm.Launch != nil && (vm.Told != 0 && !vm.Reschedulable || !vm.Live()):
		return fmt.Errorf("keeps its launch, and its node has it")
	case vm.State == api.StatePlaced && vm.Told == 0 && !vm.Warm && vm.Launch == nil:
		return fmt.Errorf("has forgotten its launch before a node has it")
	case vm.Claim != nil && vm.ReadyAt != 0 && vm.Told >= vm.Order:
		return fmt.Errorf("its guest waits for its claim, and its node is said to have heard all")
	case vm.Claim != nil && (vm.Warm || !vm.Live()):
		return fmt.Errorf("keeps a claim for nobody")
	case vm.Told > vm.Order:
		return fmt.Errorf("its node confirmed order %d, and the last was %d", vm.Told, vm.Order)
	case vm.SpareSince != 0 && vm.RunningAt == 0:
		return fmt.Errorf("was ready without having run")
	case vm.Version > v.Index() || vm.Order > v.Index():
		return fmt.Errorf("comes from the future")
	}
	if op := v.Operation(vm.Scope, vm.Key); vm.Key != "" && op != nil && vm.Live() && op.Ref != vm.ID {
		return fmt.Errorf("its key belongs to VM %s", op.Ref)
	}
	return nil
}

func (v View) checkNodes(uses map[string]Use) error {
	counted := 0
	for u := range v.uses.each(byID, "") {
		counted++
		if uses[u.Node] != *u {
			return fmt.Errorf("node %s is said to hold %+v and holds %+v", u.Node, *u, uses[u.Node])
		}
		if u.MacOS > api.MacOSPerHost {
			return fmt.Errorf("node %s has %d macOS guests; %d are allowed", u.Node, u.MacOS, api.MacOSPerHost)
		}
	}
	if counted != len(uses) {
		return fmt.Errorf("%d nodes hold VMs and %d are counted", len(uses), counted)
	}
	return nil
}

func (v View) checkPool(p *Pool) error {
	switch {
	case p.MinReady < 0 || p.MinReady > api.MaxMinReady || p.MaxTotal > api.MaxMaxTotal || p.MaxTotal < p.MinReady:
		return fmt.Errorf("keeps %d ready of %d in all", p.MinReady, p.MaxTotal)
	case !p.MaxTotalSet && p.MaxTotal != maxTotalFor(p.MinReady):
		return fmt.Errorf("max_total %d does not follow min_ready %d", p.MaxTotal, p.MinReady)
	}
	for s := range v.claims.from(byID, text(p.Name)) {
		if s.Pool == p.Name && (s.Claims < 0 || s.Timed < 0) {
			return fmt.Errorf("counts %d claims and %d timed ones in minute %d", s.Claims, s.Timed, s.Minute)
		}
	}
	ready := true
	for s := range v.Spares(p.Name) {
		if isReady := s.WarmState() == "ready"; isReady && !ready {
			return fmt.Errorf("a ready spare comes after one that is not")
		} else if !isReady {
			ready = false
		}
	}
	return nil
}

// checkLeases: a host has one lease at most, from both ends; a leased host serves one tenant; one that is being
// cleaned serves nobody.
func (v View) checkLeases() error {
	for n := range v.Nodes("") {
		if n.Lease == "" {
			continue
		}
		l := v.Lease(n.Lease)
		if l == nil || !l.Live() || !slices.Contains(l.Nodes, n.Name) {
			return fmt.Errorf("node %s is held by lease %s, which does not have it", n.Name, n.Lease)
		}
		for vm := range v.VMsOn(n.Name) {
			switch {
			case !vm.Live() || l.State == api.LeasePending:
			case l.State != api.LeaseActive:
				return fmt.Errorf("VM %s lives on node %s, whose lease is %s", vm.ID, n.Name, l.State)
			case vm.Tenant != l.Tenant:
				return fmt.Errorf("VM %s of %q lives on node %s, which %s leases", vm.ID, vm.Tenant, n.Name, l.Tenant)
			}
		}
	}
	for l := range v.LiveLeases() {
		for _, name := range l.Nodes {
			scrubbed := slices.ContainsFunc(l.Scrubs, func(s Scrub) bool { return s.Node == name && s.State == api.ScrubDone })
			if n := v.Node(name); n != nil && (n.Lease == l.ID) == scrubbed {
				return fmt.Errorf("lease %s and node %s disagree on whether it is held", l.ID, name)
			}
		}
	}
	return nil
}

// checkLedger: what is billed now has exactly one open stretch, and nothing else has; one VM's stretches follow one
// another; amounts are what times and rates make.
func (v View) checkLedger() error {
	last := map[string]*LedgerRow{}
	for row := range v.Ledger(0) {
		if row.Kind == api.LedgerAdjustment {
			continue
		}
		what := text(row.VMID, row.LeaseID, row.LeaseID, row.Node)
		if row.VMID != "" {
			what = text(row.VMID)
		}
		if before := last[what]; before != nil && (before.EndedAt == 0 || before.EndedAt > row.StartedAt) {
			return fmt.Errorf("ledger rows %d and %d overlap", before.Seq, row.Seq)
		}
		last[what] = row
		if row.EndedAt != 0 && (row.EndedAt < row.StartedAt || row.Amount != row.cost(row.EndedAt)) {
			return fmt.Errorf("ledger row %d lasts %d ms and costs %d", row.Seq, row.EndedAt-row.StartedAt, row.Amount)
		}
		if row.EndedAt == 0 && row.VMID != "" {
			if b := billOf(v.VM(row.VMID)); b.kind != row.Kind || b.tenant != row.Tenant || b.node != row.Node || b.vcpus != row.VCPUs || b.memoryMiB != row.MemoryMiB {
				return fmt.Errorf("ledger row %d is open for what VM %s is not", row.Seq, row.VMID)
			}
		}
		if l := v.Lease(row.LeaseID); row.EndedAt == 0 && row.LeaseID != "" && (l == nil || l.State != api.LeaseActive) {
			return fmt.Errorf("ledger row %d is open for lease %s, which is not active", row.Seq, row.LeaseID)
		}
	}
	for vm := range v.VMs("") {
		if billOf(vm) != (bill{}) && v.ledger.find(ledgerOpen, text("vm", vm.ID)) == nil {
			return fmt.Errorf("VM %s runs and nobody is billed", vm.ID)
		}
	}
	for l := range v.LiveLeases() {
		for _, name := range l.Nodes {
			if l.State == api.LeaseActive && v.ledger.find(ledgerOpen, text("lease", l.ID, name)) == nil {
				return fmt.Errorf("lease %s is active and nobody is billed for node %s", l.ID, name)
			}
		}
	}
	return nil
}
