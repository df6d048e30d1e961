package fsm

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// BenchmarkClaims applies what one warm VM's life is in the log: it is put into a pool, ready, claimed, handed over,
// deleted and gone, beside 2,000 others.
func BenchmarkClaims(b *testing.B) {
	state, index, now := New(), uint64(0), api.Time(1_700_000_000_000)
	do := func(kind Kind, op *Op, body any) Result {
		index, now = index+1, now+1
		raw, err := Encode(Envelope{Kind: kind, Now: now, Term: 1, Actor: "operator", Op: op}, body)
		if err != nil {
			b.Fatal(err)
		}
		r, err := state.Apply(index, raw)
		if err != nil || r.Err != nil {
			b.Fatal(err, r.Err)
		}
		return r
	}
	do(KindInitCluster, nil, InitCluster{ClusterID: "c-1", Epoch: 1, OperatorHash: "h"})
	do(KindCreateImage, nil, CreateImage{Image: api.ImageRequest{Name: "img", Path: "sim:?img", HasAgent: true, VCPUs: 1, MemoryMiB: 256}})
	for i := range 50 {
		n := host(fmt.Sprint("n", i), false)
		n.VCPUsTotal, n.MemoryMiBTotal = 1<<20, 1<<40
		do(KindRegisterNode, nil, RegisterNode{Operator: true, Node: n})
	}
	ready, most := api.MaxMinReady, api.MaxMaxTotal
	for i := range 60 {
		do(KindCreatePool, nil, CreatePool{Request: api.PoolRequest{Name: fmt.Sprint("p", i), Image: "img", MinReady: &ready, MaxTotal: &most}})
	}
	spare := func(i int) {
		id := uuid.Must(uuid.NewV7()).String()
		node := fmt.Sprint("n", i%50)
		do(KindFillPool, nil, FillPool{Pool: fmt.Sprint("p", i%60), Spares: []Spare{{ID: id, Name: "warm-" + id, Candidates: []string{node}}}})
		do(KindReportVMs, nil, ReportVMs{Reports: []VMReport{{ID: id, Node: node, Told: index, State: api.StateRunning, Agent: true}}})
	}
	for i := range 60 * 32 {
		spare(i)
	}
	var held []*Operation
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key := fmt.Sprint("k", i)
		r := do(KindLaunchVM, &Op{Key: key, Digest: key}, LaunchVM{ID: uuid.Must(uuid.NewV7()).String(), Launch: Launch{Name: "vm-" + key, Pool: fmt.Sprint("p", i%60)}})
		op := r.Value.(*Operation)
		ms := int64(3)
		do(KindReportVMs, nil, ReportVMs{Reports: []VMReport{{ID: op.Ref, Node: op.Node, Told: index, State: api.StateRunning, Agent: true, ClaimMS: &ms}}})
		spare(i)
		if held = append(held, op); len(held) > 500 {
			op, held = held[0], held[1:]
			do(KindDeleteVMs, nil, DeleteVMs{IDs: []string{op.Ref}})
			do(KindReportVMs, nil, ReportVMs{Reports: []VMReport{{ID: op.Ref, Node: op.Node, Told: index, State: api.StateGone}}})
		}
	}
}
