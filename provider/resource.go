package provider

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// How long an operation may take when timeouts does not say.
const (
	createTimeout = 10 * time.Minute
	updateTimeout = 10 * time.Minute
	deleteTimeout = 5 * time.Minute
)

// op is one operation: whom to ask, and where to say what was found.
type op struct {
	*client.Client
	diags *diag.Diagnostics
}

// kind is one type of resource. M is what Terraform keeps of an object, A what the fleet says of it.
type kind[M, A any] struct {
	noun       string   // what people call it; the type is fluxvm_ and this
	identity   []string // the attributes that tell one from another; an import id joins them with /
	schema     func(context.Context) schema.Schema
	validators []resource.ConfigValidator

	take   func(m *M, a A) // fills the model; what only a configuration knows stays
	create func(ctx context.Context, o op, plan, config *M) (A, error)
	read   func(ctx context.Context, o op, m *M) (A, error)
	update func(ctx context.Context, o op, plan, state *M) (*A, error) // nil: the fleet was asked for nothing
	remove func(ctx context.Context, o op, m *M) error

	// The rest may be nil.

	plan     func(ctx context.Context, o op, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse)
	validate func(ctx context.Context, config tfsdk.Config, diags *diag.Diagnostics)
	find     func(ctx context.Context, o op, given string) (string, error) // the identity of what an import names
	importID func(plan *M) string                                          // of what has the wanted name; otherwise the name
	drift    func(m *M, a A)                                               // finds what someone else has moved, before take
	gone     func(m *M, a *A) string                                       // why there is no object any more; a is nil where the fleet has none
	settle   func(ctx context.Context, o op, m, config *M, a A) (A, bool)  // waits after a create, or with a nil config after an update; false: it is gone
}

// managed serves a kind to Terraform. Everything that resources have in common is here: an object's identity and state
// are saved before anything is waited for; an object that is gone leaves the state with the reason; a name that is
// taken is answered with how to import it; each operation ends in its time.
type managed[M, A any] struct {
	kind[M, A]
	client *client.Client
}

var (
	_ resource.ResourceWithConfigure        = (*managed[struct{}, struct{}])(nil)
	_ resource.ResourceWithConfigValidators = (*managed[struct{}, struct{}])(nil)
	_ resource.ResourceWithIdentity         = (*managed[struct{}, struct{}])(nil)
	_ resource.ResourceWithImportState      = (*managed[struct{}, struct{}])(nil)
	_ resource.ResourceWithModifyPlan       = (*managed[struct{}, struct{}])(nil)
	_ resource.ResourceWithValidateConfig   = (*managed[struct{}, struct{}])(nil)
)

func (r *managed[M, A]) typeName() string {
	return "fluxvm_" + strings.ToLower(strings.ReplaceAll(r.noun, " ", "_"))
}

func (r *managed[M, A]) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = r.typeName()
}

func (r *managed[M, A]) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = r.schema(ctx)
}

func (r *managed[M, A]) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema.Attributes = map[string]identityschema.Attribute{}
	for _, name := range r.identity {
		resp.IdentitySchema.Attributes[name] = identityschema.StringAttribute{RequiredForImport: true, Description: "The " + r.noun + "'s " + name + "."}
	}
}

func (r *managed[M, A]) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *managed[M, A]) ConfigValidators(context.Context) []resource.ConfigValidator {
	return r.validators
}

func (r *managed[M, A]) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	if r.validate != nil {
		r.validate(ctx, req.Config, &resp.Diagnostics)
	}
}

func (r *managed[M, A]) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if r.plan != nil {
		r.plan(ctx, op{r.client, &resp.Diagnostics}, req, resp)
	}
}

