package central

import (
	"net/http"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// getChecksum answers GET /fleet/cluster/checksum from this replica's own state, whoever leads: two replicas that differ
// at one index are what it is there to show.
func (q *request) getChecksum() error {
	view := q.r.state.View()
	sum, err := view.Hash()
	if err != nil {
		return err
	}
	q.index(view)
	return q.send(http.StatusOK, api.Checksum{Name: q.r.cfg.Name, Index: view.Index(), SHA256: sum})
}
