package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/cmd/internal/hostd"
	"github.com/fluxvm/fluxvm/cmd/internal/service"
	"github.com/fluxvm/fluxvm/pkg/cli"
)

// version is set by the linker in releases.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Run(ctx, cli.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Getenv: os.Getenv, IsTerminal: isTerminal, Version: buildVersion(), More: hostCommands,
	}, os.Args[1:]))
}

// hostCommands are those that need the daemon itself, which pkg/cli does not know.
func hostCommands() []*cobra.Command {
	serve := hostd.Command("serve", false)
	serve.Example = `  fluxctl serve
  fluxctl serve --listen 127.0.0.1:7788 --data ~/fluxvm --backend sim`
	return append([]*cobra.Command{serve, service.Command()}, hostd.Helpers()...)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// buildVersion is the release's, else what the Go toolchain recorded of the source.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return ""
}
