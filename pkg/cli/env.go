package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// Env is the world a command runs in.
type Env struct {
	In         io.Reader               // nil: nothing to read
	Out        io.Writer               // what was asked for; nil: dropped
	Err        io.Writer               // notes, progress and errors; nil: dropped
	Getenv     func(string) string     // nil: no variable is set
	Now        func() time.Time        // nil: time.Now
	IsTerminal func(stream any) bool   // whether In, Out or Err is one; nil: none is
	Version    string                  // what `fluxctl version` says; empty: dev
	More       func() []*cobra.Command // further commands, such as serve; nil: none
}

func (e Env) filled() Env {
	if e.In == nil {
		e.In = noInput{}
	}
	if e.Out == nil {
		e.Out = io.Discard
	}
	if e.Err == nil {
		e.Err = io.Discard
	}
	if e.Getenv == nil {
		e.Getenv = func(string) string { return "" }
	}
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.IsTerminal == nil {
		e.IsTerminal = func(any) bool { return false }
	}
	if e.Version == "" {
		e.Version = "dev"
	}
	return e
}

type noInput struct{}

func (noInput) Read([]byte) (int, error) { return 0, io.EOF }

// Run carries out one command line (without the program's name) and gives the process's exit code: 0 done,
// 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 unavailable, and a guest command's own code after exec.
// It returns once everything that it started has ended.
func Run(ctx context.Context, env Env, args []string) int {
	a := newApp(env)
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.out.failed
	}
	if err != nil {
		a.reportError(err)
	}
	return exitCode(err)
}

// New gives fluxctl's command tree. Run is New, executed, with the error said and turned into an exit code.
func New(env Env) *cobra.Command { return newApp(env).root() }
