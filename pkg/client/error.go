package client

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// UnreachableError says that no answer came. It unwraps to an *api.Error as well: CodeUnavailable when nothing
// was changed, CodeOutcomeUnknown when the request may have been carried out.
type UnreachableError struct {
	Request string   // such as "POST /fleet/vms"
	Tried   []string // the endpoints, in order of trying
	Unknown bool     // a try was sent and its answer was lost
	Key     string   // the request's idempotency key, if it has one
	Err     error    // of the last try
}

// Error names the endpoints and what to check.
func (e *UnreachableError) Error() string { return e.Request + ": " + e.detail() }

func (e *UnreachableError) detail() string {
	text := fmt.Sprintf("no answer from %s: %v", strings.Join(e.Tried, ", "), e.Err)
	switch {
	case e.Unknown && e.Key != "":
		return text + "; it may have been carried out: look, or repeat it with Idempotency-Key " + e.Key
	case e.Unknown:
		return text + "; it may have been carried out: look before repeating it"
	}
	return text + "; check that FluxVM runs there, that the address is right and that nothing blocks it"
}

// Unwrap gives the cause and the failure as a code.
func (e *UnreachableError) Unwrap() []error {
	code := api.CodeUnavailable
	if e.Unknown {
		code = api.CodeOutcomeUnknown
	}
	return []error{api.Errorf(code, "%s", e.detail()), e.Err}
}

// IsNotFound says whether the API answered that there is no such thing.
func IsNotFound(err error) bool { return errors.Is(err, &api.Error{Code: api.CodeNotFound}) }

// problem reads an answer that is no success. What does not come from FluxVM (a proxy, another server) becomes
// an error with the nearest code.
func problem(resp *http.Response, raw []byte) *api.Error {
	var e api.Error
	if json.Unmarshal(raw, &e) == nil && e.Code != "" {
		e.Status = resp.StatusCode
		if e.Detail == "" {
			e.Detail = e.Message
		}
		if e.RequestID == "" {
			e.RequestID = resp.Header.Get(api.HeaderRequestID)
		}
		if secs, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && e.RetryAfterSecs == 0 {
			e.RetryAfterSecs = secs
		}
		return &e
	}
	out := api.Errorf(codeOf(resp.StatusCode), "status %s without a FluxVM error: %s", resp.Status, excerpt(raw))
	out.Status = resp.StatusCode
	if secs, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		out.RetryAfterSecs = secs
	}
	return out
}

// remedied says what to change about a connection that fails the same way whenever it is tried.
func remedied(err error) error {
	var issuer x509.UnknownAuthorityError
	var name x509.HostnameError
	var op *net.OpError
	var remedy string
	switch {
	case errors.As(err, &issuer):
		remedy = "trust the fleet's ca.pem with FLUXVM_CA_CERT, or check that this is the right fleet"
	case errors.As(err, &name):
		remedy = "use an address that its certificate names, or make that anew with --san"
	case errors.Is(err, http.ErrSchemeMismatch):
		remedy = "it speaks plain HTTP: begin the address with http://"
	case errors.As(err, &op) && op.Op == "remote error":
		remedy = "it wants a certificate of this client (FLUXVM_CLIENT_CERT, FLUXVM_CLIENT_KEY) by an authority that it trusts; replicas answer clients at --listen, not at --cluster-listen"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, remedy)
}

func codeOf(status int) api.Code {
	switch status {
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		return api.CodeInvalid
	case http.StatusUnauthorized:
		return api.CodeUnauthenticated
	case http.StatusForbidden:
		return api.CodeForbidden
	case http.StatusNotFound:
		return api.CodeNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return api.CodeConflict
	case http.StatusRequestEntityTooLarge:
		return api.CodeTooLarge
	case http.StatusTooManyRequests:
		return api.CodeRateLimited
	case http.StatusServiceUnavailable:
		return api.CodeUnavailable
	case http.StatusBadGateway, http.StatusGatewayTimeout: // a proxy cannot know whether the request arrived
		return api.CodeOutcomeUnknown
	}
	return api.CodeInternal
}

func excerpt(raw []byte) string {
	const longest = 200
	text := strings.Join(strings.Fields(string(raw)), " ")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	if text == "" {
		return "the answer is empty; check that the address is FluxVM's"
	}
	if strings.Contains(text, "HTTP request to an HTTPS server") { // net/http's words to a client without TLS
		return "it speaks TLS: begin the address with https://"
	}
	return strconv.Quote(text) + "; check that the address is FluxVM's"
}

// retryAfter is how long the answer asks to wait, within reason.
func retryAfter(e *api.Error) time.Duration {
	return min(time.Duration(e.RetryAfterSecs)*time.Second, maxRetryAfter)
}
