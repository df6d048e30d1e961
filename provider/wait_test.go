package provider

import (
	"context"
	"errors"
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

// waited runs a wait of 400 ms and gives what it says.
func waited(t *testing.T, path string, wait func(context.Context, *client.Client, *diag.Diagnostics)) diag.Diagnostics {
	t.Helper()
	_, url := newFakeFleet(t)
	c := must[*client.Client](t)(client.New(client.Config{Endpoints: []string{url}, Token: "fvx_fake"}))
	must[api.Image](t)(c.CreateImage(t.Context(), api.ImageRequest{Name: "tiny", Path: path, HasAgent: true}, ""))
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	var diags diag.Diagnostics
	wait(ctx, c, &diags)
	return diags
}

func TestWaitsEndInWarningsAndFailuresInErrors(t *testing.T) {
	t.Parallel()
	vm := func(ctx context.Context, c *client.Client, diags *diag.Diagnostics) {
		answer, _, err := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, client.LaunchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		(&vmResource{c}).waitReady(ctx, answer.VM, diags)
	}
	pool := func(ctx context.Context, c *client.Client, diags *diag.Diagnostics) {
		must[api.Pool](t)(c.CreatePool(t.Context(), api.PoolRequest{Name: "ci", Image: "tiny"}, ""))
		(&poolResource{c}).waitReady(ctx, "ci", diags)
	}
	nowhere := func(ctx context.Context, c *client.Client, diags *diag.Diagnostics) {
		must[api.Pool](t)(c.CreatePool(t.Context(), api.PoolRequest{Name: "ci", Image: "tiny", NodeSelector: map[string]string{"nowhere": "true"}}, ""))
		(&poolResource{c}).waitReady(ctx, "ci", diags)
	}
	for name, c := range map[string]struct {
		path     string
		wait     func(context.Context, *client.Client, *diag.Diagnostics)
		severity diag.Severity
		text     string
	}{
		"slow VM":           {"sim:?boot_ms=600000", vm, diag.SeverityWarning, "boots on"},
		"slow pool":         {"sim:?boot_ms=600000", pool, diag.SeverityWarning, "goes on filling"},
		"pool without room": {"sim:?boot_ms=1", nowhere, diag.SeverityWarning, "1 host: no label"},
		"VM fails":          {"sim:?boot_ms=1&fail=boot", vm, diag.SeverityError, "did not boot"},
		"pool cannot boot":  {"sim:?boot_ms=1&fail=boot", pool, diag.SeverityError, "did not boot"},
	} {
		t.Run(name, func(t *testing.T) {
			got := waited(t, c.path, c.wait)
			if len(got) != 1 || got[0].Severity() != c.severity || !strings.Contains(got[0].Detail(), c.text) {
				t.Errorf("got %v, want one %s that says %q", got, c.severity, c.text)
			}
		})
	}
	if got := waited(t, "sim:?boot_ms=1", pool); len(got) != 0 {
		t.Errorf("a pool that fills: got %v", got)
	}
}
