package central

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestEveryReplicaHasTheChecksumOfTheBackup: replicas at one index give one sum, which anybody can check against a
// backup; a change gives another.
func TestEveryReplicaHasTheChecksumOfTheBackup(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		seen := map[string]bool{}
		for _, image := range []string{"tiny", "small"} {
			r.image(image)
			r.applied()
			sum := sha256.Sum256(r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body)
			want := api.Checksum{Index: r.member(r.leader()).state.View().Index(), SHA256: hex.EncodeToString(sum[:])}
			for _, name := range r.names {
				want.Name = name
				if got := into[api.Checksum](t, r.call(name, "GET", "/fleet/cluster/checksum", nil)); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
			seen[want.SHA256] = true
		}
		if len(seen) != 2 {
			t.Error("a change left the checksum as it was")
		}
	})
}
