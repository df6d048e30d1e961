package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// ownNames are attributes that the API calls otherwise: Terraform keeps count for itself.
var ownNames = map[string]string{"nodeSelector": "node_selector", "count": "node_count", "expires_in_secs": "expires_in"}

// attributePath reads quota.max_vms as the attribute max_vms of quota.
func attributePath(field string) path.Path {
	parts := strings.Split(field, ".")
	at := path.Root(parts[0])
	for _, name := range parts[1:] {
		at = at.AtName(name)
	}
	return at
}

// addError turns a failure into a diagnostic, at the attribute that it names where attributes has it.
func addError(diags *diag.Diagnostics, summary string, err error, attributes ...string) {
	text := explain(err)
	var e *api.Error
	if errors.As(err, &e) {
		field := e.Field
		if own, ok := ownNames[field]; ok {
			field = own
		}
		if slices.Contains(attributes, field) {
			diags.AddAttributeError(attributePath(field), summary, text)
			return
		}
	}
	diags.AddError(summary, text)
}

// explain says what happened and what to change.
func explain(err error) string {
	var e *api.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	text := e.Detail
	if why := reasonsText(e.Reasons); why != "" {
		text += "\n" + why
	}
	switch e.Code {
	case api.CodeUnauthenticated:
		text += "\nSet token in the provider block, or FLUXVM_TOKEN."
	case api.CodeOutcomeUnknown:
		text += "\nIt may exist although this apply failed. If the next apply finds the name taken, import it."
	}
	if e.RequestID != "" {
		text += fmt.Sprintf("\n(code %s, request %s)", e.Code, e.RequestID)
	}
	return text
}

// reasonsText tells why hosts were ruled out, most frequent first.
func reasonsText(reasons map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		if d := reasons[b] - reasons[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, k := range keys {
		hosts := "hosts"
		if reasons[k] == 1 {
			hosts = "host"
		}
		parts = append(parts, fmt.Sprintf("%d %s: %s", reasons[k], hosts, reasonText(k)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "Ruled out: " + strings.Join(parts, "; ") + "."
}

func reasonText(why string) string {
	switch why {
	case api.WhyLabel:
		return "no label that node_selector asks for (label)"
	case api.WhyCPU:
		return "too few free vCPUs (cpu)"
	case api.WhyMemory:
		return "too little free memory (memory)"
	case api.WhyPressure:
		return "under memory pressure (pressure)"
	case api.WhyMacOSLimit:
		return "already two macOS guests (macos_limit)"
	case api.WhyPort:
		return "a forwarded host_port is taken (port)"
	case api.WhyLeased:
		return "leased to another tenant (leased)"
	case api.WhyCordoned:
		return "cordoned or draining (cordoned)"
	case api.WhyScrub:
		return "being scrubbed (scrub)"
	case api.WhyBackend:
		return "no backend that can run it (backend)"
	case api.WhyUnhealthy:
		return "not heard from lately (unhealthy)"
	}
	return why
}

// addTaken says that the name is in use and how to take the object over, by its import id.
func addTaken(diags *diag.Diagnostics, resourceType, id string, err error) {
	diags.AddAttributeError(path.Root("name"), "The name is taken",
		explain(err)+fmt.Sprintf("\nTo manage what has the name, run (with your resource's own label)\n\n  terraform import %s.LABEL %s\n\nor choose another name.", resourceType, id))
}

// hasCode says that a call was refused for a reason.
func hasCode(err error, code api.Code) bool { return errors.Is(err, &api.Error{Code: code}) }

// outOfTime says that a wait ended because its time was up or Terraform was told to stop.
func outOfTime(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
