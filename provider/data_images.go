package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

type imagesDataModel struct {
	GuestOS types.String     `tfsdk:"guest_os"`
	Images  []imageDataModel `tfsdk:"images"`
}

type imageDataModel struct {
	Name        types.String `tfsdk:"name"`
	Title       types.String `tfsdk:"title"`
	Path        types.String `tfsdk:"path"`
	GuestOS     types.String `tfsdk:"guest_os"`
	VCPUs       types.Int64  `tfsdk:"vcpus"`
	MemoryMiB   types.Int64  `tfsdk:"memory_mib"`
	DiskSizeGiB types.Int64  `tfsdk:"disk_size_gib"`
	HasAgent    types.Bool   `tfsdk:"has_agent"`
	CreatedAt   types.String `tfsdk:"created_at"`
}

func newImagesData() datasource.DataSource {
	read := func(ctx context.Context, o op, m *imagesDataModel) error {
		m.Images = []imageDataModel{}
		for i, err := range o.Images(ctx) {
			if err != nil {
				return err
			}
			if !m.GuestOS.IsNull() && i.GuestOS != m.GuestOS.ValueString() {
				continue
			}
			m.Images = append(m.Images, imageDataModel{
				Name: types.StringValue(i.Name), Title: textOrNull(i.Title), Path: types.StringValue(i.Path), GuestOS: types.StringValue(i.GuestOS), VCPUs: types.Int64Value(int64(i.VCPUs)),
				MemoryMiB: types.Int64Value(i.MemoryMiB), DiskSizeGiB: types.Int64Value(i.DiskSizeGiB), HasAgent: types.BoolValue(i.HasAgent), CreatedAt: timeOrNull(i.CreatedAt),
			})
		}
		return nil
	}
	return &shower[imagesDataModel]{view: view[imagesDataModel]{noun: "images", read: read, schema: schema.Schema{
		MarkdownDescription: "The image catalog.",
		Attributes: map[string]schema.Attribute{
			"guest_os": filterText("Only those of this guest operating system: `linux` or `macos`.", stringvalidator.OneOf(api.GuestLinux, api.GuestMacOS)),
			"images": showList("The images, by name.", map[string]schema.Attribute{
				"name":          showText("Its name."),
				"title":         showText("What people call it."),
				"path":          showText("Where hosts find it."),
				"guest_os":      showText("Its guest operating system."),
				"vcpus":         showNumber("vCPUs of a VM that names no size."),
				"memory_mib":    showNumber("Memory in MiB of a VM that names no size."),
				"disk_size_gib": showNumber("Disk in GiB of a VM that names no size; 0: the image's own."),
				"has_agent":     showFlag("Whether it starts the guest agent."),
				"created_at":    showText("When it was added."),
			}),
		},
	}}}
}
