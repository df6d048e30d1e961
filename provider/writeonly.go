package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// guestClaim is what the guest agent brings into a VM that was booted ahead. Terraform keeps it in no plan and no state.
type guestClaim struct {
	Hostname types.String      `tfsdk:"hostname"`
	Env      map[string]string `tfsdk:"env"`
	Secrets  map[string]string `tfsdk:"secrets"`
	Files    []claimFile       `tfsdk:"files"`
}

type claimFile struct {
	Path    types.String `tfsdk:"path"`
	Content types.String `tfsdk:"content"`
	Mode    types.String `tfsdk:"mode"`
}

func claimAttribute() schema.Attribute {
	text := func(text string, needed bool) schema.StringAttribute {
		return schema.StringAttribute{Required: needed, Optional: !needed, WriteOnly: true, MarkdownDescription: text}
	}
	pairs := func(text string) schema.MapAttribute {
		return schema.MapAttribute{Optional: true, WriteOnly: true, ElementType: types.StringType, MarkdownDescription: text}
	}
	return schema.SingleNestedAttribute{
		Optional: true, WriteOnly: true,
		MarkdownDescription: "What the guest agent sets up when the VM is handed over, or at its first boot: unlike `cloud_init` a VM from a warm pool can have it. It takes ephemeral values: " +
			"Terraform keeps it in no plan and no state (version 1.11 or later), and sends it when the VM is made.",
		Attributes: map[string]schema.Attribute{
			"hostname": text("The guest's name.", false),
			"env":      pairs("Environment of what is run in the guest."),
			"secrets":  pairs("Secrets by name; the fleet stores them nowhere."),
			"files": schema.ListNestedAttribute{
				Optional: true, WriteOnly: true,
				MarkdownDescription: "Files to write.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"path": text("Where it goes.", true), "content": text("What is in it.", true), "mode": text("Its mode, such as `0600`.", false),
				}},
			},
		},
	}
}

// wire gives it as the API takes it; nil for none.
func (c *guestClaim) wire() *api.Claim {
	if c == nil {
		return nil
	}
	out := &api.Claim{Hostname: c.Hostname.ValueString(), Env: c.Env, Secrets: c.Secrets}
	for _, f := range c.Files {
		out.Files = append(out.Files, api.ClaimFile{Path: f.Path.ValueString(), Content: f.Content.ValueString(), Mode: f.Mode.ValueString()})
	}
	return out
}

// versionOf is the number that stands in the state for an argument that is not kept there.
func versionOf(argument string) schema.Int64Attribute {
	const text = "another number makes a new VM (destroy and recreate)"
	return schema.Int64Attribute{
		Optional:            true,
		MarkdownDescription: "Any number; another one makes a new VM. Terraform keeps no `" + argument + "` and so sees no change of it.",
		Validators:          []validator.Int64{int64validator.AlsoRequires(path.MatchRoot(argument))},
		PlanModifiers: []planmodifier.Int64{int64planmodifier.RequiresReplaceIf(func(_ context.Context, req planmodifier.Int64Request, resp *int64planmodifier.RequiresReplaceIfFuncResponse) {
			resp.RequiresReplace = !req.StateValue.IsNull() // an import knows none
		}, text, text)},
	}
}

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
