package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/objectplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What a VM is made with beside its size. The fleet takes these at launch and gives none of them back, so Terraform
// knows them from the configuration alone, and any change makes a new VM.

// onlyNew ends the text of an attribute that is taken at launch.
const onlyNew = " A VM that was booted ahead cannot have it, so this one boots cold; a change makes a new VM."

// device is a nested attribute that only a new VM can have.
func device(text string, attributes map[string]schema.Attribute) schema.Attribute {
	return schema.SingleNestedAttribute{
		Optional: true, MarkdownDescription: text + onlyNew, Attributes: attributes,
		PlanModifiers: []planmodifier.Object{objectplanmodifier.RequiresReplace()},
	}
}

func devices(text string, most int, attributes map[string]schema.Attribute) schema.Attribute {
	return schema.ListNestedAttribute{
		Optional: true, MarkdownDescription: text + onlyNew, NestedObject: schema.NestedAttributeObject{Attributes: attributes},
		Validators:    []validator.List{listvalidator.SizeBetween(1, most)},
		PlanModifiers: []planmodifier.List{listplanmodifier.RequiresReplace()},
	}
}

func optionalText(text string, rules ...validator.String) schema.Attribute {
	return schema.StringAttribute{Optional: true, MarkdownDescription: text, Validators: rules}
}

func optionalBool(text string) schema.Attribute {
	return schema.BoolAttribute{Optional: true, MarkdownDescription: text}
}

func requiredNumber(text string, least, most int64) schema.Attribute {
	return schema.Int64Attribute{Required: true, MarkdownDescription: text, Validators: []validator.Int64{int64validator.Between(least, most)}}
}

// vmNetwork is how a VM is connected.
type vmNetwork struct {
	Mode     types.String  `tfsdk:"mode"`
	Bridge   types.String  `tfsdk:"bridge"`
	Forwards []portForward `tfsdk:"forwards"`
}

type portForward struct {
	HostPort  types.Int64 `tfsdk:"host_port"`
	GuestPort types.Int64 `tfsdk:"guest_port"`
}

func networkAttribute() schema.Attribute {
	return device("How it is connected, where not by the host's NAT.", map[string]schema.Attribute{
		"mode":   optionalText("`nat` (unless given), `bridge`, `vmnet` or `none`.", stringvalidator.OneOf("nat", "bridge", "vmnet", "none")),
		"bridge": optionalText("The host's bridge, for the mode `bridge`."),
		"forwards": schema.ListNestedAttribute{
			Optional: true, MarkdownDescription: "Ports of the host's loopback that lead into the guest.",
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"host_port":  requiredNumber("Port on the host; 0 lets it choose.", 0, 65535),
				"guest_port": requiredNumber("Port in the guest.", 1, 65535),
			}},
		},
	})
}

func (n *vmNetwork) wire() *api.Network {
	if n == nil {
		return nil
	}
	out := &api.Network{Mode: n.Mode.ValueString(), Bridge: n.Bridge.ValueString()}
	for _, f := range n.Forwards {
		out.Forwards = append(out.Forwards, api.PortForward{HostPort: int(f.HostPort.ValueInt64()), GuestPort: int(f.GuestPort.ValueInt64())})
	}
	return out
}

// vmApple are settings of guests on Macs.
type vmApple struct {
	Networks  []types.String `tfsdk:"networks"`
	VMNet     types.String   `tfsdk:"vmnet"`
	Interface types.String   `tfsdk:"bridge_interface"`
	Rosetta   types.Bool     `tfsdk:"rosetta"`
	Nested    types.Bool     `tfsdk:"nested_virtualization"`
}

func appleAttribute() schema.Attribute {
	return device("Settings of guests on Macs.", map[string]schema.Attribute{
		"networks":              schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Names of the host's networks to connect it to."},
		"vmnet":                 optionalText("The vmnet network of the host."),
		"bridge_interface":      optionalText("The host's interface to bridge to."),
		"rosetta":               optionalBool("Whether a Linux guest runs x86-64 programs."),
		"nested_virtualization": optionalBool("Whether the guest may run VMs of its own."),
	})
}

func (a *vmApple) wire() *api.Apple {
	if a == nil {
		return nil
	}
	out := &api.Apple{VMNet: a.VMNet.ValueString(), BridgeInterface: a.Interface.ValueString(), Rosetta: a.Rosetta.ValueBool(), NestedVirtualization: a.Nested.ValueBool()}
	for _, name := range a.Networks {
		out.Networks = append(out.Networks, api.NetworkRef{Name: name.ValueString()})
	}
	return out
}

// extraDisk is an empty disk beside the image's.
type extraDisk struct {
	SizeGiB types.Int64 `tfsdk:"size_gib"`
}

func extraDisksAttribute() schema.Attribute {
	return devices("Empty disks beside the image's, eight at most.", 8, map[string]schema.Attribute{"size_gib": requiredNumber("Size in GiB.", 1, api.MaxDiskGiB)})
}

func extraDisks(disks []extraDisk) (out []api.ExtraDisk) {
	for _, d := range disks {
		out = append(out, api.ExtraDisk{SizeGiB: d.SizeGiB.ValueInt64()})
	}
	return out
}

// balloonDevice asks for a memory balloon where the backend does not always have one.
type balloonDevice struct {
	Reporting types.Bool  `tfsdk:"free_page_reporting"`
	Deflate   types.Bool  `tfsdk:"deflate_on_oom"`
	StatsSecs types.Int64 `tfsdk:"stats_interval_seconds"`
}

func balloonAttribute() schema.Attribute {
	return device("A memory balloon, where the backend does not always have one.", map[string]schema.Attribute{
		"free_page_reporting":    optionalBool("Whether the guest reports pages that it has freed (true)."),
		"deflate_on_oom":         optionalBool("Whether the guest takes memory back before it kills a process (true)."),
		"stats_interval_seconds": bounded("How often the guest tells its memory figures; 0 for never.", int64validator.AtLeast(0)),
	})
}

func (b *balloonDevice) wire() *api.BalloonDevice {
	if b == nil {
		return nil
	}
	return &api.BalloonDevice{FreePageReporting: b.Reporting.ValueBoolPointer(), DeflateOnOOM: b.Deflate.ValueBoolPointer(), StatsIntervalSecs: intPointer(b.StatsSecs)}
}
