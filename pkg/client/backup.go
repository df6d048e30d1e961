package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Backup writes the control plane's whole state to w and holds it to its checksum. When it fails, what w has is no
// backup.
func (c *Client) Backup(ctx context.Context, w io.Writer) (api.Backup, error) {
	resp, err := c.caller.open(ctx, call{method: http.MethodPost, path: "/fleet/cluster/snapshot", key: newKey("")})
	if err != nil {
		return api.Backup{}, err
	}
	defer resp.Body.Close()
	head, err := api.ReadBackup(io.TeeReader(resp.Body, w))
	if err != nil {
		return head, fmt.Errorf("the backup did not arrive whole: %w", err)
	}
	return head, nil
}

// Restore makes the state of a fresh cluster that of a backup. It is sent once: what became of it when no answer comes
// is seen in Cluster, whose ID and Epoch are then those of the backup and newer.
func (c *Client) Restore(ctx context.Context, backup []byte) (api.Backup, error) {
	var out api.Backup
	_, err := c.caller.do(ctx, call{method: http.MethodPost, path: "/fleet/cluster/restore", raw: backup, key: newKey(""), once: true, hold: 5 * time.Minute, out: &out})
	return out, err
}

// open gives the first answer that is no refusal to try elsewhere, with its body still to be read.
func (c *caller) open(ctx context.Context, r call) (*http.Response, error) {
	first, waits := c.current.Load(), newBackoff()
	var last error
	for i := range 3 * len(c.endpoints) {
		at := (first + int64(i)) % int64(len(c.endpoints))
		resp, _, err := c.send(ctx, c.endpoints[at], r, nil, "application/octet-stream")
		if err == nil && resp.StatusCode == http.StatusOK {
			c.current.Store(at)
			return resp, nil
		}
		if err == nil {
			raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // a broken refusal is judged by its status
			err = errors.Join(problem(resp, raw), resp.Body.Close())
			var refused *api.Error
			if errors.As(err, &refused) && !refused.Code.Temporary() {
				return nil, refused
			}
		}
		last = err
		if err := sleep(ctx, waits.NextBackOff()); err != nil {
			break
		}
	}
	return nil, last
}
