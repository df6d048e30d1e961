package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// textOrNull gives null for an empty string.
func textOrNull(s string) types.String {
	if s == "" {
		return types.StringNull()
	}
	return types.StringValue(s)
}

// timeOrNull gives RFC 3339, or null for what has not happened.
func timeOrNull(t api.Time) types.String { return textOrNull(t.String()) }

// stringMap reads a map; null and unknown give nil.
func stringMap(ctx context.Context, m types.Map, diags *diag.Diagnostics) map[string]string {
	if m.IsNull() || m.IsUnknown() {
		return nil
	}
	out := map[string]string{}
	diags.Append(m.ElementsAs(ctx, &out, false)...)
	return out
}

// mapValue gives the API's map. The API does not tell "none" from "empty", so an empty one stays as was is.
func mapValue(m map[string]string, was types.Map) types.Map {
	if len(m) == 0 {
		if was.IsNull() || was.IsUnknown() || len(was.Elements()) > 0 {
			return types.MapNull(types.StringType)
		}
		return was
	}
	values := map[string]attr.Value{}
	for k, v := range m {
		values[k] = types.StringValue(v)
	}
	return types.MapValueMust(types.StringType, values)
}

// stringSet reads a set; null and unknown give nil.
func stringSet(ctx context.Context, s types.Set, diags *diag.Diagnostics) []string {
	if s.IsNull() || s.IsUnknown() {
		return nil
	}
	var out []string
	diags.Append(s.ElementsAs(ctx, &out, false)...)
	return out
}

// setValue is mapValue for sets.
func setValue(list []string, was types.Set) types.Set {
	if len(list) == 0 {
		if was.IsNull() || was.IsUnknown() || len(was.Elements()) > 0 {
			return types.SetNull(types.StringType)
		}
		return was
	}
	values := make([]attr.Value, len(list))
	for i, v := range list {
		values[i] = types.StringValue(v)
	}
	return types.SetValueMust(types.StringType, values)
}

// The patch functions set a field of a merge patch to what is planned where the state has something else: null takes
// the field off, and an unknown plan leaves it alone.

func patchText(field *api.Optional[string], plan, state types.String) {
	if !plan.Equal(state) && !plan.IsUnknown() {
		*field = api.Optional[string]{Set: true, Null: plan.IsNull(), V: plan.ValueString()}
	}
}

func patchBool(field *api.Optional[bool], plan, state types.Bool) {
	if !plan.Equal(state) && !plan.IsUnknown() {
		*field = api.Optional[bool]{Set: true, Null: plan.IsNull(), V: plan.ValueBool()}
	}
}

func patchInt[N int | int64](field *api.Optional[N], plan, state types.Int64) {
	if !plan.Equal(state) && !plan.IsUnknown() {
		*field = api.Optional[N]{Set: true, Null: plan.IsNull(), V: N(plan.ValueInt64())}
	}
}

// patchWhole sends a whole map or list; an empty one takes the field off.
func patchWhole[V any](field *api.Optional[V], plan, state attr.Value, value V, size int) {
	if !plan.Equal(state) {
		*field = api.Optional[V]{Set: true, Null: size == 0, V: value}
	}
}

// intPointer gives nil for null and unknown, so that 0 and unset stay apart.
func intPointer(n types.Int64) *int {
	if n.IsNull() || n.IsUnknown() {
		return nil
	}
	v := int(n.ValueInt64())
	return &v
}
