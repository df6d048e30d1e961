package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/client"
)

var _ datasource.DataSourceWithConfigure = (*clusterData)(nil)

func newClusterData() datasource.DataSource { return &clusterData{} }

type clusterData struct{ client *client.Client }

type clusterDataModel struct {
	ID       types.String       `tfsdk:"id"`
	Leader   types.String       `tfsdk:"leader"`
	Replicas []replicaDataModel `tfsdk:"replicas"`
}

type replicaDataModel struct {
	Name    types.String `tfsdk:"name"`
	URL     types.String `tfsdk:"url"`
	Role    types.String `tfsdk:"role"`
	Healthy types.Bool   `tfsdk:"healthy"`
	Version types.String `tfsdk:"version"`
}

func (d *clusterData) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "fluxvm_cluster"
}

func (d *clusterData) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(text string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: text}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The control plane's replicas. Only an operator may read it.",
		Attributes: map[string]schema.Attribute{
			"id":     text("The cluster's id."),
			"leader": text("Name of the replica that leads at this moment."),
			"replicas": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "All members.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"name":    text("Its name."),
					"url":     text("Where its API answers."),
					"role":    text("`leader`, `voter` or `nonvoter`."),
					"healthy": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the leader hears it."},
					"version": text("What it runs."),
				}},
			},
		},
	}
}

func (d *clusterData) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (d *clusterData) Read(ctx context.Context, _ datasource.ReadRequest, resp *datasource.ReadResponse) {
	cluster, err := d.client.Cluster(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "Reading the cluster failed", err)
		return
	}
	m := clusterDataModel{ID: types.StringValue(cluster.ID), Leader: types.StringValue(cluster.Leader), Replicas: []replicaDataModel{}}
	for _, r := range cluster.Replicas {
		m.Replicas = append(m.Replicas, replicaDataModel{
			Name: types.StringValue(r.Name), URL: types.StringValue(r.URL), Role: types.StringValue(r.Role),
			Healthy: types.BoolValue(r.Healthy), Version: types.StringValue(r.Version),
		})
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}
