package provider

import (
	"context"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/client"
)

// view is one type of data source; M is what it shows.
type view[M any] struct {
	noun   string // the type is fluxvm_ and this
	schema schema.Schema
	read   func(ctx context.Context, o op, m *M) error
}

// shower serves a view to Terraform.
type shower[M any] struct {
	view[M]
	client *client.Client
}

var _ datasource.DataSourceWithConfigure = (*shower[struct{}])(nil)

func (d *shower[M]) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "fluxvm_" + d.noun
}

func (d *shower[M]) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = d.schema
}

func (d *shower[M]) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (d *shower[M]) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m M
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if err := d.read(ctx, op{d.client, &resp.Diagnostics}, &m); err != nil {
		addError(&resp.Diagnostics, "Reading the "+d.noun+" failed", err, slices.Collect(maps.Keys(d.schema.Attributes))...)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Shapes of attributes that data sources have.

func showText(text string) schema.StringAttribute {
	return schema.StringAttribute{Computed: true, MarkdownDescription: text}
}

func showNumber(text string) schema.Int64Attribute {
	return schema.Int64Attribute{Computed: true, MarkdownDescription: text}
}

func showFlag(text string) schema.BoolAttribute {
	return schema.BoolAttribute{Computed: true, MarkdownDescription: text}
}

func showTexts(text string) schema.ListAttribute {
	return schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: text}
}

func showMap(text string) schema.MapAttribute {
	return schema.MapAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: text}
}

func showList(text string, item map[string]schema.Attribute) schema.ListNestedAttribute {
	return schema.ListNestedAttribute{Computed: true, MarkdownDescription: text, NestedObject: schema.NestedAttributeObject{Attributes: item}}
}

// filterText narrows what is shown.
func filterText(text string, rule validator.String) schema.StringAttribute {
	return schema.StringAttribute{Optional: true, MarkdownDescription: text, Validators: []validator.String{rule}}
}

// filterLabels narrows what is shown to what carries all of these labels.
func filterLabels(text string) schema.MapAttribute {
	return schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: text, Validators: []validator.Map{selectorRule()}}
}

// texts is never null, as lists that are shown are not.
func texts(list []string) []string { return append([]string{}, list...) }
