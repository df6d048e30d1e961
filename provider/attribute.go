package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Shapes of attributes that several resources have.

// allTimeouts is the timeouts attribute of what can be changed in place.
func allTimeouts(ctx context.Context) schema.Attribute {
	return timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true})
}

// fixedText is a string that has to be given and that only a new object can change.
func fixedText(text string, rule validator.String) schema.StringAttribute {
	return schema.StringAttribute{
		Required:            true,
		MarkdownDescription: text,
		Validators:          []validator.String{rule},
		PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
	}
}

// fixedChoice is a string that the fleet chooses unless given, and that only a new object can change.
func fixedChoice(text string, rule validator.String) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, Computed: true,
		MarkdownDescription: text,
		Validators:          []validator.String{rule},
		PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown(), stringplanmodifier.RequiresReplaceIfConfigured()},
	}
}

// fixedTenant is whose a new object is.
func fixedTenant(what string) schema.StringAttribute {
	return fixedChoice(fmt.Sprintf("Whose %[1]s it is, for an operator that acts for a tenant. Otherwise the provider's tenant or the token's; null is the operator's own. "+
		"Another tenant makes a new %[1]s.", what), nameRule(api.MaxPoolName))
}

// fixedSize is a number that is the image's unless given, and that only a new object can change.
func fixedSize(text string, most int64) schema.Int64Attribute {
	return schema.Int64Attribute{
		Optional: true, Computed: true,
		MarkdownDescription: text + ". Otherwise the image's. Another number makes a new object.",
		Validators:          []validator.Int64{int64validator.Between(1, most)},
		PlanModifiers:       []planmodifier.Int64{int64planmodifier.UseStateForUnknown(), int64planmodifier.RequiresReplaceIfConfigured()},
	}
}

// fixedByFleet is a string that the fleet sets once.
func fixedByFleet(text string) schema.StringAttribute {
	return schema.StringAttribute{
		Computed:            true,
		MarkdownDescription: text,
		PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
}

// shown is a string that the fleet may change at any time.
func shown(text string) schema.StringAttribute {
	return schema.StringAttribute{Computed: true, MarkdownDescription: text}
}

// boolean is one with a default.
func boolean(text string, usual bool) schema.BoolAttribute {
	return schema.BoolAttribute{Optional: true, Computed: true, MarkdownDescription: text, Default: booldefault.StaticBool(usual)}
}

// number is a whole number from least to most with a default.
func number(text string, usual, least, most int64) schema.Int64Attribute {
	return schema.Int64Attribute{Optional: true, Computed: true, MarkdownDescription: text, Default: int64default.StaticInt64(usual),
		Validators: []validator.Int64{int64validator.Between(least, most)}}
}

// bounded is a whole number of at least least, or none.
func bounded(text string, rule validator.Int64) schema.Int64Attribute {
	return schema.Int64Attribute{Optional: true, MarkdownDescription: text, Validators: []validator.Int64{rule}}
}

// textFrom plans the value of another attribute for one that is not given, as the fleet does.
type textFrom struct{ attribute string }

func (m textFrom) Description(context.Context) string { return "the " + m.attribute + " unless given" }
func (m textFrom) MarkdownDescription(context.Context) string {
	return "the " + m.attribute + " unless given"
}
func (m textFrom) PlanModifyString(ctx context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if req.ConfigValue.IsNull() {
		resp.Diagnostics.Append(req.Plan.GetAttribute(ctx, path.Root(m.attribute), &resp.PlanValue)...)
	}
}
