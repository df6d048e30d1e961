package provider

import (
	"context"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

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

func newImageResource() resource.Resource {
	return &managed[imageModel, api.Image]{kind: kind[imageModel, api.Image]{
		noun: "image", identity: []string{"name"}, schema: imageSchema, take: (*imageModel).take,
		create: func(ctx context.Context, o op, m, _ *imageModel) (api.Image, error) {
			return o.CreateImage(ctx, api.ImageRequest{
				Name: m.Name.ValueString(), Path: m.Path.ValueString(), GuestOS: m.GuestOS.ValueString(), Title: m.Title.ValueString(),
				VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(), HasAgent: m.HasAgent.ValueBool(),
			}, uuid.NewString())
		},
		read: func(ctx context.Context, o op, m *imageModel) (api.Image, error) {
			return o.Image(ctx, m.Name.ValueString())
		},
		update: func(ctx context.Context, o op, plan, state *imageModel) (*api.Image, error) {
			var p api.ImagePatch
			patchText(&p.Path, plan.Path, state.Path)
			patchText(&p.Title, plan.Title, state.Title)
			patchInt(&p.VCPUs, plan.VCPUs, state.VCPUs)
			patchInt(&p.MemoryMiB, plan.MemoryMiB, state.MemoryMiB)
			patchInt(&p.DiskSizeGiB, plan.DiskSizeGiB, state.DiskSizeGiB)
			patchBool(&p.HasAgent, plan.HasAgent, state.HasAgent)
			return send(p, func(p api.ImagePatch) (api.Image, error) { return o.PatchImage(ctx, state.Name.ValueString(), p) })
		},
		remove: func(ctx context.Context, o op, m *imageModel) error { return o.DeleteImage(ctx, m.Name.ValueString()) },
	}}
}

func imageSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
		MarkdownDescription: "An entry of the image catalog: what VMs boot from, and the size they take unless told otherwise. " +
			"Changes hold for VMs that boot later.",
		Attributes: map[string]schema.Attribute{
			"name": fixedText("Name in the catalog. Another name is another image.", imageNameRule()),
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
				PlanModifiers:       []planmodifier.String{textFrom{"name"}},
			},
			"vcpus":         number("vCPUs of a VM that names no size (1).", 1, 1, api.MaxVCPUs),
			"memory_mib":    number("Memory in MiB of a VM that names no size (512).", 512, 1, api.MaxMemoryMiB),
			"disk_size_gib": number("Disk in GiB of a VM that names no size; 0 (default) leaves the image's own.", 0, 0, api.MaxDiskGiB),
			"has_agent":     boolean("Whether the image starts FluxVM's guest agent (false). VMs count as ready once it answers.", false),
			"created_at":    fixedByFleet("When it was added."),
			"timeouts":      allTimeouts(ctx),
		},
	}
}

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
