// Package apitest holds a server and its clients to pkg/api/openapi.json while tests run: every answer, and every
// request that the server accepted, must be as the file says.
//
// It refuses to talk to a server itself: it wraps the transport that a test uses anyway. Only tests import it.
package apitest