// ImportState takes the identity, or its values joined with /.
func (r *managed[M, A]) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	values := strings.SplitN(req.ID, "/", len(r.identity))
	if req.ID == "" {
		values = nil
		for _, name := range r.identity {
			var v types.String
			resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root(name), &v)...)
			values = append(values, v.ValueString())
		}
	}
	if len(values) != len(r.identity) || slices.Contains(values, "") {
		resp.Diagnostics.AddError("This is no import id of a "+r.noun, "It is "+strings.ToUpper(strings.Join(r.identity, "/"))+".")
	}
	if r.find != nil && !resp.Diagnostics.HasError() {
		found, err := r.find(ctx, op{r.client, &resp.Diagnostics}, values[0])
		if err != nil {
			addError(&resp.Diagnostics, fmt.Sprintf("There is no %s %q to import", r.noun, values[0]), err)
		}
		values[0] = found
	}
	if resp.Diagnostics.HasError() {
		return
	}
	for i, name := range r.identity {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), values[i])...)
		resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root(name), values[i])...)
	}
}

func (r *managed[M, A]) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var plan, config M
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	ctx, cancel := within(ctx, req.Plan, timeouts.Value.Create, createTimeout, &resp.Diagnostics)
	defer cancel()
	if resp.Diagnostics.HasError() {
		return
	}
	o := op{r.client, &resp.Diagnostics}
	a, err := r.create(ctx, o, &plan, &config)
	if r.failed(ctx, "Creating", &plan, req.Plan, err, &resp.Diagnostics) {
		return
	}
	r.take(&plan, a)
	r.save(ctx, &plan, &resp.State, resp.Identity, &resp.Diagnostics)
	r.await(ctx, o, &plan, &config, a, &resp.State, resp.Identity)
}

func (r *managed[M, A]) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m M
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	o := op{r.client, &resp.Diagnostics}
	a, err := r.read(ctx, o, &m)
	why := ""
	switch {
	case client.IsNotFound(err):
		why = r.whyGone(&m, nil)
	case err != nil:
		r.failed(ctx, "Reading", &m, req.State, err, &resp.Diagnostics)
		return
	case r.gone != nil:
		why = r.gone(&m, &a)
	}
	if why != "" {
		resp.Diagnostics.AddWarning(r.called(ctx, req.State)+" is gone", why+" It is dropped from the state; Terraform plans it anew.")
		// Terraform before 1.12 keeps no identity, and the framework takes an answer without one for a fault.
		r.identify(ctx, req.State, resp.Identity, &resp.Diagnostics)
		resp.State.RemoveResource(ctx)
		return
	}
	if r.drift != nil {
		r.drift(&m, a)
	}
	r.take(&m, a)
	r.save(ctx, &m, &resp.State, resp.Identity, &resp.Diagnostics)
}

func (r *managed[M, A]) whyGone(m *M, a *A) string {
	if r.gone != nil {
		return r.gone(m, a)
	}
	return "The fleet has no such " + r.noun + ", or it is another tenant's; it was removed outside of this configuration."
}

func (r *managed[M, A]) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state M
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	ctx, cancel := within(ctx, req.Plan, timeouts.Value.Update, updateTimeout, &resp.Diagnostics)
	defer cancel()
	if resp.Diagnostics.HasError() {
		return
	}
	o := op{r.client, &resp.Diagnostics}
	a, err := r.update(ctx, o, &plan, &state)
	if r.failed(ctx, "Changing", &plan, req.Plan, err, &resp.Diagnostics) {
		return
	}
	if a != nil {
		r.take(&plan, *a)
	}
	r.save(ctx, &plan, &resp.State, resp.Identity, &resp.Diagnostics)
	if a != nil {
		r.await(ctx, o, &plan, nil, *a, &resp.State, resp.Identity)
	}
}

func (r *managed[M, A]) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m M
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	ctx, cancel := within(ctx, req.State, timeouts.Value.Delete, deleteTimeout, &resp.Diagnostics)
	defer cancel()
	if resp.Diagnostics.HasError() {
		return
	}
	err := r.remove(ctx, op{r.client, &resp.Diagnostics}, &m)
	r.failed(ctx, "Removing", &m, req.State, errUnlessGone(err), &resp.Diagnostics)
}

