package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// textRule checks a string by a rule of the API, so that a plan refuses what an apply would.
type textRule struct {
	text  string
	check func(string) error
}

func (r textRule) Description(context.Context) string         { return r.text }
func (r textRule) MarkdownDescription(context.Context) string { return r.text }

func (r textRule) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if err := r.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "This value is not allowed", explain(err))
	}
}

// mapRule checks a map of strings by a rule of the API. Values that are not known yet are left to the apply.
type mapRule struct {
	text  string
	check func(map[string]string) error
}

func (r mapRule) Description(context.Context) string         { return r.text }
func (r mapRule) MarkdownDescription(context.Context) string { return r.text }

func (r mapRule) ValidateMap(_ context.Context, req validator.MapRequest, resp *validator.MapResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	known := map[string]string{}
	for k, v := range req.ConfigValue.Elements() {
		s, ok := v.(types.String)
		if ok && s.IsNull() {
			resp.Diagnostics.AddAttributeError(req.Path.AtMapKey(k), "This value is not allowed", "It must not be null; leave the key out instead.")
			return
		}
		known[k] = ""
		if ok && !s.IsUnknown() {
			known[k] = s.ValueString()
		}
	}
	if err := r.check(known); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "This value is not allowed", explain(err))
	}
}

func nameRule(longest int) validator.String {
	return textRule{"lower-case letters, digits and -", func(s string) error { return api.CheckName("name", s, longest) }}
}

func tenantNameRule() validator.String {
	return textRule{"lower-case letters, digits and -", func(s string) error {
		return (&api.TenantRequest{Name: s}).Check()
	}}
}

func imageNameRule() validator.String {
	return textRule{"letters, digits and . _ -", func(s string) error {
		return (&api.ImageRequest{Name: s, Path: "any"}).Check()
	}}
}

func imagePathRule() validator.String {
	return textRule{"printable text", func(s string) error {
		return (&api.ImageRequest{Name: "any", Path: s}).Check()
	}}
}

func imageTitleRule() validator.String {
	return textRule{"printable text", func(s string) error {
		return (&api.ImageRequest{Name: "any", Path: "any", Title: s}).Check()
	}}
}

func poolImageRule() validator.String {
	return textRule{"the name of a catalog image", func(s string) error {
		return (&api.PoolRequest{Name: "any", Image: s}).Check()
	}}
}

func nodeRule() validator.String {
	return textRule{"a host name", func(s string) error { return api.CheckNodeName("node", s) }}
}

func selectorRule() validator.Map {
	return mapRule{"labels of hosts", func(m map[string]string) error { return api.CheckSelector("node_selector", m) }}
}

func labelsRule() validator.Map {
	return mapRule{"labels", func(m map[string]string) error { return api.CheckLabels("labels", m) }}
}
