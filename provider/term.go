package provider

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// durationRule wants a length such as 90m or 7d.
func durationRule() validator.String {
	return textRule{"a length of time such as 90m, 24h or 7d", func(s string) error {
		if d, ok := api.ParseDuration(s); !ok || d < time.Second {
			return api.Invalid("", "it must be a length of time of at least 1s, such as 90m, 24h or 7d")
		}
		return nil
	}}
}

// timeRule wants an instant as RFC 3339.
func timeRule() validator.String {
	return textRule{"a time such as 2026-01-31T00:00:00Z", func(s string) error {
		if _, ok := instant(types.StringValue(s)); !ok {
			return api.Invalid("", "it must be a time such as 2026-01-31T00:00:00Z")
		}
		return nil
	}}
}

// instant reads RFC 3339; false for null, unknown and anything else.
func instant(s types.String) (api.Time, bool) {
	at, err := time.Parse(time.RFC3339, s.ValueString())
	return api.TimeOf(at), err == nil
}

// length reads 90m or 7d; false for null, unknown and anything else.
func length(s types.String) (time.Duration, bool) {
	if s.IsNull() || s.IsUnknown() {
		return 0, false
	}
	return api.ParseDuration(s.ValueString())
}

// sameLength says that two texts mean the same length of time: 7d is 168h.
func sameLength(a, b types.String) bool {
	x, okX := length(a)
	y, okY := length(b)
	return okX && okY && x == y
}

// lengthText writes a length as people do: 7d, 1d12h, 90m is 1h30m.
func lengthText(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if d >= day {
		text = strconv.FormatInt(int64(d/day), 10) + "d"
	}
	if rest := d % day; rest > 0 || text == "" {
		clock := rest.String() // ends in 0s and 0m where those are nothing
		if strings.HasSuffix(clock, "m0s") {
			clock = strings.TrimSuffix(clock, "0s")
		}
		if strings.HasSuffix(clock, "h0m") {
			clock = strings.TrimSuffix(clock, "0m")
		}
		text += clock
	}
	return text
}

// keepLength keeps what is there when another text means the same length.
type keepLength struct{}

func (keepLength) Description(context.Context) string {
	return "the same length may be written otherwise"
}
func (k keepLength) MarkdownDescription(ctx context.Context) string {
	return k.Description(ctx)
}

func (keepLength) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if sameLength(req.StateValue, req.ConfigValue) {
		resp.PlanValue = req.StateValue
	}
}
