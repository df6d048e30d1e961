package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed openapi.json
var openAPI string

// OpenAPI is the description of the fleet API as central serves it at /openapi.json. The file is kept by hand;
// tests hold these types, central's routes and its answers to it.
func OpenAPI() []byte { return []byte(openAPI) }

// QueryParameters are the names that each route takes behind the question mark, in order, by method and path as the
// file has them ("GET /fleet/vms").
func QueryParameters() (map[string][]string, error) {
	type parameter struct {
		Ref  string `json:"$ref"`
		Name string `json:"name"`
		In   string `json:"in"`
	}
	var doc struct {
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Parameters map[string]parameter `json:"parameters"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(openAPI), &doc); err != nil {
		return nil, fmt.Errorf("reading openapi.json: %w", err)
	}
	out := map[string][]string{}
	for path, parts := range doc.Paths {
		for method, raw := range parts {
			if method == "parameters" { // those of the path itself
				continue
			}
			var one struct {
				Parameters []parameter `json:"parameters"`
			}
			if err := json.Unmarshal(raw, &one); err != nil {
				return nil, fmt.Errorf("reading %s %s in openapi.json: %w", method, path, err)
			}
			names := []string{}
			for _, p := range one.Parameters {
				if ref, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
					p = doc.Components.Parameters[ref]
				}
				if p.In == "query" {
					names = append(names, p.Name)
				}
			}
			slices.Sort(names)
			out[strings.ToUpper(method)+" "+path] = names
		}
	}
	return out, nil
}

// CheckQuery refuses a query parameter that a route does not take: a misspelt filter would show everything.
func CheckQuery(query map[string][]string, known []string) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(known, name):
		case len(known) == 0:
			return Invalid(name, "unknown query parameter %s; this route takes none", shown(name))
		default:
			return Invalid(name, "unknown query parameter %s; this route takes %s", shown(name), strings.Join(known, ", "))
		}
	}
	return nil
}
