package apitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Route is one operation of the file, such as GET /fleet/vms/{id}.
type Route struct {
	Method string
	Path   string
}

// contract is the file, read and checked once: it cannot change while a program runs.
var contract = sync.OnceValues(func() (*file, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("reading openapi.json: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("openapi.json is not OpenAPI 3.0: %w", err)
	}
	doc.Servers = nil // a test's server listens wherever it likes
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("reading the paths of openapi.json: %w", err)
	}
	return &file{doc, router}, nil
})

type file struct {
	doc    *openapi3.T
	router routers.Router
}

// Routes lists every operation of the file by path, then method.
func Routes() ([]Route, error) {
	f, err := contract()
	if err != nil {
		return nil, err
	}
	var all []Route
	for path, item := range f.doc.Paths.Map() {
		for method := range item.Operations() {
			all = append(all, Route{method, path})
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method) })
	return all, nil
}

// Validating wraps rt: a request or answer that departs from the file makes the round trip fail with an error that
// says where. The body of an event stream is passed on unread.
func Validating(rt http.RoundTripper) http.RoundTripper {
	return &transport{next: rt}
}

// Check is Validating for transports whose callers try again after an error: it reports to t and passes the answer on.
func Check(t testing.TB, rt http.RoundTripper) http.RoundTripper {
	return &transport{next: rt, report: func(err error) { t.Error(err) }}
}

type transport struct {
	next   http.RoundTripper
	report func(error) // nil: the round trip fails
}

// RoundTrip sends the request and holds it and its answer to the file.
func (v *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var sent []byte
	if req.Body != nil && req.Body != http.NoBody {
		var err error
		sent, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(sent))
	}
	answer, err := v.next.RoundTrip(req)
	if err != nil {
		return answer, err
	}
	if err := check(req, sent, answer); err != nil {
		err = fmt.Errorf("%s %s answered %d: %w", req.Method, req.URL.RequestURI(), answer.StatusCode, err)
		if v.report == nil {
			answer.Body.Close()
			return nil, err
		}
		v.report(err)
	}
	return answer, nil
}

// check reads the body of the answer and puts it back.
func check(req *http.Request, sent []byte, answer *http.Response) error {
	f, err := contract()
	if err != nil {
		return err
	}
	kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if err != nil && answer.StatusCode != http.StatusNoContent && req.Method != http.MethodHead {
		return fmt.Errorf("the answer's Content-Type %q cannot be read", answer.Header.Get("Content-Type"))
	}
	var body []byte
	if kind != "text/event-stream" {
		body, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		answer.Body = io.NopCloser(bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
	}
	route, params, err := f.router.FindRoute(bare(req, sent))
	if err != nil {
		return checkNoRoute(f, answer.StatusCode, kind, body, err)
	}
	if answer.StatusCode == http.StatusNoContent && len(body) > 0 {
		return errors.New("204 has no body, this one does")
	}
	input := &openapi3filter.RequestValidationInput{Request: bare(req, sent), PathParams: params, Route: route, Options: &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
		ExcludeResponseBody: kind == "text/event-stream", RejectWhenRequestBodyNotSpecified: true,
	}}
	if answer.StatusCode < 300 { // what is refused may be anything; what is accepted must be in the file
		if err := openapi3filter.ValidateRequest(req.Context(), input); err != nil {
			return fmt.Errorf("the request was accepted and openapi.json does not allow it: %w", err)
		}
	}
	err = openapi3filter.ValidateResponse(req.Context(), &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: answer.StatusCode,
		Header: answer.Header, Body: io.NopCloser(bytes.NewReader(body)), Options: input.Options})
	if err != nil {
		return fmt.Errorf("the answer is not as openapi.json says: %w\n%s", err, body[:min(len(body), 2000)])
	}
	return checkProblem(f, answer.StatusCode, kind, body)
}

// bare is the request as the file sees it: the path without host, and the body that was sent.
func bare(req *http.Request, sent []byte) *http.Request {
	out := req.Clone(req.Context())
	out.Body = io.NopCloser(bytes.NewReader(sent))
	if sent == nil {
		out.Body = http.NoBody
	}
	return out
}

// checkNoRoute holds what the file does not describe to a refusal.
func checkNoRoute(f *file, status int, kind string, body []byte, why error) error {
	want := http.StatusNotFound
	if errors.Is(why, routers.ErrMethodNotAllowed) {
		want = http.StatusMethodNotAllowed
	}
	if status != want && status != http.StatusUnauthorized {
		return fmt.Errorf("openapi.json has no such route (%w), so the answer must be %d; add the route to the file", why, want)
	}
	return checkProblem(f, status, kind, body)
}

// checkProblem holds an error's body to its own rules beyond the schema: the status agrees with the line and, but
// for 405, with the code; error repeats detail.
func checkProblem(f *file, status int, kind string, body []byte) error {
	if status < 400 {
		return nil
	}
	if kind != "application/problem+json" {
		return fmt.Errorf("an error must be application/problem+json, this one is %q", kind)
	}
	var problem api.Error
	if err := api.Decode(body, &problem); err != nil {
		return fmt.Errorf("the error's body is no problem document: %w", err)
	}
	switch {
	case problem.Status != status:
		return fmt.Errorf("the error's body says status %d", problem.Status)
	case problem.Code.Status() != status && status != http.StatusMethodNotAllowed:
		return fmt.Errorf("code %s goes with %d", problem.Code, problem.Code.Status())
	case problem.Detail == "" || problem.Message != problem.Detail:
		return errors.New("the error must have a detail, and error must repeat it")
	case problem.RequestID == "":
		return errors.New("the error must have a request_id")
	}
	return nil
}
