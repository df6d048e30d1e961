package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/echoprovider"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// TestAccName is a scenario: the terraform or tofu that TF_ACC_TERRAFORM_PATH or PATH holds drives the provider against
// a real fleet. scripts/acceptance starts two of three replicas each: FLUXVM_FLEET_URL names the one for most scenarios, which
// run beside each other, and envLeaseURL one with many hosts, where each scenario that leases has two for itself.

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run sets up Terraform so that it looks nothing up outside.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fluxvm-provider-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	env := map[string]string{"CHECKPOINT_DISABLE": "1"}
	if _, err := os.Stat(os.Getenv("TF_CLI_CONFIG_FILE")); err != nil {
		env["TF_CLI_CONFIG_FILE"] = dir + "/terraformrc"
		if err := os.WriteFile(env["TF_CLI_CONFIG_FILE"], nil, 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if os.Getenv("TF_ACC_TERRAFORM_PATH") == "" {
		for _, name := range []string{"terraform", "tofu"} {
			if at, err := exec.LookPath(name); err == nil {
				env["TF_ACC_TERRAFORM_PATH"] = at
				break
			}
		}
	}
	if strings.HasSuffix(env["TF_ACC_TERRAFORM_PATH"], "/tofu") {
		env["TF_ACC_PROVIDER_HOST"] = "registry.opentofu.org"
	}
	for k, v := range env {
		if err := os.Setenv(k, v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// Where the fleet with many hosts is.
const (
	envLeaseURL   = "FLUXVM_TEST_LEASE_FLEET_URL"
	envLeaseToken = "FLUXVM_TEST_LEASE_TOKEN"
)

// fleet is what a scenario runs against.
type fleet struct {
	access   client.Config
	client   *client.Client
	provider string    // the provider block; empty: the environment says all
	recorder *recorder // of what the provider sends; nil unless asked for
	suffix   string    // makes names this test's own
	image    string    // path of an image that boots soon
	hosts    []string  // that are no Macs
	macs     []string
}

// newFleet is for scenarios that lease nothing.
func newFleet(t *testing.T) fleet {
	t.Helper()
	f := aloneOnFleet(t)
	t.Parallel()
	return f
}

// aloneOnFleet is newFleet for scenarios that change what others build on: they run before those that run beside each
// other.
func aloneOnFleet(t *testing.T) fleet {
	t.Helper()
	return openFleet(t, must[client.Config](t)(client.ConfigFromEnv()))
}

// leaseFleet is for scenarios that lease hosts. Each has a slot, counted from 0, and so two hosts of its own.
func leaseFleet(t *testing.T, slot int) fleet {
	t.Helper()
	cfg := client.Config{Endpoints: client.SplitEndpoints(os.Getenv(envLeaseURL)), Token: os.Getenv(envLeaseToken)}
	f := openFleet(t, cfg)
	if len(f.hosts) < 2*slot+2 {
		t.Fatalf("slot %d needs %d hosts that are no Macs, and there are %d; raise --nodes in scripts/acceptance", slot, 2*slot+2, len(f.hosts))
	}
	f.hosts = f.hosts[2*slot : 2*slot+2]
	f.provider = fmt.Sprintf("provider \"fluxvm\" {\n  endpoint = %q\n  token    = %q\n}\n", strings.Join(cfg.Endpoints, ","), cfg.Token)
	t.Parallel()
	return f
}

func openFleet(t *testing.T, cfg client.Config) fleet {
	t.Helper()
	if os.Getenv("TF_ACC") == "" || len(cfg.Endpoints) == 0 {
		t.Skipf("SKIPPED: needs TF_ACC=1 and fleets in %s and %s; `make acceptance` starts them and sets all", client.EnvFleetURL, envLeaseURL)
	}
	if os.Getenv("TF_ACC_TERRAFORM_PATH") == "" {
		t.Skip("SKIPPED: there is no terraform or tofu on PATH, so nothing drives the provider; install one, or build OpenTofu with `make tofu`")
	}
	c := must[*client.Client](t)(client.New(cfg))
	f := fleet{access: cfg, client: c, suffix: uuid.NewString()[:8], image: "sim:?boot_ms=50&agent_ms=50"}
	for node, err := range c.Nodes(t.Context(), client.Filter{}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case node.Apple != nil:
			f.macs = append(f.macs, node.Name)
		case node.Labels[api.LabelDevNode] != "": // the others are for scenarios that name their labels
			f.hosts = append(f.hosts, node.Name)
		}
	}
	return f
}

// recorder stands between the provider and the fleet, and notes what is to change something.
type recorder struct {
	http.Handler
	mu       sync.Mutex
	requests []string // method, path and body
	lose     int      // answers to drop after the work is done
}

// recorded gives the fleet with a recorder before it.
func (f fleet) recorded(t *testing.T) fleet {
	t.Helper()
	to, err := url.Parse(f.access.Endpoints[0])
	if err != nil {
		t.Fatal(err)
	}
	f.recorder = &recorder{Handler: httputil.NewSingleHostReverseProxy(to)}
	s := httptest.NewServer(f.recorder)
	t.Cleanup(s.Close)
	f.provider = fmt.Sprintf("provider \"fluxvm\" {\n  endpoint = %q\n}\n", s.URL)
	return f
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method == http.MethodGet {
		r.Handler.ServeHTTP(w, q)
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	r.Handler.ServeHTTP(answer, q)
	r.mu.Lock()
	r.requests = append(r.requests, strings.TrimSpace(q.Method+" "+q.URL.Path+" "+string(body)))
	drop := r.lose > 0
	if drop {
		r.lose--
	}
	r.mu.Unlock()
	if drop {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the reader may be gone
}

// loseAnswers drops the next n answers to what changes something.
func (r *recorder) loseAnswers(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = n
}

// sent lists what was sent to a path that begins with prefix, the newest last.
func (r *recorder) sent(prefix string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.requests {
		if strings.HasPrefix(one, prefix) {
			out = append(out, one)
		}
	}
	return out
}

// sends checks the newest request to a path that begins with prefix.
func (f fleet) sends(prefix, want string) resource.TestCheckFunc {
	return func(*terraform.State) error {
		sent := f.recorder.sent(prefix)
		if len(sent) == 0 || !strings.HasSuffix(sent[len(sent)-1], " "+want) {
			return fmt.Errorf("sent %q, want %s last", sent, want)
		}
		return nil
	}
}

// name gives a name of this test's own.
func (f fleet) name(base string) string { return "tf-" + base + "-" + f.suffix }

// config joins the provider block with resources; NAME(x) in them becomes a name of this test's own, HOST(0) and HOST(1)
// hosts, and HOST(mac) a Mac.
func (f fleet) config(parts ...string) string {
	text := f.provider + strings.Join(parts, "\n")
	if len(f.macs) > 0 {
		text = strings.ReplaceAll(text, "HOST(mac)", f.macs[0])
	}
	for i, host := range f.hosts {
		text = strings.ReplaceAll(text, fmt.Sprintf("HOST(%d)", i), host)
	}
	return regexp.MustCompile(`NAME\(([a-z]+)\)`).ReplaceAllStringFunc(text, func(s string) string { return f.name(s[5 : len(s)-1]) })
}

// imageBlock is a catalog image of the path.
func imageBlock(path string) string {
	return fmt.Sprintf("resource \"fluxvm_image\" \"tiny\" {\n  name       = \"NAME(tiny)\"\n  path       = %q\n  memory_mib = 128\n  has_agent  = true\n}\n", path)
}

func poolBlock(extra string) string {
	return "resource \"fluxvm_pool\" \"ci\" {\n  name  = \"NAME(ci)\"\n  image = fluxvm_image.tiny.name\n" + extra + "\n}\n"
}

func (f fleet) run(t *testing.T, steps ...resource.TestStep) {
	t.Helper()
	test := resource.TestCase{
		ProtoV6ProviderFactories: map[string]func() (tfprotov6.ProviderServer, error){
			"fluxvm": providerserver.NewProtocol6WithError(New("test")()),
			"acme":   providerserver.NewProtocol6WithError(New("test")()),
			"echo":   echoprovider.NewProviderServer(),
		},
		CheckDestroy: f.checkDestroyed,
		Steps:        steps,
	}
	resource.Test(t, test)
}

// checkDestroyed finds what a destroy left behind.
func (f fleet) checkDestroyed(s *terraform.State) error {
	ctx := context.Background()
	for address, r := range s.RootModule().Resources {
		var err error
		switch r.Type {
		case "fluxvm_image":
			_, err = f.client.Image(ctx, r.Primary.Attributes["name"])
		case "fluxvm_pool":
			_, err = f.client.Pool(ctx, r.Primary.Attributes["name"])
		case "fluxvm_vm":
			_, err = f.client.VM(ctx, r.Primary.Attributes["id"])
		case "fluxvm_tenant":
			_, err = f.client.Tenant(ctx, r.Primary.Attributes["name"])
		case "fluxvm_tenant_key":
			_, err = client.All(f.client.TenantKeys(ctx, r.Primary.Attributes["tenant"])) // they go with the tenant
		case "fluxvm_lease":
			err = f.checkEnded(ctx, r.Primary.Attributes["id"])
		case "fluxvm_policy":
			err = f.checkDefaults(ctx)
		default:
			continue
		}
		if !client.IsNotFound(err) {
			return fmt.Errorf("%s is still there after destroy (%v)", address, err)
		}
	}
	return nil
}

var errGone = api.Errorf(api.CodeNotFound, "it is gone, as it should be")

// checkEnded takes a lease for gone that has ended, or whose end is asked for and only held by its minimum term.
func (f fleet) checkEnded(ctx context.Context, id string) error {
	lease, err := f.client.Lease(ctx, id)
	if err == nil && (lease.State == api.LeaseEnded || lease.State == api.LeaseActive && lease.Reason != "") {
		return errGone
	}
	return err
}

func (f fleet) checkDefaults(ctx context.Context) error {
	policy, err := f.client.Policy(ctx)
	if policy.Version = 0; err == nil && policy == api.DefaultPolicy() {
		return errGone
	}
	return err
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := waitFor(ctx, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("waited for %s: %v", what, err)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Short forms of what steps check.

func plans(address string, action plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, action)}}
}

func plansNothing() resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}
}

func is(address, attribute string, value knownvalue.Check) statecheck.StateCheck {
	return statecheck.ExpectKnownValue(address, tfjsonpath.New(attribute), value)
}

func num(n int64) knownvalue.Check { return knownvalue.Int64Exact(n) }

func text(s string) knownvalue.Check { return knownvalue.StringExact(s) }

func yes() knownvalue.Check { return knownvalue.Bool(true) }

func none() knownvalue.Check { return knownvalue.Null() }

func some() knownvalue.Check { return knownvalue.NotNull() }
