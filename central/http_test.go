package central

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestTheAPIKeepsToHTTP(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		for _, replica := range []string{r.leader(), r.follower()} {
			m := r.member(replica)
			ask := func(method, path, auth string) *http.Response {
				req, err := http.NewRequestWithContext(t.Context(), method, "http://fleet"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", auth)
				resp, err := direct{m.public}.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				return resp
			}
			if resp := ask("GET", "/fleet/vms/a", "bearer "+operatorToken); resp.StatusCode != 200 {
				t.Errorf("a scheme in lower case: %s", resp.Status)
			}
			get, head := ask("GET", "/fleet/vms/a", "Bearer "+operatorToken), ask("HEAD", "/fleet/vms/a", "Bearer "+operatorToken)
			if head.StatusCode != 200 || head.Header.Get("ETag") != get.Header.Get("ETag") || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
				t.Errorf("HEAD: %s %v, GET: %s %v", head.Status, head.Header, get.Status, get.Header)
			}
			if resp := ask("HEAD", "/fleet/vms/a", ""); resp.StatusCode != 401 {
				t.Errorf("HEAD without a token: %s", resp.Status)
			}
			for method, path := range map[string]string{"PUT": "/fleet/vms", "GET": "/no/such/route"} {
				resp := ask(method, path, "Bearer "+operatorToken)
				if resp.StatusCode != 405 && resp.StatusCode != 404 || resp.Header.Get(api.HeaderRequestID) == "" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%s %s: %s with %v", method, path, resp.Status, resp.Header)
				}
			}
			if got, err := r.try(replica, operatorToken, "GET", "/fleet/events?from=999999999.0", nil); err != nil || got.code() != api.CodeCursorGone {
				t.Errorf("an event of the future: %s, %v", got, err)
			}
			if got := r.call(replica, "POST", "/fleet/vms", []byte(`{"image":"tiny","image":"tiny"}`)); got.code() != api.CodeInvalid || !strings.Contains(string(got.body), "twice") {
				t.Errorf("a field twice: %s", got)
			}
		}
	})
}
