package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Nodes lists hosts; of the filter State and Labels apply.
func (c *Client) Nodes(ctx context.Context, f Filter) iter.Seq2[api.Node, error] {
	q := c.filterQuery(f)
	q.Del("tenant")
	return pages[api.Node](ctx, c.caller, "/fleet/nodes", q)
}

// Node finds one by name.
func (c *Client) Node(ctx context.Context, name string) (api.Node, error) {
	return get[api.Node](ctx, c.caller, at("/fleet/nodes", name))
}

// PatchNode cordons or uncordons with a reason.
func (c *Client) PatchNode(ctx context.Context, name string, p api.NodePatch) (api.Node, error) {
	return patch[api.Node](ctx, c.caller, at("/fleet/nodes", name), p)
}

// DeleteNode forgets a host that is gone.
func (c *Client) DeleteNode(ctx context.Context, name string) error {
	return remove(ctx, c.caller, at("/fleet/nodes", name))
}

// Cordon keeps new VMs off a host; those on it stay.
func (c *Client) Cordon(ctx context.Context, name string) error {
	return c.orderNode(ctx, name, "cordon")
}

// Uncordon lets new VMs on a host again and ends a drain.
func (c *Client) Uncordon(ctx context.Context, name string) error {
	return c.orderNode(ctx, name, "uncordon")
}

// Drain cordons a host and removes the VMs that may be removed; a repeat changes the drain under way.
func (c *Client) Drain(ctx context.Context, name string, how api.DrainRequest) (api.Node, error) {
	return post[api.Node](ctx, c.caller, at("/fleet/nodes", name, "drain"), "", how)
}

// LoseNode gives a silent host up: its VMs are lost, or boot elsewhere if they are reschedulable.
func (c *Client) LoseNode(ctx context.Context, name, reason string) (api.Node, error) {
	return c.giveUpNode(ctx, name, "lost", reason)
}

// ReplaceNode gives a silent host up and lets the next one that joins under its name take over.
func (c *Client) ReplaceNode(ctx context.Context, name, reason string) (api.Node, error) {
	return c.giveUpNode(ctx, name, "replace", reason)
}

func (c *Client) giveUpNode(ctx context.Context, name, order, reason string) (api.Node, error) {
	body := struct {
		Reason string `json:"reason,omitempty"`
	}{reason}
	return post[api.Node](ctx, c.caller, at("/fleet/nodes", name, order), "", body)
}

func (c *Client) orderNode(ctx context.Context, name, order string) error {
	_, err := c.caller.do(ctx, call{method: http.MethodPost, path: at("/fleet/nodes", name, order), body: struct{}{}, key: newKey("")})
	return err
}

// NodeVMs lists the VMs on a host.
func (c *Client) NodeVMs(ctx context.Context, name string) iter.Seq2[api.VM, error] {
	return pages[api.VM](ctx, c.caller, at("/fleet/nodes", name, "vms"), nil)
}

// Capacity sums up what the fleet has and what is free.
func (c *Client) Capacity(ctx context.Context) (api.Capacity, error) {
	return get[api.Capacity](ctx, c.caller, "/fleet/capacity")
}

// Images lists the catalog.
func (c *Client) Images(ctx context.Context) iter.Seq2[api.Image, error] {
	return pages[api.Image](ctx, c.caller, "/fleet/images", nil)
}

// Image finds a catalog entry by name.
func (c *Client) Image(ctx context.Context, name string) (api.Image, error) {
	return get[api.Image](ctx, c.caller, at("/fleet/images", name))
}

// CreateImage adds a catalog entry. An empty key is a random one.
func (c *Client) CreateImage(ctx context.Context, req api.ImageRequest, key string) (api.Image, error) {
	return post[api.Image](ctx, c.caller, "/fleet/images", key, req)
}

// PatchImage changes what later VMs boot.
func (c *Client) PatchImage(ctx context.Context, name string, p api.ImagePatch) (api.Image, error) {
	return patch[api.Image](ctx, c.caller, at("/fleet/images", name), p)
}

// DeleteImage removes a catalog entry; VMs booted from it stay.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	return remove(ctx, c.caller, at("/fleet/images", name))
}

// Cluster shows the control plane's replicas.
func (c *Client) Cluster(ctx context.Context) (api.Cluster, error) {
	return get[api.Cluster](ctx, c.caller, "/fleet/cluster")
}

// ClusterSeen is Cluster as the replica that answers sees it, also when nobody leads.
func (c *Client) ClusterSeen(ctx context.Context) (api.Cluster, error) {
	return get[api.Cluster](ctx, c.caller, "/fleet/cluster?stale=true")
}

// Checksum sums up the state of the replica that answers: with one endpoint, of that one.
func (c *Client) Checksum(ctx context.Context) (api.Checksum, error) {
	return get[api.Checksum](ctx, c.caller, "/fleet/cluster/checksum")
}

// RemoveReplica takes a member out of the control plane.
func (c *Client) RemoveReplica(ctx context.Context, name string) error {
	return remove(ctx, c.caller, at("/fleet/cluster/replicas", name))
}

// AddReplica asks for a replica to be let in; the client's token is the operator's or a join token.
func (c *Client) AddReplica(ctx context.Context, req api.ReplicaRequest, key string) (api.Replica, error) {
	return post[api.Replica](ctx, c.caller, "/fleet/cluster/replicas", key, req)
}

// Transfer hands leadership to the named replica, or with an empty name to the one that lacks least.
func (c *Client) Transfer(ctx context.Context, to string) error {
	_, err := c.caller.do(ctx, call{method: http.MethodPost, path: "/fleet/cluster/transfer", body: api.TransferRequest{To: to}, key: newKey("")})
	return err
}

// JoinToken makes a token with which nodes or replicas join. It is shown only in this answer.
func (c *Client) JoinToken(ctx context.Context, req api.JoinTokenRequest) (api.JoinToken, error) {
	return post[api.JoinToken](ctx, c.caller, "/fleet/join-tokens", "", req)
}
