package central

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/central/console"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// browse asks a replica's public handler as a browser does: without a token, past the check against the API's file.
func browse(r *rig, replica, method, path string) *http.Response {
	w := httptest.NewRecorder()
	r.member(replica).public.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Result()
}

func TestEveryReplicaServesTheConsoleItself(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		leader, follower := r.leader(), r.follower()
		r.network.Isolate(follower)
		r.cutOff(follower) // alone, it still has the page that can say so
		for _, replica := range []string{leader, follower} {
			if resp := browse(r, replica, "GET", "/console/"); resp.StatusCode != 200 || resp.Header.Get("Content-Security-Policy") != console.Policy {
				t.Errorf("%s: %d with policy %q", replica, resp.StatusCode, resp.Header.Get("Content-Security-Policy"))
			}
			for _, path := range []string{"/", "/console"} {
				if resp := browse(r, replica, "GET", path); resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/console/" {
					t.Errorf("%s on %s: %d to %q, want 302 to /console/", path, replica, resp.StatusCode, resp.Header.Get("Location"))
				}
			}
			if resp := browse(r, replica, "POST", "/console/"); resp.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(resp.Header.Get("Allow"), "GET") {
				t.Errorf("POST on %s: %d, Allow %q", replica, resp.StatusCode, resp.Header.Get("Allow"))
			}
		}
		r.network.Rejoin(follower)
		r.heal(follower)
		r.serving()
	})
}

func TestThePeerPortHasNoConsole(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		w := httptest.NewRecorder()
		r.member(r.leader()).peer.ServeHTTP(w, httptest.NewRequest("GET", "/console/", nil))
		var e api.Error
		if err := json.NewDecoder(w.Result().Body).Decode(&e); err != nil || w.Code != 404 || e.Code != api.CodeNotFound {
			t.Errorf("%d %v %+v, want the API's 404", w.Code, err, e)
		}
	})
}
