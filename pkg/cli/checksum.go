package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// checksumWait is how long replicas are asked until they are all seen at one index: they pass it at slightly different times.
const checksumWait = 20 * time.Second

func (a *app) checksum() *cobra.Command {
	return &cobra.Command{
		Use: "checksum", Short: "Compare the states of all replicas",
		Long: "Compare the states of all replicas: each sums up its own, and at one index all sums are equal. Two that differ show\n" +
			"damage or a fault; the command then ends with 1. It asks the replicas that FLUXVM_FLEET_URL or the context names,\n" +
			"which must be all.",
		Example: "  fluxctl cluster checksum\n  fluxctl cluster checksum -o json",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			each, err := a.eachReplica(c)
			if err != nil {
				return err
			}
			var verdict error
			sums, err := during(ctx, a, "the replicas' sums", func(ctx context.Context) (sums []api.Checksum, err error) {
				k, _, err := statusOf(ctx, c)
				if err != nil {
					return nil, err
				}
				sums, verdict = compareSums(ctx, each, k.Replicas)
				return sums, nil
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(sums); ok {
				return errors.Join(err, verdict)
			}
			if verdict == nil {
				a.done(fmt.Sprintf("%s one state", count(len(sums), "replica")+map[bool]string{true: " has", false: " have"}[len(sums) == 1]), fmt.Sprintf("index %d, sha256 %s", sums[0].Index, sums[0].SHA256))
				return nil
			}
			g := a.grid("NAME", "INDEX", "SHA256")
			for _, s := range sums {
				g.row(s.Name, strconv.FormatUint(s.Index, 10), s.SHA256)
			}
			g.print()
			return verdict
		}),
	}
}

// eachReplica gives a client for each address, and to no other: a token goes only where its owner sends it.
func (a *app) eachReplica(c *client.Client) (each []*client.Client, err error) {
	cfg, err := a.clientConfig(client.EnvFleetURL, func(c savedContext) string { return c.FleetURL })
	if err != nil {
		return nil, err
	}
	cfg.Timeout = 5 * time.Second
	for _, url := range c.Endpoints() {
		cfg.Endpoints = []string{url}
		one, err := client.New(cfg)
		if err != nil {
			return nil, usagef("%v", err)
		}
		each = append(each, one)
	}
	return each, nil
}

// compareSums asks until every replica was seen at one index, or two differ at one. It gives the sums at that index, else
// the last ones, and what is wrong.
func compareSums(ctx context.Context, each []*client.Client, replicas []api.Replica) (sums []api.Checksum, wrong error) {
	seen := map[uint64]map[string]api.Checksum{}
	over := time.Now().Add(checksumWait)
	for {
		now, failed := askSums(ctx, each)
		for _, s := range now {
			at := seen[s.Index]
			if at == nil {
				at = map[string]api.Checksum{}
				seen[s.Index] = at
			}
			at[s.Name] = s
			together := sorted(at)
			for _, other := range together {
				if other.SHA256 != s.SHA256 {
					return together, fmt.Errorf("the states of %s and %s differ at index %d: find out which one is damaged (fluxvm-agent central check on a stopped one, or a third replica), remove it and let it join anew", s.Name, other.Name, s.Index)
				}
			}
			if len(together) == len(replicas) {
				return together, nil
			}
		}
		unnamed := failed == nil && len(now) < len(replicas) // waiting brings no other answers
		if unnamed || time.Now().After(over) || ctx.Err() != nil {
			return now, errors.Join(failed, fmt.Errorf("not every replica was seen at one index: %s; name the URLs of all replicas in FLUXVM_FLEET_URL, see that all run, or try again while less happens", lacking(now, replicas)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func askSums(ctx context.Context, each []*client.Client) (sums []api.Checksum, failed error) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	at := map[string]api.Checksum{}
	for _, c := range each {
		asked.Go(func() {
			s, err := c.Checksum(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			at[s.Name] = s
		})
	}
	asked.Wait()
	return sorted(at), failed
}

func sorted(at map[string]api.Checksum) (out []api.Checksum) {
	for _, s := range at {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b api.Checksum) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// lacking says which replicas gave no sum, else that all did.
func lacking(sums []api.Checksum, replicas []api.Replica) string {
	var out []string
	for _, r := range replicas {
		if !slices.ContainsFunc(sums, func(s api.Checksum) bool { return s.Name == r.Name }) {
			out = append(out, r.Name)
		}
	}
	if len(out) == 0 {
		return "each was seen at others"
	}
	return strings.Join(out, ", ") + " gave none"
}