// await waits where the kind does, and saves what became of the object.
func (r *managed[M, A]) await(ctx context.Context, o op, m, config *M, a A, state *tfsdk.State, identity *tfsdk.ResourceIdentity) {
	if r.settle == nil || o.diags.HasError() {
		return
	}
	a, there := r.settle(ctx, o, m, config, a)
	if !there {
		state.RemoveResource(ctx)
		return
	}
	r.take(m, a)
	r.save(ctx, m, state, identity, o.diags)
}

func (r *managed[M, A]) save(ctx context.Context, m *M, state *tfsdk.State, identity *tfsdk.ResourceIdentity, diags *diag.Diagnostics) {
	diags.Append(state.Set(ctx, *m)...)
	r.identify(ctx, state, identity, diags)
}

// source is a state, a plan or a configuration.
type source interface {
	GetAttribute(ctx context.Context, at path.Path, to any) diag.Diagnostics
}

func (r *managed[M, A]) identify(ctx context.Context, from source, identity *tfsdk.ResourceIdentity, diags *diag.Diagnostics) {
	for _, name := range r.identity {
		var v types.String
		diags.Append(from.GetAttribute(ctx, path.Root(name), &v)...)
		diags.Append(identity.SetAttribute(ctx, path.Root(name), v)...)
	}
}

// called names an object for people: VM "build-1".
func (r *managed[M, A]) called(ctx context.Context, from source) string {
	var name types.String
	if from.GetAttribute(ctx, path.Root("name"), &name).HasError() || name.ValueString() == "" {
		_ = from.GetAttribute(ctx, path.Root(r.identity[len(r.identity)-1]), &name) // it is a string of every kind
	}
	return fmt.Sprintf("%s%s %q", strings.ToUpper(r.noun[:1]), r.noun[1:], name.ValueString())
}

// failed says what went wrong, if anything.
func (r *managed[M, A]) failed(ctx context.Context, doing string, m *M, from source, err error, diags *diag.Diagnostics) bool {
	if hasCode(err, api.CodeNameTaken) {
		addTaken(diags, r.typeName(), r.takenID(ctx, m, from), err)
	} else if err != nil {
		addError(diags, doing+" the "+r.noun+" failed", err, attributeNames(r.schema(ctx))...)
	}
	return diags.HasError()
}

// takenID is the import id of what has the name that m wants.
func (r *managed[M, A]) takenID(ctx context.Context, m *M, from source) string {
	if r.importID != nil {
		return r.importID(m)
	}
	var name types.String
	_ = from.GetAttribute(ctx, path.Root("name"), &name) // only what has a name can find it taken
	return name.ValueString()
}

// attributeNames are where a refusal may point: quota and quota.max_vms.
func attributeNames(s schema.Schema) (names []string) {
	for name, a := range s.Attributes {
		names = append(names, name)
		if nested, ok := a.(schema.SingleNestedAttribute); ok {
			for inner := range nested.Attributes {
				names = append(names, name+"."+inner)
			}
		}
	}
	return names
}

// within bounds an operation by the timeouts that from holds.
func within(ctx context.Context, from source, limit func(timeouts.Value, context.Context, time.Duration) (time.Duration, diag.Diagnostics), usual time.Duration, diags *diag.Diagnostics) (context.Context, context.CancelFunc) {
	var t timeouts.Value
	diags.Append(from.GetAttribute(ctx, path.Root("timeouts"), &t)...)
	d, more := limit(t, ctx, usual)
	diags.Append(more...)
	return context.WithTimeout(ctx, d)
}

// send sends a patch that is not empty.
func send[P, A any](patch P, do func(P) (A, error)) (*A, error) {
	if reflect.ValueOf(patch).IsZero() {
		return nil, nil
	}
	a, err := do(patch)
	return &a, err
}

// errUnlessGone takes what is gone for what was wanted.
func errUnlessGone(err error) error {
	if client.IsNotFound(err) {
		return nil
	}
	return err
}
