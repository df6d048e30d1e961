package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/client"
)

// callTimeout is how long one request may take over all its tries: longer than the fleet needs to elect a leader
// even on a bad day.
const callTimeout = 2 * time.Minute

// envTenant names the tenant that an operator acts for.
const envTenant = "FLUXVM_TENANT"

var _ provider.ProviderWithEphemeralResources = (*fluxvmProvider)(nil)

// New gives the provider; version is told to the fleet with each request.
func New(version string) func() provider.Provider {
	return func() provider.Provider { return &fluxvmProvider{version: version} }
}

type fluxvmProvider struct{ version string }

type providerModel struct {
	Endpoint  types.String `tfsdk:"endpoint"`
	Endpoints types.List   `tfsdk:"endpoints"`
	Token     types.String `tfsdk:"token"`
	CACert    types.String `tfsdk:"ca_cert"`
	Tenant    types.String `tfsdk:"tenant"`
}

func (p *fluxvmProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "fluxvm"
	resp.Version = p.version
}

func (p *fluxvmProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Virtual machines, warm pools, tenants and leases of a FluxVM fleet.",
		Attributes: map[string]schema.Attribute{
			"endpoint": schema.StringAttribute{
				Optional: true,
				MarkdownDescription: "URL of the fleet, or of all its replicas separated by commas. Otherwise `FLUXVM_FLEET_URL`, " +
					"otherwise `" + client.DefaultFleetURL + "`.",
				Validators: []validator.String{stringvalidator.ConflictsWith(path.MatchRoot("endpoints"))},
			},
			"endpoints": schema.ListAttribute{
				Optional:            true,
				ElementType:         types.StringType,
				MarkdownDescription: "URLs of all replicas. They are tried in turn, so the loss of one is not noticed.",
			},
			"token": schema.StringAttribute{
				Optional:            true,
				Sensitive:           true,
				MarkdownDescription: "Token of an operator or a tenant. Otherwise `FLUXVM_TOKEN`, or the file that `FLUXVM_TOKEN_FILE` names.",
			},
			"ca_cert": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "CA certificate to trust, as PEM or as the path of a PEM file. Otherwise `FLUXVM_CA_CERT`.",
			},
			"tenant": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "With an operator's token: act for this tenant. Otherwise `FLUXVM_TENANT`.",
			},
		},
	}
}

func (p *fluxvmProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var model providerModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &model)...)
	if resp.Diagnostics.HasError() {
		return
	}
	refuseUnknown(&resp.Diagnostics, "endpoint", model.Endpoint.IsUnknown())
	refuseUnknown(&resp.Diagnostics, "endpoints", model.Endpoints.IsUnknown())
	refuseUnknown(&resp.Diagnostics, "token", model.Token.IsUnknown())
	refuseUnknown(&resp.Diagnostics, "ca_cert", model.CACert.IsUnknown())
	refuseUnknown(&resp.Diagnostics, "tenant", model.Tenant.IsUnknown())
	if resp.Diagnostics.HasError() {
		return
	}
	cfg, err := client.ConfigFromEnv()
	if err != nil {
		resp.Diagnostics.AddError("Reading the environment failed", err.Error())
		return
	}
	if list := client.SplitEndpoints(model.Endpoint.ValueString()); len(list) > 0 {
		cfg.Endpoints = list
	}
	if !model.Endpoints.IsNull() {
		cfg.Endpoints = nil
		resp.Diagnostics.Append(model.Endpoints.ElementsAs(ctx, &cfg.Endpoints, false)...)
	}
	if v := model.Token.ValueString(); v != "" {
		cfg.Token = v
	}
	if v := model.CACert.ValueString(); v != "" {
		if cfg.CACertPEM, err = client.ReadCACert(v); err != nil {
			resp.Diagnostics.AddAttributeError(path.Root("ca_cert"), "The CA certificate cannot be read", err.Error())
		}
	}
	cfg.Tenant = os.Getenv(envTenant)
	if v := model.Tenant.ValueString(); v != "" {
		cfg.Tenant = v
	}
	cfg.Timeout = callTimeout
	cfg.UserAgent = fmt.Sprintf("terraform-provider-fluxvm/%s terraform/%s", p.version, req.TerraformVersion)
	if resp.Diagnostics.HasError() {
		return
	}
	c, err := client.New(cfg)
	if err != nil {
		resp.Diagnostics.AddError("The provider's settings do not work", err.Error())
		return
	}
	resp.ResourceData, resp.DataSourceData, resp.EphemeralResourceData = c, c, c
}

func refuseUnknown(diags *diag.Diagnostics, name string, unknown bool) {
	if unknown {
		diags.AddAttributeError(path.Root(name), "The provider's "+name+" is not known yet",
			"Terraform plans with the fleet's answers, so "+name+" must not come from something that this apply creates. "+
				"Use a variable, the environment, or apply the source first with -target.")
	}
}

func (p *fluxvmProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		newImageResource, newLeaseResource, newNodeResource, newPolicyResource, newPoolResource, newTenantResource, newTenantKeyResource, newVMResource,
	}
}

func (p *fluxvmProvider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{newTenantKeyEphemeral}
}

func (p *fluxvmProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{newClusterData, newImagesData, newLeasesData, newNodesData, newPoolData, newPoolsData, newUsageData, newVMsData}
}

// clientOf takes the configured client from what Terraform passes on; nil while it only validates.
func clientOf(data any, diags *diag.Diagnostics) *client.Client {
	if data == nil {
		return nil
	}
	c, ok := data.(*client.Client)
	if !ok {
		diags.AddError("The provider is not configured", errors.New("this is a fault of the provider; please report it").Error())
	}
	return c
}
