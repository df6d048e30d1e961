package provider

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func TestWaitOutlivesAFleetThatCannotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := waitFor(t.Context(), func(context.Context) (bool, error) {
			tries++
			if tries < 5 {
				return false, api.Errorf(api.CodeNotLeader, "no leader")
			}
			return true, nil
		})
		if err != nil || tries != 5 {
			t.Errorf("%d tries, %v", tries, err)
		}
		denied := api.Errorf(api.CodeForbidden, "not yours")
		if err := waitFor(t.Context(), func(context.Context) (bool, error) { return false, denied }); !errors.Is(err, denied) {
			t.Errorf("got %v, want the refusal at once", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := waitFor(ctx, func(context.Context) (bool, error) { return false, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	})
}

// answering is a fleet that has one answer to each path.
func answering(t *testing.T, answers map[string]any) op {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, ok := answers[r.URL.Path]
		if !ok {
			e := api.Errorf(api.CodeNotFound, "there is no %s", r.URL.Path).Filled("req")
			w.WriteHeader(e.Status)
			out = e
		}
		_ = json.NewEncoder(w).Encode(out) // the reader may be gone
	}))
	t.Cleanup(s.Close)
	c := must[*client.Client](t)(client.New(client.Config{Endpoints: []string{s.URL}}))
	return op{c, &diag.Diagnostics{}}
}

func TestWaitsEndInWarningsAndFailuresInErrors(t *testing.T) {
	t.Parallel()
	vm := func(state api.VMState, reason string) api.VM {
		return api.VM{ID: "v", Name: "one", Image: "tiny", Node: "n1", State: state, Reason: reason}
	}
	pool := func(ready, booting int, why string, state api.PoolState) api.Pool {
		s := api.PoolStatus{State: state, Ready: ready, Booting: booting, WaitReason: orNil(why), LastError: orNil(why), Reasons: map[string]int{api.WhyLabel: 1}}
		return api.Pool{Name: "ci", MinReady: 1, Status: s}
	}
	for name, c := range map[string]struct {
		answers map[string]any
		pool    bool
		want    diag.Severity
		text    string
	}{
		"slow VM":           {map[string]any{"/fleet/vms/v": vm(api.StateBooting, "")}, false, diag.SeverityWarning, "boots on"},
		"VM fails":          {map[string]any{"/fleet/vms/v": vm(api.StateFailed, "kernel not found")}, false, diag.SeverityError, "kernel not found"},
		"VM goes":           {map[string]any{}, false, diag.SeverityError, "ttl_seconds"},
		"slow pool":         {map[string]any{"/fleet/pools/ci": pool(0, 1, "", api.PoolFilling)}, true, diag.SeverityWarning, "goes on filling"},
		"pool without room": {map[string]any{"/fleet/pools/ci": pool(0, 0, api.WaitNoCapacity, api.PoolFilling)}, true, diag.SeverityWarning, "1 host: no label"},
		"pool cannot boot":  {map[string]any{"/fleet/pools/ci": pool(0, 0, api.WaitBootFailed, api.PoolBackingOff)}, true, diag.SeverityError, "boot_failed"},
		"pool that fills":   {map[string]any{"/fleet/pools/ci": pool(1, 0, "", api.PoolReady)}, true, diag.SeverityInvalid, ""},
		"VM without agent":  {map[string]any{"/fleet/vms/v": vm(api.StateRunning, ""), "/fleet/images/tiny": api.Image{Name: "tiny"}}, false, diag.SeverityInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			defer cancel()
			o := answering(t, c.answers)
			if c.pool {
				waitPoolReady(ctx, o, api.Pool{Name: "ci"}, "timeouts.create")
			} else {
				waitVMReady(ctx, o, api.VM{ID: "v", Name: "one", State: api.StatePlaced})
			}
			got := *o.diags
			switch {
			case c.want == diag.SeverityInvalid && len(got) == 0:
			case len(got) != 1 || got[0].Severity() != c.want || !strings.Contains(got[0].Detail(), c.text):
				t.Errorf("got %v, want one %s that says %q", got, c.want, c.text)
			}
		})
	}
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
