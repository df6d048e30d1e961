package fsm

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// bodies has an empty body for each kind.
var bodies = map[Kind]any{
	KindInitCluster: InitCluster{}, KindTick: Tick{}, KindCreateImage: CreateImage{}, KindPatchImage: PatchImage{}, KindDeleteImage: DeleteImage{},
	KindRegisterNode: RegisterNode{}, KindPatchNode: PatchNode{}, KindDeleteNode: DeleteNode{}, KindNodeHealth: NodeHealth{}, KindCreateJoinToken: CreateJoinToken{},
	KindCreatePool: CreatePool{}, KindPatchPool: PatchPool{}, KindDeletePool: DeletePool{}, KindRollPool: RollPool{}, KindFillPool: FillPool{},
	KindLaunchVM: LaunchVM{}, KindMoveVM: MoveVM{}, KindFailHandOver: FailHandOver{}, KindReportVMs: ReportVMs{}, KindPatchVM: PatchVM{}, KindDeleteVMs: DeleteVMs{},
	KindCreateTenant: CreateTenant{}, KindPatchTenant: PatchTenant{}, KindDeleteTenant: DeleteTenant{}, KindCreateKey: CreateKey{}, KindDeleteKey: DeleteKey{}, KindTouchKeys: TouchKeys{},
	KindPatchPolicy: PatchPolicy{}, KindPutPrices: PutPrices{}, KindCreateLease: CreateLease{}, KindPatchLease: PatchLease{}, KindEndLease: EndLease{}, KindAdvanceLease: AdvanceLease{},
	KindReportScrub: ReportScrub{}, KindRetryScrub: RetryScrub{}, KindAdjustLedger: AdjustLedger{},
	KindAdmitReplica: AdmitReplica{}, KindAdoptNode: AdoptNode{},
	KindLoseNode: LoseNode{}, KindLoseVMs: LoseVMs{}, KindUpdateNodes: UpdateNodes{}, KindRelocateVMs: RelocateVMs{},
	KindFillPools: FillPools{},
}

// kind is a constant of command.go.
type kind struct {
	name   string // without the prefix Kind
	number Kind
}

// kinds reads the constants of type Kind from command.go, so that no list of a test can forget one.
func kinds(t *testing.T) (all []kind) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "command.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			if of, ok := spec.Type.(*ast.Ident); !ok || of.Name != "Kind" {
				continue
			}
			number, err := strconv.Atoi(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatalf("%s has no plain number: %v", spec.Names[0].Name, err)
			}
			all = append(all, kind{strings.TrimPrefix(spec.Names[0].Name, "Kind"), Kind(number)})
		}
	}
	if len(all) < 41 {
		t.Fatalf("found %d kinds in command.go, which has more", len(all))
	}
	return all
}

func TestEachKindHasANumberOfItsOwnAndABodyOfItsName(t *testing.T) {
	names := map[Kind]string{}
	for i, k := range kinds(t) {
		if other, taken := names[k.number]; taken {
			t.Errorf("%s and %s have the number %d", other, k.name, k.number)
		}
		names[k.number] = k.name
		if int(k.number) != i+1 {
			t.Errorf("%s has the number %d, want %d: numbers only grow, and none is left out", k.name, k.number, i+1)
		}
		if body := bodies[k.number]; body == nil || reflect.TypeOf(body).Name() != k.name {
			t.Errorf("the tests know kind %d by the body %T, want %s", k.number, body, k.name)
		}
	}
}

func TestEachKindHasACaseInApply(t *testing.T) {
	for _, k := range kinds(t) {
		f := empty(t)
		raw, err := Encode(Envelope{Kind: k.number, Now: 1}, bodies[k.number])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.state.Apply(1, raw); err != nil {
			t.Errorf("%s is not known: %v", k.name, err)
		}
	}
}

func TestNewestIsTheLastKind(t *testing.T) {
	all := kinds(t)
	if last := all[len(all)-1]; Newest != last.number || Baseline > Newest {
		t.Errorf("Newest is %d and Baseline %d; the last kind is %s, %d", Newest, Baseline, last.name, last.number)
	}
}

func TestAnOlderProgramHaltsAtANewerKindAndChangesNothing(t *testing.T) {
	s := NewKnowing(KindPatchImage)
	for i, k := range []Kind{KindTick, KindDeleteImage} {
		raw, err := Encode(Envelope{Kind: k, Now: 7}, bodies[k])
		if err != nil {
			t.Fatal(err)
		}
		before := s.View().Index()
		_, err = s.Apply(uint64(i+1), raw)
		if older := k > KindPatchImage; errors.Is(err, ErrUpgrade) != older || older && s.View().Index() != before {
			t.Errorf("kind %d: %v at index %d, want the upgrade message only for a newer kind, and nothing changed", k, err, s.View().Index())
		}
	}
}
