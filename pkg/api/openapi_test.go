package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// described are the types that the file's schemas describe, by schema name.
func described() map[string]reflect.Type {
	types := []any{
		Cluster{}, Replica{}, Activity{}, Event{}, VM{}, LaunchRequest{}, Apple{}, CloudInit{}, CloudInitFile{}, Network{}, PortForward{},
		NetworkRef{}, ExtraDisk{}, BalloonDevice{}, LaunchAnswer{}, DryRunAnswer{}, HostVerdict{}, VMPatch{}, ExecRequest{}, ExecAnswer{}, Size{},
		PoolRequest{}, PoolPatch{}, RollRequest{}, Pool{}, PoolStatus{}, WarmVM{}, Image{}, ImageRequest{}, ImagePatch{}, Density{},
		AppleHost{}, Capabilities{}, Node{}, NodePatch{}, Capacity{}, Register{}, ReportedVM{}, RegisterAnswer{}, JoinTokenRequest{}, ReplicaRequest{}, TransferRequest{}, Checksum{}, Backup{},
		NodeDrain{}, DrainBlocker{}, DrainRequest{},
		JoinToken{}, Error{}, Quota{}, Holding{}, Tenant{}, TenantRequest{}, TenantPatch{}, QuotaPatch{}, TenantPolicy{}, TenantPolicyPatch{}, KeyRequest{}, Key{}, TenantUsage{},
		Policy{}, PolicyPatch{}, Lease{}, Scrub{}, LeaseRequest{}, LeasePatch{}, Prices{}, VMPrice{}, LeasePrice{}, Rate{}, LedgerRow{},
		AdjustmentRequest{}, UsageItem{}, Usage{}, Claim{}, ClaimFile{}, Roll{},
	}
	named := map[string]reflect.Type{
		"VMList": reflect.TypeFor[List[VM]](), "PoolList": reflect.TypeFor[List[Pool]](), "ImageList": reflect.TypeFor[List[Image]](),
		"NodeList": reflect.TypeFor[List[Node]](), "ActivityList": reflect.TypeFor[List[Activity]](),
		"TenantList": reflect.TypeFor[List[Tenant]](), "KeyList": reflect.TypeFor[List[Key]](), "LeaseList": reflect.TypeFor[List[Lease]](),
		"LedgerList": reflect.TypeFor[List[LedgerRow]](),
	}
	for _, v := range types {
		named[reflect.TypeOf(v).Name()] = reflect.TypeOf(v)
	}
	return named
}

