package central

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAListPutTogetherIsTheOneThatIsEncoded(t *testing.T) {
	w := newWorld(t)
	w.image("linux", api.GuestLinux)
	w.node(host("n1"))
	var kept encodedVMs
	for i := range 6 {
		if i > 0 {
			w.vm(fmt.Sprint("vm-", i), "linux", "n1", 1, 512)
		}
		if i > 2 {
			w.do(fsm.KindPatchVM, fsm.PatchVM{ID: "vm-1", Patch: api.VMPatch{Name: api.Some(fmt.Sprintf("name-%d", i)), Labels: api.Some(map[string]*string{"quoted": new(`"<&>`)})}})
		}
		for limit := range 4 {
			p := page{limit: limit + 1}
			key := func(v *fsm.VM) string { return v.ID }
			want, err := json.Marshal(listPage(p, w.view().VMs(""), key, all[*fsm.VM], wireVM))
			if err != nil {
				t.Fatal(err)
			}
			got := joined(listPage(p, w.view().VMs(""), key, all[*fsm.VM], kept.vm))
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Fatalf("%d VMs, %d a page (-encoded +put together):\n%s", i, p.limit, diff)
			}
		}
	}
	for i := range maxEncoded + 10 {
		kept.vm(&fsm.VM{ID: fmt.Sprint(i)})
	}
	if n := len(kept.of); n > maxEncoded {
		t.Errorf("%d VMs are kept, want %d at most", n, maxEncoded)
	}
}
