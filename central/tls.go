package central

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// nodeCertTime is how long a certificate is good that central signs for a node. The node asks anew after two thirds.
const nodeCertTime = 14 * 24 * time.Hour

// What a replica that passes a request on tells the leader of the caller. From anywhere else they are not heard.
const (
	headerFrom = "X-Fluxvm-From"
	headerPeer = "X-Fluxvm-Peer"
)

// followCertificates keeps the certificate fresh until the function that it gives is called.
func (r *Replica) followCertificates(ctx context.Context) (stop func()) {
	if r.cfg.TLS == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var following sync.WaitGroup
	following.Go(func() { r.cfg.TLS.Run(ctx) })
	return func() {
		cancel()
		following.Wait()
	}
}

func (r *Replica) certNotAfter() api.Time {
	if r.cfg.TLS == nil {
		return 0
	}
	return api.TimeOf(r.cfg.TLS.NotAfter())
}

// apiListener is where clients and nodes connect.
func (r *Replica) apiListener() net.Listener {
	if r.cfg.TLS == nil {
		return r.cfg.Listener
	}
	return tls.NewListener(r.cfg.Listener, r.cfg.TLS.Server(r.cfg.RequireClientCert, nil))
}

// clusterPort is how the cluster port is secured: whoever speaks on it, at either end, is a replica and shows it. All but
// one question is for members: see onlyMembers.
func (r *Replica) clusterPort() consensus.MuxConfig {
	conf := consensus.MuxConfig{Listener: r.cfg.Cluster, Advertise: r.cfg.ClusterAddr, Logger: r.logger.Named("cluster")}
	if r.cfg.TLS != nil {
		conf.TLS = r.cfg.TLS.Server(true, acceptReplica)
		conf.Member = r.stillMember
		conf.DialTLS = func(addr string) *tls.Config {
			return r.cfg.TLS.Client("", func(peer certs.Identity) error { return r.acceptMemberAt(addr, peer) })
		}
	}
	return conf
}

func acceptReplica(peer certs.Identity) error {
	if peer.Role != certs.Replica {
		return fmt.Errorf("%s is no replica and may not use the cluster port", peer)
	}
	return nil
}

// acceptMember says whether that peer may speak as a replica.
func (r *Replica) acceptMember(peer certs.Identity) error {
	if err := acceptReplica(peer); err != nil {
		return err
	}
	known := r.memberAddrs()
	if len(known) == 0 { // it is about to join, and whoever was admitted to the cluster will tell it who belongs there
		return nil
	}
	if _, ok := known[peer.Name]; ok {
		return nil
	}
	// One that was down while the cluster changed learns from those whom it does know.
	if vouched := r.vouched.Load(); vouched != nil && (*vouched)[peer.Name] {
		return nil
	}
	return fmt.Errorf("%s is no member of this cluster", peer)
}

// acceptMemberAt is acceptMember for the replica that was dialed: at a member's address there is only that member.
func (r *Replica) acceptMemberAt(addr string, peer certs.Identity) error {
	for name, at := range r.memberAddrs() {
		if at == addr && (peer != certs.Identity{Role: certs.Replica, Name: name}) {
			return fmt.Errorf("%s answers at %s, the address of %s", peer, addr, name)
		}
	}
	return r.acceptMember(peer)
}

// memberAddrs are the cluster addresses of the members by name, as far as this replica knows; of the initial set before
// there is a membership; empty in one that has yet to join.
func (r *Replica) memberAddrs() map[string]string {
	out := map[string]string{}
	if members := r.members.Load(); members != nil {
		for _, m := range (*members)() {
			out[m.Name] = m.Addr
		}
	}
	if len(out) == 0 {
		for _, s := range r.cfg.Initial {
			out[s.Name] = s.Addr
		}
	}
	return out
}

// vouch notes whom the members that answered count as members.
func (r *Replica) vouch(known map[string]status) {
	names := map[string]bool{}
	for _, s := range known {
		for _, name := range s.Members {
			names[name] = true
		}
	}
	r.vouched.Store(&names)
}

// stillMember is acceptMember for a connection, which may have been accepted a while ago.
func (r *Replica) stillMember(cs *tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 || r.wall().After(cs.PeerCertificates[0].NotAfter) {
		return errors.New("its certificate has ended")
	}
	return r.acceptMember(certs.PeerOf(cs))
}

