package api

import "encoding/json"

// Cluster is the control plane (GET /fleet/cluster).
type Cluster struct {
	ID       string    `json:"id"`
	Epoch    uint64    `json:"epoch"` // raised by a restore
	Leader   string    `json:"leader"`
	Term     uint64    `json:"term"`
	Index    uint64    `json:"index"`
	Replicas []Replica `json:"replicas"`
}

// Replica is one member. Role is leader, voter or nonvoter.
type Replica struct {
	Name          string `json:"name"`
	ClusterAddr   string `json:"cluster_addr"`
	URL           string `json:"url"`
	Role          string `json:"role"`
	Healthy       bool   `json:"healthy"`
	AppliedIndex  uint64 `json:"applied_index"`
	LastContactMS int64  `json:"last_contact_ms"`
	Version       string `json:"version"`

	CertificateExpiresAt Time `json:"certificate_expires_at,omitzero"` // absent without TLS
	DiskLow              bool `json:"disk_low,omitempty"`              // it takes in nothing new
}

// Ready is the answer of GET /readyz.
type Ready struct {
	Status string `json:"status"`
	Leader string `json:"leader"`

	CertificateExpiresAt Time `json:"certificate_expires_at,omitzero"` // of the replica that was asked; absent without TLS
}

// Checksum sums up one replica's state: at equal index it is equal on every replica.
type Checksum struct {
	Name   string `json:"name"`
	Index  uint64 `json:"index"`
	SHA256 string `json:"sha256"`
}

// ReplicaRequest is the body of POST /fleet/cluster/replicas. ClusterAddr is where the other replicas reach it.
type ReplicaRequest struct {
	Name        string `json:"name"`
	ClusterAddr string `json:"cluster_addr"`
}

// Check refuses what no replica can be.
func (r *ReplicaRequest) Check() error {
	if err := CheckNodeName("name", r.Name); err != nil {
		return err
	}
	return checkText("cluster_addr", r.ClusterAddr, 300, true)
}

// TransferRequest is the body of POST /fleet/cluster/transfer. Without To the replica that lacks least leads next.
type TransferRequest struct {
	To string `json:"to,omitempty"`
}

// Activity is one entry of who did what, with what result. Node events (GET /v1/events) have the same shape.
type Activity struct {
	ID      string         `json:"id"`
	At      Time           `json:"at"`
	Actor   string         `json:"actor"`
	Action  string         `json:"action"`
	Target  string         `json:"target"`
	Outcome string         `json:"outcome"`
	Detail  map[string]any `json:"detail"`
}

// Event is the data of one server-sent event of GET /fleet/events. Action is created, changed or deleted.
type Event struct {
	Action string          `json:"action"`
	Object json.RawMessage `json:"object"`
}
