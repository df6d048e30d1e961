package apitest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const vmJSON = `{"id":"0198c0de-0000-7000-8000-000000000001","name":"a","tenant":null,"node":"node-1","backend":"sim","image":"tiny","guest_os":"linux",
"vcpus":1,"memory_mib":128,"disk_size_gib":0,"state":"running","labels":{},"created_at":"2026-01-02T03:04:05.678Z","ready_at":null,"expires_at":null,
"claimed_at":null,"ephemeral":false,"reschedulable":false,"version":7}`

const problemJSON = `{"type":"https://fluxvm.dev/errors/not_found","title":"Not found","status":404,"detail":"no such VM","code":"not_found","request_id":"r","error":"no such VM"}`

// ask sends one request to a server that gives the answer, through Validating, and returns what went wrong.
func ask(t *testing.T, method, target, body string, status int, header map[string]string, answer string) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		io.WriteString(w, answer)
	}))
	defer server.Close()
	req, err := http.NewRequest(method, server.URL+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: Validating(http.DefaultTransport)}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != answer {
		t.Errorf("the answer came through as %q, want %q", got, answer)
	}
	return nil
}

func TestAnswersAreHeldToTheFile(t *testing.T) {
	json := map[string]string{"Content-Type": "application/json", "X-Fluxvm-Index": "7", "ETag": `"7"`, "Idempotency-Key": "k"}
	with := func(k, v string) map[string]string {
		h := map[string]string{}
		for name, value := range json {
			h[name] = value
		}
		h[k] = v
		return h
	}
	problem := map[string]string{"Content-Type": "application/problem+json"}
	launch := `{"node":"node-1","vm":` + vmJSON + `}`
	for name, c := range map[string]struct {
		method, target, body string
		status               int
		header               map[string]string
		answer               string
		want                 string // part of the error; empty: it passes
	}{
		"a VM":                      {"GET", "/fleet/vms/a", "", 200, json, vmJSON, ""},
		"a page":                    {"GET", "/fleet/vms?limit=5&label=a%3Db", "", 200, json, `{"items":[` + vmJSON + `],"next_cursor":null}`, ""},
		"a launch":                  {"POST", "/fleet/vms", `{"image":"tiny"}`, 201, json, launch, ""},
		"a launch without a body":   {"POST", "/fleet/vms", "", 201, json, launch, "request was accepted"},
		"a cordon without a body":   {"POST", "/fleet/nodes/a/cordon", "", 404, problem, problemJSON, ""},
		"a refusal":                 {"GET", "/fleet/vms/a", "", 404, problem, problemJSON, ""},
		"a delete":                  {"DELETE", "/fleet/vms/node-1/a", "", 204, nil, "", ""},
		"no such route":             {"GET", "/fleet/nothing", "", 404, problem, problemJSON, ""},
		"a patch with null":         {"PATCH", "/fleet/pools/p", `{"max_total":null}`, 404, problem, problemJSON, ""},
		"metrics":                   {"GET", "/metrics", "", 200, map[string]string{"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, "fluxvm_up 1\n", ""},
		"a stream":                  {"GET", "/fleet/events?from=now", "", 200, map[string]string{"Content-Type": "text/event-stream"}, "id: 1.0\n\n", ""},
		"an unknown field":          {"GET", "/fleet/vms/a", "", 200, json, strings.Replace(vmJSON, `"vcpus":1`, `"vcpus":1,"cpus":1`, 1), "cpus"},
		"a missing field":           {"GET", "/fleet/vms/a", "", 200, json, strings.Replace(vmJSON, `"vcpus":1,`, ``, 1), "vcpus"},
		"null labels":               {"GET", "/fleet/vms/a", "", 200, json, strings.Replace(vmJSON, `"labels":{}`, `"labels":null`, 1), "labels"},
		"an unknown state":          {"GET", "/fleet/vms/a", "", 200, json, strings.Replace(vmJSON, `running`, `walking`, 1), "state"},
		"no index":                  {"GET", "/fleet/vms/a", "", 200, map[string]string{"Content-Type": "application/json", "ETag": `"7"`}, vmJSON, "X-Fluxvm-Index"},
		"an ETag without quotes":    {"GET", "/fleet/vms/a", "", 200, with("ETag", "7"), vmJSON, "ETag"},
		"another status":            {"POST", "/fleet/vms", `{"image":"tiny"}`, 202, json, launch, "not as openapi.json says"},
		"a body type":               {"GET", "/fleet/vms/a", "", 200, with("Content-Type", "text/html"), vmJSON, "Content-Type"},
		"an error as plain text":    {"GET", "/fleet/vms/a", "", 404, map[string]string{"Content-Type": "text/plain"}, "no", "Content-Type"},
		"another status in body":    {"GET", "/fleet/vms/a", "", 409, problem, problemJSON, "says status 404"},
		"a code of another status":  {"GET", "/fleet/vms/a", "", 404, problem, strings.Replace(problemJSON, `"code":"not_found"`, `"code":"conflict"`, 1), "goes with 409"},
		"a code outside the set":    {"GET", "/fleet/vms/a", "", 404, problem, strings.Replace(problemJSON, `"code":"not_found"`, `"code":"gone"`, 1), "code"},
		"a body accepted by error":  {"POST", "/fleet/vms", `{"image":"tiny","cpus":1}`, 201, json, launch, "request was accepted"},
		"a query accepted by error": {"GET", "/fleet/vms?limit=501", "", 200, json, `{"items":[],"next_cursor":null}`, "request was accepted"},
		"a route beside the file":   {"GET", "/fleet/nothing", "", 200, json, `{}`, "no such route"},
		"a method beside the file":  {"PUT", "/fleet/vms", "{}", 404, problem, problemJSON, "must be 405"},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask(t, c.method, c.target, c.body, c.status, c.header, c.answer)
			if c.want == "" && err != nil {
				t.Errorf("got %v, want no objection", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want an objection with %q", err, c.want)
			}
		})
	}
}

func TestRoutesListsEveryOperation(t *testing.T) {
	routes, err := Routes()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, r := range routes {
		switch r {
		case Route{"GET", "/healthz"}, Route{"POST", "/fleet/vms"}, Route{"DELETE", "/fleet/vms/{node}/{id}"}, Route{"POST", "/fleet/pools/{name}/roll"}:
			found++
		}
	}
	if found != 4 {
		t.Errorf("got %v, want the four routes looked for among them", routes)
	}
}

func TestCheckReportsAndPassesTheAnswerOn(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "hello")
	}))
	defer server.Close()
	seen := &recorder{TB: t}
	resp, err := (&http.Client{Transport: Check(seen, http.DefaultTransport)}).Get(server.URL + "/fleet/vms")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "hello" || seen.errors != 1 {
		t.Errorf("got body %q and %d reports, want hello and 1", body, seen.errors)
	}
}

type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Error(...any) { r.errors++ }
