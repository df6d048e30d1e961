package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// app is one command line being carried out.
type app struct {
	env      Env
	paint    paint // for Out
	errPaint paint // for Err
	out      output

	inTerminal, outTerminal, errTerminal bool

	output      string
	contextName string
	verbose     bool

	caFile, certFile, keyFile string // of --ca, --cert and --key
}

func newApp(env Env) *app {
	env = env.filled()
	a := &app{env: env, inTerminal: env.IsTerminal(env.In), outTerminal: env.IsTerminal(env.Out), errTerminal: env.IsTerminal(env.Err)}
	colours := env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb"
	a.paint, a.errPaint = paint{colours && a.outTerminal}, paint{colours && a.errTerminal}
	a.out.to = env.Out
	a.env.Out = &a.out
	return a
}

func (a *app) root() *cobra.Command {
	root := a.group("fluxctl", "One VM API over many hosts",
		`FluxVM fleet on the command line.

fleet and cluster verbs speak to the fleet: FLUXVM_FLEET_URL names its replicas, or a context does
(fluxctl context add). vm, sandbox, image, balloon and memory verbs speak to one host: FLUXVM_API. FLUXVM_TOKEN
or FLUXVM_TOKEN_FILE holds the token, FLUXVM_CA_CERT the certificate to trust, FLUXCTL_OUTPUT the default
of --output.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 unavailable.`,
		`  fluxctl fleet launch build-42 --image macos-27-xcode --ttl 2h
  fluxctl fleet pools
  fluxctl cluster status`,
		a.fleetCommand(), a.clusterCommand(), a.hostCommand(), a.balloonCommand(), a.memoryCommand(), a.sandboxCommand(), a.imageCommand(), a.contextCommand(), a.tlsCommand(), a.completionCommand(), a.versionCommand())
	root.SetIn(a.env.In)
	root.SetOut(a.env.Out)
	root.SetErr(a.env.Err)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.chooseOutput(cmd) }
	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVarP(&a.output, "output", "o", "", "`FORMAT`: table, wide or json (default table, or FLUXCTL_OUTPUT)")
	flags.StringVar(&a.contextName, "context", "", "use the context of this `NAME` instead of the current one")
	flags.StringVar(&a.caFile, "ca", "", "certificate `FILE` of the authority to trust (default FLUXVM_CA_CERT, or the context's)")
	flags.StringVar(&a.certFile, "cert", "", "certificate `FILE` to show, with --key (default FLUXVM_CLIENT_CERT)")
	flags.StringVar(&a.keyFile, "key", "", "key `FILE` of --cert (default FLUXVM_CLIENT_KEY)")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "show request ids with errors")
	fixed(root, "output", outputTable, outputWide, outputJSON)
	a.completeFlag(root, "context", a.contextNames)
	if a.env.More != nil {
		root.AddCommand(a.env.More()...)
	}
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short, c.Example = "Show the help of a command", "  fluxctl help fleet launch"
		}
	}
	return root
}

func (a *app) chooseOutput(cmd *cobra.Command) error {
	from := "--output"
	if a.output == "" {
		a.output, from = a.env.Getenv("FLUXCTL_OUTPUT"), "FLUXCTL_OUTPUT"
	}
	if a.output == "" {
		a.output = outputTable
	}
	if a.output == outputCSV && cmd.Annotations[outputCSV] != "" {
		return nil
	}
	if !slices.Contains([]string{outputTable, outputWide, outputJSON}, a.output) {
		return usagef("%s %q must be table, wide or json", from, a.output)
	}
	return nil
}

// group is a command that only holds others. A name it does not know gets the nearest one as a suggestion.
func (a *app) group(use, short, long, example string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
		ValidArgsFunction:          cobra.NoFileCompletions,
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("%s has no command %q; ", cmd.CommandPath(), args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return usagef("%sdid you mean %s?", text, strings.Join(near, " or "))
		}
		return usagef("%ssee %s --help", text, cmd.CommandPath())
	}
	c.AddCommand(subs...)
	return c
}

// takes checks how many arguments a command gets; the last name may end in … for more of them, and a name in
// brackets may be left out.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		least, most := 0, len(names)
		for _, n := range names {
			if !strings.HasPrefix(n, "[") {
				least++
			}
			if strings.HasSuffix(n, "…") {
				most = len(args)
			}
		}
		switch {
		case len(args) < least:
			return usagef("%s needs %s; see %s --help", cmd.CommandPath(), names[len(args)], cmd.CommandPath())
		case len(args) > most:
			return usagef("%s has no use for %q; see %s --help", cmd.CommandPath(), args[most], cmd.CommandPath())
		}
		return nil
	}
}

// flagError turns what the flag parser refused into one line about the command line.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var usage *usageError
	switch {
	case errors.As(err, &usage) && errors.As(err, &value):
		return usagef("--%s: %s", value.GetFlag().Name, usage.text)
	case errors.As(err, &value):
		return usagef("--%s: %q is not a %s", value.GetFlag().Name, value.GetValue(), typeWords(value.GetFlag().Value.Type()))
	case errors.As(err, &unknown):
		return usagef("%s has no flag %s; see %s --help", cmd.CommandPath(), flagSpelling(unknown), cmd.CommandPath())
	}
	return usagef("%s; see %s --help", err, cmd.CommandPath())
}

func flagSpelling(e *pflag.NotExistError) string {
	if e.GetSpecifiedShortnames() != "" {
		return "-" + e.GetSpecifiedName()
	}
	return "--" + e.GetSpecifiedName()
}

func typeWords(kind string) string {
	if kind == "int" || kind == "int64" {
		return "whole number"
	}
	return kind
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show this program's version", Args: takes(),
		Example: "  fluxctl version", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if ok, err := a.json(map[string]string{"version": a.env.Version}); ok {
				return err
			}
			_, err := fmt.Fprintln(a.env.Out, "fluxctl "+a.env.Version)
			return err
		},
	}
}
