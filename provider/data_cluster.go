package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

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

func newClusterData() datasource.DataSource {
	return &shower[clusterDataModel]{view: view[clusterDataModel]{noun: "cluster", read: readCluster, schema: schema.Schema{
		MarkdownDescription: "The control plane's replicas. Only an operator may read it.",
		Attributes: map[string]schema.Attribute{
			"id":     showText("The cluster's id."),
			"leader": showText("Name of the replica that leads at this moment."),
			"replicas": showList("All members.", map[string]schema.Attribute{
				"name":    showText("Its name."),
				"url":     showText("Where its API answers."),
				"role":    showText("`leader`, `voter` or `nonvoter`."),
				"healthy": showFlag("Whether the leader hears it."),
				"version": showText("What it runs."),
			}),
		},
	}}}
}

func readCluster(ctx context.Context, o op, m *clusterDataModel) error {
	cluster, err := o.Cluster(ctx)
	m.ID, m.Leader, m.Replicas = types.StringValue(cluster.ID), textOrNull(cluster.Leader), []replicaDataModel{}
	for _, r := range cluster.Replicas {
		m.Replicas = append(m.Replicas, replicaDataModel{
			Name: types.StringValue(r.Name), URL: textOrNull(r.URL), Role: types.StringValue(r.Role), Healthy: types.BoolValue(r.Healthy), Version: textOrNull(r.Version),
		})
	}
	return err
}
