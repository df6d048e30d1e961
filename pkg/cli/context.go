package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// savedContext is one fleet or host that a person works with.
type savedContext struct {
	FleetURL  string `toml:"fleet_url,omitempty" json:"fleet_url,omitempty"`
	HostURL   string `toml:"api,omitempty" json:"api,omitempty"`
	Token     string `toml:"token,omitempty" json:"-"` // a secret: never shown
	TokenFile string `toml:"token_file,omitempty" json:"token_file,omitempty"`
	CACert    string `toml:"ca_cert,omitempty" json:"ca_cert,omitempty"`
}

// contextFile is contexts.toml.
type contextFile struct {
	Current string                  `toml:"current,omitempty" json:"current"`
	Context map[string]savedContext `toml:"context" json:"contexts"`
}

func (a *app) contextPath() (string, error) {
	if dir := a.env.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "fluxvm", "contexts.toml"), nil
	}
	home := a.env.Getenv("HOME")
	if home == "" {
		return "", usagef("there is no HOME to keep contexts in; set HOME or XDG_CONFIG_HOME")
	}
	return filepath.Join(home, ".config", "fluxvm", "contexts.toml"), nil
}

// readContexts gives the saved contexts, none where there is no file.
func (a *app) readContexts() (contextFile, error) {
	f := contextFile{Context: map[string]savedContext{}}
	path, err := a.contextPath()
	if err != nil {
		return f, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("reading contexts: %w", err)
	}
	meta, err := toml.Decode(string(raw), &f)
	if err != nil {
		return f, usagef("%s: %v", path, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return f, usagef("%s has the unknown key %s; check its spelling", path, unknown[0])
	}
	info, err := os.Stat(path)
	if err != nil {
		return f, fmt.Errorf("reading contexts: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 && holdsToken(f) {
		return f, usagef("%s holds a token and others may read it; run: chmod 600 %s", path, path)
	}
	if f.Context == nil {
		f.Context = map[string]savedContext{}
	}
	return f, nil
}

func holdsToken(f contextFile) bool {
	for _, c := range f.Context {
		if c.Token != "" {
			return true
		}
	}
	return false
}

// writeContexts replaces the file in one step, readable by its owner only.
func (a *app) writeContexts(f contextFile) error {
	path, err := a.contextPath()
	if err != nil {
		return err
	}
	var raw bytes.Buffer
	if err := toml.NewEncoder(&raw).Encode(f); err != nil {
		return fmt.Errorf("encoding contexts: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	temp, err := os.CreateTemp(dir, "contexts-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("writing contexts: %w", err)
	}
	_, err = temp.Write(raw.Bytes())
	if err = cmp.Or(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing contexts: %w", err), os.Remove(temp.Name()))
	}
	return nil
}

// chosenContext is the one named by --context, else the current one, else an empty one.
func (a *app) chosenContext() (savedContext, error) {
	f, err := a.readContexts()
	if a.contextName == "" {
		if _, pathErr := a.contextPath(); pathErr != nil {
			return savedContext{}, nil // without a home there are no contexts, and none was asked for
		}
	}
	if err != nil {
		return savedContext{}, err
	}
	name := cmp.Or(a.contextName, f.Current)
	if name == "" {
		return savedContext{}, nil
	}
	return f.named(name)
}

func (f contextFile) named(name string) (savedContext, error) {
	c, ok := f.Context[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(f.Context)), ", ")
		return c, usagef("there is no context %q; known: %s", name, cmp.Or(known, "none, add one with fluxctl context add"))
	}
	return c, nil
}

func (a *app) contextCommand() *cobra.Command {
	return a.group("context", "Keep addresses and tokens under a name",
		"Contexts are kept in ~/.config/fluxvm/contexts.toml, which only you may read. FLUXVM_FLEET_URL and FLUXVM_API\nwin over the current context; --context wins over both.",
		`  fluxctl context add lab --fleet-url https://c1:7799,https://c2:7799,https://c3:7799 --token-file ~/lab.token
  fluxctl context use lab
  fluxctl context list`,
		a.contextAdd(), a.contextUse(), a.contextList())
}

func (a *app) contextAdd() *cobra.Command {
	var c savedContext
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Save a context; the first one becomes the current one",
		Example: `  fluxctl context add lab --fleet-url https://c1:7799,https://c2:7799 --token-file ~/lab.token --ca-cert ~/lab-ca.pem
  fluxctl context add lab --fleet-url http://127.0.0.1:7799 --token - < token`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			name := args[0]
			if err := api.CheckName("a context's name", name, api.MaxVMName); err != nil {
				return err
			}
			if c.FleetURL == "" && c.HostURL == "" {
				return usagef("say where the fleet is: --fleet-url URL[,URL], or --api URL for one host")
			}
			if c.Token != "" && c.TokenFile != "" {
				return usagef("give --token or --token-file, not both")
			}
			if _, err := client.New(client.Config{Endpoints: client.SplitEndpoints(c.FleetURL)}); err != nil {
				return usagef("--fleet-url: %v", err)
			}
			if _, err := client.NewHost(client.Config{Endpoints: client.SplitEndpoints(c.HostURL)}); err != nil {
				return usagef("--api: %v", err)
			}
			if c.Token == "-" {
				raw, err := io.ReadAll(io.LimitReader(a.env.In, 64<<10))
				if err != nil {
					return fmt.Errorf("reading the token: %w", err)
				}
				if c.Token = strings.TrimSpace(string(raw)); c.Token == "" {
					return usagef("--token - reads the token from standard input, which is empty")
				}
			}
			for _, path := range []*string{&c.TokenFile, &c.CACert} {
				if *path == "" {
					continue
				}
				full, err := filepath.Abs(*path) // a context is used from any directory
				if err != nil {
					return fmt.Errorf("finding %s: %w", *path, err)
				}
				if _, err := os.Stat(full); err != nil {
					return usagef("%v; give a file that is there", err)
				}
				*path = full
			}
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			f.Context[name] = c
			f.Current = cmp.Or(f.Current, name)
			if err := a.writeContexts(f); err != nil {
				return err
			}
			if ok, err := a.json(f); ok {
				return err
			}
			next := "It is the current one."
			if f.Current != name {
				next = "Use it: fluxctl context use " + name
			}
			a.done("Saved context "+name+": "+cmp.Or(c.FleetURL, c.HostURL), next)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.FleetURL, "fleet-url", "", "`URLs` of the replicas, separated by commas")
	flags.StringVar(&c.HostURL, "api", "", "`URL` of one host's API, for the vm verbs")
	flags.StringVar(&c.TokenFile, "token-file", "", "`FILE` that holds the token; it is read at each use")
	flags.StringVar(&c.Token, "token", "", "the `TOKEN` itself, or - to read it from standard input")
	flags.StringVar(&c.CACert, "ca-cert", "", "PEM `FILE` of the certificate authority to trust")
	return cmd
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Example: "  fluxctl context use lab",
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.contextNames, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			c, err := f.named(args[0])
			if err != nil {
				return err
			}
			f.Current = args[0]
			if err := a.writeContexts(f); err != nil {
				return err
			}
			if ok, err := a.json(f); ok {
				return err
			}
			a.done("Using context " + args[0] + ": " + cmp.Or(c.FleetURL, c.HostURL))
			if a.env.Getenv(client.EnvFleetURL) != "" {
				a.note("FLUXVM_FLEET_URL is set and wins over it.")
			}
			return nil
		},
	}
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the saved contexts", Example: "  fluxctl context list",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			if ok, err := a.json(f); ok {
				return err
			}
			if len(f.Context) == 0 {
				a.note("No contexts yet. Add one: fluxctl context add NAME --fleet-url URL")
				return nil
			}
			g := a.grid("NAME", "CURRENT", "FLEET", "TOKEN").wider("API", "CA-CERT")
			for _, name := range slices.Sorted(maps.Keys(f.Context)) {
				c := f.Context[name]
				current, token := "", c.TokenFile
				if name == f.Current {
					current = "yes"
				}
				if c.Token != "" {
					token = "(kept here)"
				}
				g.row(name, current, c.FleetURL, token, c.HostURL, c.CACert)
			}
			g.print()
			return nil
		},
	}
}
