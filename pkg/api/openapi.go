package api

import _ "embed"

//go:embed openapi.json
var openAPI string

// OpenAPI is the description of the fleet API as central serves it at /openapi.json. The file is kept by hand;
// tests hold these types, central's routes and its answers to it.
func OpenAPI() []byte { return []byte(openAPI) }