// schema is the part of an OpenAPI schema that follows from a Go type.
type schema struct {
	Ref        string            `json:"$ref"`
	AllOf      []schema          `json:"allOf"`
	Type       string            `json:"type"`
	Nullable   bool              `json:"nullable"`
	Items      *schema           `json:"items"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Additional json.RawMessage   `json:"additionalProperties"`
	Enum       []any             `json:"enum"`
}

func fileSchemas(t *testing.T) map[string]schema {
	t.Helper()
	var doc struct {
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(OpenAPI(), &doc); err != nil {
		t.Fatalf("reading openapi.json: %v", err)
	}
	return doc.Components.Schemas
}

func TestOpenAPISchemasAreTheGoTypes(t *testing.T) {
	inFile := fileSchemas(t)
	types := described()
	for _, name := range slices.Sorted(maps.Keys(inFile)) {
		if _, ok := types[name]; !ok && name != "Time" {
			t.Errorf("openapi.json has a schema %s, and no Go type is held to it; add it to described", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		s, ok := inFile[name]
		if !ok {
			t.Errorf("openapi.json lacks a schema for api.%s", name)
			continue
		}
		if name == "Quota" || name == "TenantPolicy" { // a request holds one, too, and may leave fields out
			s.Required = append(s.Required, slices.Sorted(maps.Keys(s.Properties))...)
		}
		for _, problem := range compareStruct(s, types[name], name == "Register") {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func TestOpenAPIErrorCodesAreTheClosedSet(t *testing.T) {
	var got []string
	for _, v := range fileSchemas(t)["Error"].Properties["code"].Enum {
		got = append(got, v.(string))
	}
	for code := range codeFacts {
		if !slices.Contains(got, string(code)) {
			t.Errorf("openapi.json lacks the code %s", code)
		}
	}
	if len(got) != len(codeFacts) {
		t.Errorf("openapi.json has %d codes, want %d", len(got), len(codeFacts))
	}
}

func TestOpenAPIComparisonSeesEachKindOfDrift(t *testing.T) {
	type sample struct {
		Name  string  `json:"name"`
		Owner *string `json:"owner"`
		Note  string  `json:"note,omitempty"`
		At    Time    `json:"at"`
	}
	right := `{"type":"object","additionalProperties":false,"required":["name","owner","at"],"properties":{
		"name":{"type":"string"},"owner":{"type":"string","nullable":true},"note":{"type":"string"},"at":{"$ref":"#/components/schemas/Time"}}}`
	for name, edit := range map[string][2]string{
		"":                       {"", ""},
		"lacks property note":    {`"note":{"type":"string"},`, ``},
		"note must not be":       {`"owner","at"`, `"owner","at","note"`},
		"owner must be required": {`"name","owner","at"`, `"name","at"`},
		"owner: nullable":        {`,"nullable":true`, ``},
		"name: nullable":         {`"name":{"type":"string"}`, `"name":{"type":"string","nullable":true}`},
		"name: type":             {`"name":{"type":"string"}`, `"name":{"type":"integer"}`},
		"at: ":                   {`{"$ref":"#/components/schemas/Time"}`, `{"type":"string"}`},
		"no field gone":          {`"note":`, `"gone":{"type":"string"},"note":`},
		"additionalProperties":   {`"additionalProperties":false,`, ``},
	} {
		var s schema
		if err := json.Unmarshal([]byte(strings.Replace(right, edit[0], edit[1], 1)), &s); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(compareStruct(s, reflect.TypeFor[sample](), false), "; ")
		if name == "" && got != "" || !strings.Contains(got, name) {
			t.Errorf("got %q, want a problem with %q", got, name)
		}
	}
}

// compareStruct says where the schema of an object departs from the struct. lax lets lists and maps be null, as
// they are in what Go programs send.
func compareStruct(s schema, typ reflect.Type, lax bool) (problems []string) {
	say := func(parts ...string) { problems = append(problems, strings.Join(parts, "")) }
	if string(s.Additional) != "false" {
		say("additionalProperties must be false")
	}
	known := map[string]bool{}
	for field := range typ.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		known[name] = true
		prop, ok := s.Properties[name]
		if !ok {
			say("lacks property ", name)
			continue
		}
		optional := strings.Contains(options, "omit")
		switch required := slices.Contains(s.Required, name); {
		case optional && required:
			say(name, " must not be required: it may be left out")
		case !optional && !required:
			say(name, " must be required: it is always there")
		}
		if problem := compareType(prop, field.Type, optional, lax); problem != "" {
			say(name, ": ", problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if !known[name] {
			say("there is no field ", name)
		}
	}
	return problems
}

func compareType(s schema, typ reflect.Type, optional, lax bool) string {
	if typ == reflect.TypeFor[Time]() {
		return wantRef(s, "Time")
	}
	if typ == reflect.TypeFor[json.RawMessage]() || typ.Kind() == reflect.Interface {
		return ""
	}
	if strings.HasPrefix(typ.Name(), "Optional[") { // whether a merge patch's field may be null is for its Check to say
		value, _ := typ.FieldByName("V")
		if value.Type == reflect.TypeFor[Time]() {
			return wantRef(s, "Time")
		}
		return compareKind(s, value.Type)
	}
	nilable := typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map
	if typ.Kind() == reflect.Pointer {
		if !s.Nullable && !optional {
			return "nullable must be true: the pointer may be nil"
		}
		return compareKind(s, typ.Elem())
	}
	if s.Nullable && !(nilable && lax) {
		return "nullable must be left out: it is never null"
	}
	return compareKind(s, typ)
}

func compareKind(s schema, typ reflect.Type) string {
	if len(s.AllOf) == 1 {
		s = s.AllOf[0]
	}
	switch typ.Kind() {
	case reflect.Struct:
		return wantRef(s, typ.Name())
	case reflect.Slice:
		if s.Type != "array" || s.Items == nil {
			return "type must be array with items"
		}
		return compareType(*s.Items, typ.Elem(), false, false)
	case reflect.Map:
		var values schema
		if s.Type != "object" || json.Unmarshal(s.Additional, &values) != nil {
			return "type must be object with additionalProperties for its values"
		}
		return compareType(values, typ.Elem(), false, false)
	}
	want := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer", reflect.Uint64: "integer", reflect.Float64: "number"}[typ.Kind()]
	if s.Type != want {
		return "type must be " + want + ", it is " + s.Type
	}
	return ""
}

func wantRef(s schema, name string) string {
	if s.Ref != "#/components/schemas/"+name {
		return "must refer to " + name
	}
	return ""
}
