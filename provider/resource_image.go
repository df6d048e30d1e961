package provider

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure   = (*imageResource)(nil)
	_ resource.ResourceWithImportState = (*imageResource)(nil)
	_ resource.ResourceWithIdentity    = (*imageResource)(nil)
)

func newImageResource() resource.Resource { return &imageResource{} }

type imageResource struct{ client *client.Client }

type imageModel struct {
	Name        types.String   `tfsdk:"name"`
	Path        types.String   `tfsdk:"path"`
	GuestOS     types.String   `tfsdk:"guest_os"`
	Title       types.String   `tfsdk:"title"`
	VCPUs       types.Int64    `tfsdk:"vcpus"`
	MemoryMiB   types.Int64    `tfsdk:"memory_mib"`
	DiskSizeGiB types.Int64    `tfsdk:"disk_size_gib"`
	HasAgent    types.Bool     `tfsdk:"has_agent"`
	CreatedAt   types.String   `tfsdk:"created_at"`
	Timeouts    timeouts.Value `tfsdk:"timeouts"`
}

// imageFields are where a refusal may point.
var imageFields = [...]string{"name", "path", "guest_os", "title", "vcpus", "memory_mib", "disk_size_gib", "has_agent"}

func (r *imageResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_image"
}

func (r *imageResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = nameIdentity()
}

// nameIdentity is for objects that the fleet knows by name alone.
func nameIdentity() identityschema.Schema {
	return identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"name": identityschema.StringAttribute{RequiredForImport: true, Description: "The name."},
	}}
}

// keepIdentity names an object that is gone: Terraform before 1.12 keeps no identity, and the framework takes an
// answer without one for a fault.
func keepIdentity(ctx context.Context, resp *resource.ReadResponse, attribute string, value types.String) {
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root(attribute), value)...)
}

func (r *imageResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "An entry of the image catalog: what VMs boot from, and the size they take unless told otherwise. " +
			"Changes hold for VMs that boot later.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Name in the catalog. Another name is another image.",
				Validators:          []validator.String{imageNameRule()},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"path": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Where hosts find it, as their backend understands it: a directory with kernel and initrd for `flux-vm`.",
				Validators:          []validator.String{imagePathRule()},
			},
			"guest_os": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "`linux` (default) or `macos`.",
				Default:             stringdefault.StaticString(api.GuestLinux),
				Validators:          []validator.String{stringvalidator.OneOf(api.GuestLinux, api.GuestMacOS)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"title": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "What people call it; otherwise the name.",
				Validators:          []validator.String{stringvalidator.LengthAtLeast(1), imageTitleRule()},
				PlanModifiers:       []planmodifier.String{titleFromName{}},
			},
			"vcpus": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "vCPUs of a VM that names no size (1).",
				Default:             int64default.StaticInt64(1),
				Validators:          []validator.Int64{int64validator.Between(1, api.MaxVCPUs)},
			},
			"memory_mib": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Memory in MiB of a VM that names no size (512).",
				Default:             int64default.StaticInt64(512),
				Validators:          []validator.Int64{int64validator.Between(1, api.MaxMemoryMiB)},
			},
			"disk_size_gib": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Disk in GiB of a VM that names no size; 0 (default) leaves the image's own.",
				Default:             int64default.StaticInt64(0),
				Validators:          []validator.Int64{int64validator.Between(0, api.MaxDiskGiB)},
			},
			"has_agent": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether the image starts FluxVM's guest agent (false). VMs count as ready once it answers.",
				Default:             booldefault.StaticBool(false),
			},
			"created_at": schema.StringAttribute{
				Computed:            true,
				MarkdownDescription: "When it was added.",
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
			"timeouts": timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

// titleFromName plans the name for a title that is not given, as the fleet takes it.
type titleFromName struct{}

func (titleFromName) Description(context.Context) string         { return "the name unless given" }
func (titleFromName) MarkdownDescription(context.Context) string { return "the name unless given" }

func (titleFromName) PlanModifyString(ctx context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if req.ConfigValue.IsNull() {
		resp.Diagnostics.Append(req.Plan.GetAttribute(ctx, path.Root("name"), &resp.PlanValue)...)
	}
}

func (r *imageResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *imageResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("name"), path.Root("name"), req, resp)
}

// take fills the model from the API's image.
func (m *imageModel) take(image api.Image) {
	m.Name = types.StringValue(image.Name)
	m.Path = types.StringValue(image.Path)
	m.GuestOS = types.StringValue(image.GuestOS)
	m.Title = types.StringValue(image.Title)
	m.VCPUs = types.Int64Value(int64(image.VCPUs))
	m.MemoryMiB = types.Int64Value(image.MemoryMiB)
	m.DiskSizeGiB = types.Int64Value(image.DiskSizeGiB)
	m.HasAgent = types.BoolValue(image.HasAgent)
	m.CreatedAt = timeOrNull(image.CreatedAt)
}

func (r *imageResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m imageModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	image, err := r.client.CreateImage(ctx, api.ImageRequest{
		Name: m.Name.ValueString(), Path: m.Path.ValueString(), GuestOS: m.GuestOS.ValueString(), Title: m.Title.ValueString(),
		VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(), HasAgent: m.HasAgent.ValueBool(),
	}, uuid.NewString())
	if isTaken(err) {
		addTaken(&resp.Diagnostics, "fluxvm_image", m.Name.ValueString(), err)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Adding the image failed", err, imageFields[:]...)
		return
	}
	m.take(image)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
}

func (r *imageResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m imageModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	image, err := r.client.Image(ctx, m.Name.ValueString())
	if client.IsNotFound(err) {
		addGone(&resp.Diagnostics, fmt.Sprintf("Image %q", m.Name.ValueString()), "The fleet's catalog has no such image; it was removed outside of this configuration.")
		resp.State.RemoveResource(ctx)
		keepIdentity(ctx, resp, "name", m.Name)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Reading the image failed", err)
		return
	}
	m.take(image)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
}

func (r *imageResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state imageModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := plan.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	patch := imagePatch(plan, state)
	if patch != (api.ImagePatch{}) {
		image, err := r.client.PatchImage(ctx, state.Name.ValueString(), patch)
		if err != nil {
			addError(&resp.Diagnostics, "Changing the image failed", err, imageFields[:]...)
			return
		}
		plan.take(image)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), plan.Name)...)
}

// imagePatch holds only what differs.
func imagePatch(plan, state imageModel) api.ImagePatch {
	var p api.ImagePatch
	if !plan.Path.Equal(state.Path) {
		p.Path = api.Some(plan.Path.ValueString())
	}
	if !plan.Title.Equal(state.Title) {
		p.Title = api.Some(plan.Title.ValueString())
	}
	if !plan.VCPUs.Equal(state.VCPUs) {
		p.VCPUs = api.Some(int(plan.VCPUs.ValueInt64()))
	}
	if !plan.MemoryMiB.Equal(state.MemoryMiB) {
		p.MemoryMiB = api.Some(plan.MemoryMiB.ValueInt64())
	}
	if !plan.DiskSizeGiB.Equal(state.DiskSizeGiB) {
		p.DiskSizeGiB = api.Some(plan.DiskSizeGiB.ValueInt64())
	}
	if !plan.HasAgent.Equal(state.HasAgent) {
		p.HasAgent = api.Some(plan.HasAgent.ValueBool())
	}
	return p
}

func (r *imageResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m imageModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := r.client.DeleteImage(ctx, m.Name.ValueString()); err != nil && !client.IsNotFound(err) {
		addError(&resp.Diagnostics, "Removing the image failed", err)
	}
}