// onlyMembers lets only members use the HTTP behind the cluster port, also over a connection that is older than a change.
// A replica that is none may ask what is known of itself, and so learns that it was removed while it was down.
func (r *Replica) onlyMembers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.cfg.TLS != nil && (req.TLS == nil || r.stillMember(req.TLS) != nil && !asksOfItself(req)) {
			http.Error(w, "no member of this cluster", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func asksOfItself(req *http.Request) bool {
	return req.Method == http.MethodGet && req.URL.Path == standingPath && certs.PeerOf(req.TLS) == (certs.Identity{Role: certs.Replica, Name: req.URL.Query().Get("name")})
}

// joinVia carries a new replica's request to be let in.
func (r *Replica) joinVia() *http.Client {
	if r.cfg.JoinVia != nil || r.cfg.TLS == nil {
		return r.cfg.JoinVia
	}
	dial := (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	return &http.Client{Transport: &http.Transport{
		DialContext: dial, DialTLSContext: r.cfg.TLS.Dial(dial, true, func(_ string, peer certs.Identity) error { return certs.AcceptFleet(peer) }), IdleConnTimeout: 30 * time.Second,
	}}
}

// origin is where a request came from, and whose certificate it came with. What a request says of that itself is
// believed when another replica passed it on.
func origin(req *http.Request, forwarded bool) (from string, peer certs.Identity) {
	if forwarded {
		from = req.Header.Get(headerFrom)
		peer, _ = certs.Parse(req.Header.Get(headerPeer))
		return from, peer
	}
	req.Header.Del(headerFrom)
	req.Header.Del(headerPeer)
	from = req.RemoteAddr
	if host, _, err := net.SplitHostPort(from); err == nil {
		from = host
	}
	return from, certs.PeerOf(req.TLS)
}

// introduce tells the leader who asks.
func (q *request) introduce(header http.Header) {
	header.Set(headerFrom, q.from)
	header.Del(headerPeer)
	if q.peer.Role != "" {
		header.Set(headerPeer, q.peer.String())
	}
}

// peerMay keeps the certificates of hosts and replicas to what those have to say here.
func (q *request) peerMay(who access) error {
	if q.peer.Role == certs.Node && who != forNodes || q.peer.Role == certs.Replica && who != forReplicas {
		return api.Errorf(api.CodeForbidden, "the certificate of %s may not do this; use one of role api, or none", q.peer)
	}
	return nil
}

// ofNode refuses a report that was sent with another node's certificate, or gives an address that must not be dialed.
func (q *request) ofNode(report *api.Register) error {
	if q.peer.Role == certs.Node && q.peer.Name != report.Name {
		return api.Errorf(api.CodeForbidden, "%s may not report as node %s; give the daemon the certificate of its own --name", q.peer, report.Name)
	}
	if known := q.r.state.View().Node(report.Name); known != nil && known.URL == report.URL {
		return nil
	}
	return q.r.mayDial(report.URL, q.from)
}

// ofReplica refuses a new replica that does not show its own certificate where replicas have one.
func (q *request) ofReplica(name string) error {
	if q.r.cfg.TLS == nil || q.caller.role == roleOperator || q.peer == (certs.Identity{Role: certs.Replica, Name: name}) {
		return nil
	}
	return api.Errorf(api.CodeForbidden, "the replicas of this cluster have certificates: make one with fluxctl tls cert replica %s, and join with --tls-cert, --tls-key and --tls-ca", name)
}

// nodeCertificate signs what a node asks for, once it is known who it is. Its name is all that the certificate says: an
// address is something that a node could lie about.
func (q *request) nodeCertificate(report *api.Register) (string, error) {
	if report.CertificateRequest == "" || q.r.cfg.NodeCA == nil {
		return "", nil
	}
	key, err := certs.RequestedKey(report.CertificateRequest)
	if err != nil {
		return "", api.Invalid("certificate_request", "%v", err)
	}
	pair, err := q.r.cfg.NodeCA.Sign(certs.Identity{Role: certs.Node, Name: report.Name}, nil, key, q.r.wall(), nodeCertTime)
	if err != nil {
		return "", api.Invalid("certificate_request", "no certificate can be signed for node %s: %v", report.Name, err)
	}
	q.r.logger.Info("signed a node's certificate", "node", report.Name, "from", q.from, "not_after", pair.NotAfter)
	return string(pair.CertPEM), nil
}

// acceptNodeAt says whether that peer is a node that is registered at that address.
func (r *Replica) acceptNodeAt(addr string, peer certs.Identity) error {
	if peer.Role != certs.Node {
		return fmt.Errorf("%s answers at a node's address", peer)
	}
	names := nodesAt(r.state.View(), addr)
	if !slices.Contains(names, peer.Name) {
		return fmt.Errorf("%s answers at %s, the address of %v", peer, addr, names)
	}
	return nil
}

func nodesAt(view fsm.View, addr string) (names []string) {
	for n := range view.Nodes("") {
		if hostPort(n.URL) == addr {
			names = append(names, n.Name)
		}
	}
	return names
}
