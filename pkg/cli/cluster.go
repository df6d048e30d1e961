package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) clusterCommand() *cobra.Command {
	return a.group("cluster", "The control plane: its replicas and who may join", "",
		"  fluxctl cluster status\n  fluxctl cluster join-token --pattern 'studio-*' > join.token",
		a.clusterStatus(), a.joinToken(), a.removeReplica(), a.transfer(), a.backup(), a.restore(), a.checksum())
}

func (a *app) clusterStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the replicas, the leader and how far each has come",
		Long: "Show the replicas, the leader and how far each has come. While nobody leads it shows what one replica that answers\n" +
			"sees of the others, and ends with 5.",
		Example: "  fluxctl cluster status\n  fluxctl cluster status -o json",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			var leaderless error
			k, err := during(ctx, a, "the cluster's state", func(ctx context.Context) (k api.Cluster, err error) {
				k, leaderless, err = statusOf(ctx, c)
				return k, err
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(k); ok {
				return errors.Join(err, leaderless)
			}
			a.showCluster(k)
			return leaderless
		}),
	}
}

// leaderWait is how long a leader is waited for before the replicas are shown as they are: an election or two.
const leaderWait = 5 * time.Second

// statusOf asks the leader, and where there is none whoever answers; leaderless then says so.
func statusOf(ctx context.Context, c *client.Client) (k api.Cluster, leaderless, err error) {
	wait, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	if k, err = c.Cluster(wait); err == nil || ctx.Err() != nil || wait.Err() == nil && !isCode(err, api.CodeNotLeader) && !isCode(err, api.CodeUnavailable) {
		return k, nil, err
	}
	seen, failed := c.ClusterSeen(ctx)
	if failed != nil {
		return k, nil, failed
	}
	return seen, api.Errorf(api.CodeNotLeader, "this is what one replica sees; no leader answers. While too few replicas run, start the others; docs/operations.md tells what to do when they are lost"), nil
}

func (a *app) showCluster(k api.Cluster) {
	voters, healthy, leader := 0, 0, "no leader"
	for _, r := range k.Replicas {
		if r.Role == "nonvoter" {
			continue
		}
		voters++
		if r.Healthy {
			healthy++
		}
	}
	if k.Leader != "" {
		leader = k.Leader + " leads"
	}
	spare := healthy - (voters/2 + 1) // voters that may still fail
	sentence := fmt.Sprintf("%s, %d of %s healthy", leader, healthy, count(voters, "replica"))
	switch {
	case spare < 0:
		sentence += "; too few to change anything: start the others"
	case spare == 0 && voters > 1:
		sentence += "; the next loss stops all changes"
	case spare > 0:
		sentence += fmt.Sprintf("; %d more may fail", spare)
	}
	if healthy < voters || k.Leader == "" {
		a.trouble(sentence)
	} else {
		a.done(sentence)
	}
	a.details(fmt.Sprintf("term %d, index %d, epoch %d, cluster %s", k.Term, k.Index, k.Epoch, k.ID))
	g := a.grid("NAME", "ROLE", "HEALTH", "BEHIND", "LAST-CONTACT", "VERSION").wider("CLUSTER-ADDR", "URL", "APPLIED", "CERTIFICATE-UNTIL")
	for _, r := range k.Replicas {
		health := "healthy"
		switch {
		case !r.Healthy:
			health = "unhealthy"
		case r.DiskLow:
			health = "disk-low"
		}
		behind := "-"
		if r.AppliedIndex > 0 || r.Healthy {
			behind = strconv.FormatUint(k.Index-min(k.Index, r.AppliedIndex), 10)
		}
		contact := strconv.FormatInt(r.LastContactMS, 10) + "ms"
		if r.Role == "leader" || r.LastContactMS < 0 {
			contact = ""
		}
		g.row(r.Name, r.Role, health, behind, contact, r.Version, r.ClusterAddr, r.URL, strconv.FormatUint(r.AppliedIndex, 10), a.moment(r.CertificateExpiresAt))
	}
	g.print()
	a.warnOfCertificates(k)
	for _, r := range k.Replicas {
		if r.DiskLow {
			a.note("The disk of %s is nearly full: it takes in nothing new and hands leadership over; make room in its data directory.", r.Name)
		}
	}
}

// warnOfCertificates says which replicas' certificates end within 30 days.
func (a *app) warnOfCertificates(k api.Cluster) {
	soon := api.TimeOf(a.env.Now().AddDate(0, 0, 30))
	for _, r := range k.Replicas {
		if !r.CertificateExpiresAt.IsZero() && r.CertificateExpiresAt < soon {
			a.note("The certificate of %s ends %s; make another one with fluxctl tls cert replica %s and replace its files.", r.Name, a.moment(r.CertificateExpiresAt), r.Name)
		}
	}
}

func (a *app) joinToken() *cobra.Command {
	req := api.JoinTokenRequest{}
	var expires durationValue
	cmd := &cobra.Command{
		Use: "join-token", Short: "Make a token that lets nodes or replicas join",
		Long: "Make a token that lets nodes or replicas join. It is shown once. Only the token goes to standard output, so that\nit can be sent into a file.",
		Example: `  fluxctl cluster join-token > join.token
  fluxctl cluster join-token --pattern 'studio-*' --uses 3 --expires 1d > join.token
  fluxctl cluster join-token --kind replica --pattern central-4 > join.token`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			req.ExpiresInSecs = expires.seconds()
			if err := req.Check(); err != nil {
				return err
			}
			token, err := during(ctx, a, "the token", func(ctx context.Context) (api.JoinToken, error) { return c.JoinToken(ctx, req) })
			if err != nil {
				return err
			}
			if ok, err := a.json(token); ok {
				return err
			}
			if _, err := fmt.Fprintln(a.env.Out, token.Token); err != nil {
				return err
			}
			named := ""
			if token.NamePattern != "" && token.NamePattern != "*" {
				named = " named " + token.NamePattern
			}
			a.note("Lets %s%s join, until %s. Keep it in a file that only you may read, then:", count(max(1, token.Uses), token.Kind), named, a.moment(token.ExpiresAt))
			where := strings.Join(c.Endpoints(), ",")
			command, secured := "node --central", " --tls-ca ca.pem"
			if req.Kind != "node" {
				command, secured = "central --join", " --tls-cert NAME.pem --tls-key NAME-key.pem --tls-ca ca.pem"
			}
			if !strings.HasPrefix(where, "https://") {
				secured = ""
			}
			a.note("  fluxvm-agent %s %s --join-token-file FILE%s", command, where, secured)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.Kind, "kind", "node", "`KIND` of what may join: node or replica")
	flags.StringVar(&req.NamePattern, "pattern", "", "`PATTERN` of names that may join, such as 'studio-*' (default any)")
	flags.IntVar(&req.Uses, "uses", 0, "`NUMBER` of those that may join with it (default 1)")
	flags.Var(&expires, "expires", "how long it is good for, such as 1d (default 1h)")
	fixed(cmd, "kind", "node", "replica")
	return cmd
}
