package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
)

// Command is fluxctl service.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use: "service", Short: "Make a daemon a service of this host",
		Long: `Makes a daemon a service of this host: a unit of systemd on Linux, a LaunchAgent on macOS.

On macOS it is an agent of the user who installs it, because Apple's framework starts guests only in a login session:
let the Mac log that user in at boot, keep the screen unlocked, and allow FluxVM the Local Network when macOS asks.

With --root the service becomes one of a Linux system that does not run, whose files are below a directory, such as an
image for many hosts: it starts when that system boots.`,
		Example: "  fluxctl service install node\n  fluxctl service status node\n  fluxctl service uninstall node\n  fluxctl service install node --root /mnt/image --program /usr/bin/fluxvm-agent",
	}
	var p place
	c.PersistentFlags().StringVar(&p.root, "root", "", "`DIR` of a Linux system that does not run; other paths are as it will see them")
	var print bool
	install := &cobra.Command{
		Use: "install node|central", Short: "Write the service, start it, and start it at every boot",
		Example: `  fluxctl service install node
  fluxctl service install central --config /etc/fluxvm/central.toml
  fluxctl service install node --print`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{roleNode, roleCentral},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := p.filled(args[0])
			if err != nil {
				return err
			}
			if print {
				text, err := p.text()
				if err == nil {
					_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				}
				return err
			}
			if err := p.ready(); err != nil {
				return err
			}
			if err := p.makeRoom(cmd.Context()); err != nil {
				return err
			}
			if err := p.write(); err != nil {
				return fmt.Errorf("writing the service (on Linux this needs root): %w", err)
			}
			if err := carryOut(p.start()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "✓ %s is a service (%s)\n  look at it: fluxctl service status %s\n", p.role, p.path(), p.role)
			return err
		},
	}
	install.Flags().StringVar(&p.config, "config", "", "the daemon's configuration `FILE` (default /etc/fluxvm/ROLE.toml; macOS: ~/.config/fluxvm/ROLE.toml)")
	install.Flags().StringVar(&p.program, "program", "", "`PATH` of fluxvm-agent (default: beside fluxctl)")
	install.Flags().BoolVar(&print, "print", false, "write the service to standard output and change nothing")
	c.AddCommand(install,
		&cobra.Command{
			Use: "status node|central", Short: "Show how the service is", Example: "  fluxctl service status node",
			Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{roleNode, roleCentral},
			RunE: func(cmd *cobra.Command, args []string) error {
				p, err := place{root: p.root}.filled(args[0])
				if err != nil {
					return err
				}
				if _, err := os.Stat(p.path()); errors.Is(err, fs.ErrNotExist) && p.mac {
					return fmt.Errorf("%s is no service of this user; make it one: fluxctl service install %s", p.role, p.role)
				}
				argv := p.status()
				run := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...)
				run.Stdout, run.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
				if err := run.Run(); err != nil {
					return fmt.Errorf("%s does not run, or is no service of that system (%w)", p.label(), err)
				}
				return nil
			},
		},
		&cobra.Command{
			Use: "uninstall node|central", Short: "End the service and take it away; VMs, data and configuration stay", Example: "  fluxctl service uninstall node",
			Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{roleNode, roleCentral},
			RunE: func(cmd *cobra.Command, args []string) error {
				p, err := place{root: p.root}.filled(args[0])
				if err != nil {
					return err
				}
				if _, err := os.Stat(p.path()); errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("%s is not there: nothing is to be taken away", p.path())
				}
				if err := errors.Join(carryOut(p.stop()), os.Remove(p.path())); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "✓ %s is no service any more\n  its VMs, data and configuration are still there\n", p.role)
				return err
			},
		})
	return c
}

// filled is the place with what the user left out.
func (p place) filled(role string) (place, error) {
	p.role, p.mac, p.uid = role, runtime.GOOS == "darwin", os.Getuid()
	if p.mac && p.root != "" {
		return p, errors.New("--root is for Linux systems; on macOS each user installs the service at home")
	}
	var err error
	if p.home, err = os.UserHomeDir(); err != nil && p.mac {
		return p, err
	}
	if p.program == "" && p.root != "" {
		p.program = "/usr/bin/fluxvm-agent"
	}
	if p.program == "" {
		self, err := os.Executable()
		if err != nil {
			return p, fmt.Errorf("finding fluxvm-agent (give --program): %w", err)
		}
		p.program = filepath.Join(filepath.Dir(self), "fluxvm-agent")
	}
	if p.root != "" {
		var err error
		if p.root, err = filepath.Abs(p.root); err != nil {
			return p, err
		}
	}
	if p.config == "" {
		p.config = "/etc/fluxvm/" + role + ".toml"
		if p.mac {
			p.config = filepath.Join(p.home, ".config", "fluxvm", role+".toml")
		}
	}
	for _, path := range []*string{&p.program, &p.config} {
		if *path, err = filepath.Abs(*path); err != nil {
			return p, err
		}
	}
	return p, nil
}

// ready refuses a service that could not start.
func (p place) ready() error {
	for what, path := range map[string]string{"--program": p.program, "--config": p.config} {
		if info, err := os.Stat(filepath.Join(p.root, path)); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no file: put it there or name another one with %s", filepath.Join(p.root, path), what)
		}
	}
	switch {
	case p.mac && p.uid == 0:
		return errors.New("on macOS the service belongs to the user who is logged in at the screen: run this as that user, without sudo")
	case !p.mac && p.role == roleCentral && p.root == "":
		if _, err := user.Lookup("fluxvm"); err != nil {
			return errors.New("the user fluxvm, as whom central runs, is not there: useradd --system --home-dir /var/lib/fluxvm fluxvm")
		}
	}
	return nil
}

// goneWithin is how long launchd may take to end a daemon that it was told to: its own patience with one is 20 s.
const goneWithin = time.Minute

// makeRoom ends the service that is to be made anew, where the system would take no second one of its name.
func (p place) makeRoom(ctx context.Context) error {
	there := p.loaded()
	if there == nil || exec.CommandContext(ctx, there[0], there[1:]...).Run() != nil {
		return nil
	}
	if err := carryOut(p.stop()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	for exec.CommandContext(ctx, there[0], there[1:]...).Run() == nil {
		if !pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("the service %s does not end: %w", p.label(), ctx.Err())
		}
	}
	return nil
}

func carryOut(steps [][]string) error {
	for _, argv := range steps {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("running %v: %w: %s", argv, err, out)
		}
	}
	return nil
}
