package api

import (
	"strings"
	"testing"
)

func TestRefusalsOfNumbersNameTheirBounds(t *testing.T) {
	large := int64(1) << 62
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"a quota":       {(&TenantRequest{Name: "acme", Quota: Quota{MaxVMs: &large}}).Check(), "from 0 to 1099511627776"},
		"an adjustment": {(&AdjustmentRequest{Tenant: "acme", AmountMicros: large, Reason: "r"}).Check(), "to 1152921504606846976"},
		"a duration":    {(&LeaseRequest{Tenant: "acme", Node: "n1", Duration: "9999d"}).Check(), "to 1098 days"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", what, c.err, c.want)
		}
	}
}
