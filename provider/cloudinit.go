package provider

import (
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// cloudInit is first-boot configuration. It may hold secrets, so Terraform keeps it in no plan and no state.
type cloudInit struct {
	Hostname          types.String    `tfsdk:"hostname"`
	User              types.String    `tfsdk:"user"`
	SSHAuthorizedKeys []string        `tfsdk:"ssh_authorized_keys"`
	Packages          []string        `tfsdk:"packages"`
	RunCmd            []string        `tfsdk:"runcmd"`
	WriteFiles        []cloudInitFile `tfsdk:"write_files"`
}

type cloudInitFile struct {
	Path        types.String `tfsdk:"path"`
	Content     types.String `tfsdk:"content"`
	Permissions types.String `tfsdk:"permissions"`
}

func cloudInitAttribute() schema.Attribute {
	text := func(text string) schema.StringAttribute {
		return schema.StringAttribute{Optional: true, WriteOnly: true, MarkdownDescription: text}
	}
	list := func(text string) schema.ListAttribute {
		return schema.ListAttribute{Optional: true, WriteOnly: true, ElementType: types.StringType, MarkdownDescription: text}
	}
	file := text("Where it goes.")
	file.Optional, file.Required = false, true
	return schema.SingleNestedAttribute{
		Optional: true, WriteOnly: true,
		MarkdownDescription: "First-boot configuration. A VM that was booted ahead cannot have it, so this one boots cold. It may hold secrets and take ephemeral values: " +
			"Terraform keeps it in no plan and no state (version 1.11 or later), and sends it when the VM is made.",
		Attributes: map[string]schema.Attribute{
			"hostname":            text("The guest's name."),
			"user":                text("A user to make."),
			"ssh_authorized_keys": list("Keys that may log in as that user."),
			"packages":            list("Packages to install."),
			"runcmd":              list("Commands to run."),
			"write_files": schema.ListNestedAttribute{
				Optional: true, WriteOnly: true,
				MarkdownDescription: "Files to write.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"path": file, "content": text("What is in it."), "permissions": text("Its mode, such as `0600`."),
				}},
			},
		},
	}
}

// wire gives it as the API takes it; nil for none.
func (c *cloudInit) wire() *api.CloudInit {
	if c == nil {
		return nil
	}
	out := &api.CloudInit{Hostname: c.Hostname.ValueString(), User: c.User.ValueString(), SSHAuthorizedKeys: c.SSHAuthorizedKeys, Packages: c.Packages, RunCmd: c.RunCmd}
	for _, f := range c.WriteFiles {
		out.WriteFiles = append(out.WriteFiles, api.CloudInitFile{Path: f.Path.ValueString(), Content: f.Content.ValueString(), Permissions: f.Permissions.ValueString()})
	}
	return out
}
