package cli

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// keyring is whose keys a command is about: a tenant's, or the operator's.
type keyring struct {
	tenant   string
	operator bool
}

func operatorFlag(cmd *cobra.Command, operator *bool) {
	cmd.Flags().BoolVar(operator, "operator", false, "the operator's keys instead of a tenant's")
}

// take reads the tenant from the arguments, unless --operator stands for it, and gives the arguments that are left.
func (k *keyring) take(cmd *cobra.Command, args []string) ([]string, error) {
	if k.operator {
		return args, nil
	}
	if len(args) == 0 {
		return nil, usagef("say whose keys: %s TENANT, or --operator", cmd.CommandPath())
	}
	k.tenant = args[0]
	return args[1:], nil
}

func (k *keyring) owner() string {
	if k.operator {
		return "the operator"
	}
	return k.tenant
}

// words is how the keyring is typed.
func (k *keyring) words() string {
	if k.operator {
		return "--operator"
	}
	return k.tenant
}

func (k *keyring) list(ctx context.Context, c *client.Client) iter.Seq2[api.Key, error] {
	if k.operator {
		return c.OperatorKeys(ctx)
	}
	return c.TenantKeys(ctx, k.tenant)
}

func (k *keyring) create(ctx context.Context, c *client.Client, req api.KeyRequest) (api.Key, error) {
	if k.operator {
		return c.CreateOperatorKey(ctx, req, "")
	}
	return c.CreateTenantKey(ctx, k.tenant, req, "")
}

func (k *keyring) revoke(ctx context.Context, c *client.Client, id string) error {
	if k.operator {
		return c.RevokeOperatorKey(ctx, id)
	}
	return c.RevokeTenantKey(ctx, k.tenant, id)
}

func (a *app) keys() *cobra.Command {
	var k keyring
	cmd := &cobra.Command{
		Use: "keys TENANT | --operator", Short: "List the API keys of a tenant, or the operator's",
		Example: "  fluxctl fleet keys acme\n  fluxctl fleet keys --operator",
		Args:    takes("[TENANT]"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
	}
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		rest, err := k.take(cmd, args)
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return usagef("give TENANT or --operator, not both")
		}
		keys, err := list(ctx, a, "the list of keys", func(ctx context.Context) iter.Seq2[api.Key, error] { return k.list(ctx, c) })
		if err != nil {
			return err
		}
		if ok, err := a.json(api.List[api.Key]{Items: keys}); ok {
			return err
		}
		if len(keys) == 0 {
			a.note("No keys. Make one: fluxctl fleet key-create %s > FILE", k.words())
			return nil
		}
		g := a.grid("ID", "ROLE", "AGE", "EXPIRES", "LAST-USED")
		now := a.env.Now()
		for _, key := range keys {
			expires, used := "never", "never"
			if !key.ExpiresAt.IsZero() {
				expires = "in " + until(key.ExpiresAt, now)
			}
			if !key.LastUsedAt.IsZero() {
				used = since(key.LastUsedAt, now) + " ago"
			}
			g.row(key.ID, key.Role, since(key.CreatedAt, now), expires, used)
		}
		g.print()
		return nil
	})
	operatorFlag(cmd, &k.operator)
	return cmd
}

func (a *app) createKey() *cobra.Command {
	var k keyring
	var req api.KeyRequest
	var expires durationValue
	cmd := &cobra.Command{
		Use: "key-create TENANT | --operator", Short: "Make an API key",
		Long: "Make an API key. Its secret is shown once and kept nowhere. Only the secret goes to standard output, so that it can\nbe sent into a file.",
		Example: `  fluxctl fleet key-create acme > acme.key
  fluxctl fleet key-create acme --role viewer --expires 30d > acme-viewer.key
  fluxctl fleet key-create --operator --role viewer > viewer.key`,
		Args: takes("[TENANT]"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
	}
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		rest, err := k.take(cmd, args)
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return usagef("give TENANT or --operator, not both")
		}
		if req.Role == "" {
			req.Role = api.RoleTenant
			if k.operator {
				req.Role = api.RoleOperator
			}
		}
		req.ExpiresInSecs = expires.seconds()
		if err := req.Check(k.operator); err != nil {
			return err
		}
		key, err := during(ctx, a, "the key", func(ctx context.Context) (api.Key, error) { return k.create(ctx, c, req) })
		if err != nil {
			return err
		}
		if key.Secret == "" {
			return fmt.Errorf("key %s was made, but its secret was lost with the answer; end it and make another: fluxctl fleet key-revoke %s %s", key.ID, k.words(), key.ID)
		}
		if ok, err := a.json(key); ok {
			return err
		}
		if _, err := fmt.Fprintln(a.env.Out, key.Secret); err != nil {
			return err
		}
		until := "does not expire"
		if !key.ExpiresAt.IsZero() {
			until = "expires " + a.moment(key.ExpiresAt)
		}
		a.note("Key %s of %s, role %s, %s. Its secret is shown only now: keep it in a file that only its owner may read,", key.ID, k.owner(), key.Role, until)
		a.note("and name that file in FLUXVM_TOKEN_FILE. To end it: fluxctl fleet key-revoke %s %s", k.words(), key.ID)
		return nil
	})
	flags := cmd.Flags()
	flags.SortFlags = false
	operatorFlag(cmd, &k.operator)
	flags.StringVar(&req.Role, "role", "", "`ROLE` that it has: tenant or viewer; with --operator operator or viewer (default the first)")
	flags.Var(&expires, "expires", "how long it is good for, such as 30d (default it does not expire)")
	fixed(cmd, "role", api.RoleTenant, api.RoleViewer, api.RoleOperator)
	return cmd
}

func (a *app) revokeKey() *cobra.Command {
	var k keyring
	cmd := &cobra.Command{
		Use: "key-revoke TENANT ID… | --operator ID…", Short: "End API keys at once",
		Example: "  fluxctl fleet key-revoke acme k-2f9c\n  fluxctl fleet key-revoke --operator k-77ab",
		Args:    takes("TENANT or --operator", "[ID]…"),
	}
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		ids, err := k.take(cmd, args)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return usagef("say which key: %s %s ID; fluxctl fleet keys %s lists them", cmd.CommandPath(), k.words(), k.words())
		}
		return a.removeEach(ctx, ids, func(ctx context.Context, id string) (string, error) {
			return "key " + id + " of " + k.owner() + ": it is refused from now on", k.revoke(ctx, c, id)
		})
	})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if !k.operator && len(args) == 0 {
			return a.completeArgs(a.tenantNames, 1)(cmd, args, typed)
		}
		rest, err := k.take(cmd, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeArgs(func(ctx context.Context) []string { return a.keyIDs(ctx, &k) }, 100)(cmd, rest, typed)
	}
	operatorFlag(cmd, &k.operator)
	return cmd
}
