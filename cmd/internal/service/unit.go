package service

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fluxvm/fluxvm/examples/deploy"
)

// Roles there are services of.
const (
	roleNode    = "node"
	roleCentral = "central"
)

// place is where a service of one role goes on one system, and what it is made of.
type place struct {
	role    string
	mac     bool
	program string // of fluxvm-agent, absolute
	config  string // absolute
	home    string // the user's; for a Mac
	uid     int    // the same
	root    string // of a Linux system that does not run; empty: the one that does
}

func (p place) label() string {
	if p.mac {
		return "dev.fluxvm." + p.role
	}
	return "fluxvm-" + p.role + ".service"
}

// path is the file that the init system reads.
func (p place) path() string {
	if p.mac {
		return filepath.Join(p.home, "Library", "LaunchAgents", p.label()+".plist")
	}
	return filepath.Join("/", p.root, "etc/systemd/system", p.label())
}

// log is where a Mac's daemon writes; systemd keeps a journal.
func (p place) log() string { return filepath.Join(p.home, "Library", "Logs", "fluxvm-"+p.role+".log") }

// text is that file's.
func (p place) text() (string, error) {
	name := p.label()
	if p.mac {
		name += ".plist"
	}
	raw, err := deploy.Files.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("there is no service %s on this system; macOS runs node only", p.role)
	}
	text := string(raw)
	if !p.mac {
		for _, s := range []string{p.program, p.config} {
			if strings.ContainsAny(s, " \t\n%$\"'\\") {
				return "", fmt.Errorf("systemd would misread the path %q; use one without spaces and signs", s)
			}
		}
		text = strings.Replace(text, "/usr/bin/fluxvm-agent", p.program, 1)
		return strings.Replace(text, "--config /etc/fluxvm/"+p.role+".toml", "--config "+p.config, 1), nil
	}
	// Only in the elements: the words of the comment stay.
	for word, value := range map[string]string{"PROGRAM": p.program, "CONFIG": p.config, "LOG": p.log()} {
		var escaped strings.Builder
		if err := xml.EscapeText(&escaped, []byte(value)); err != nil {
			return "", err
		}
		text = strings.Replace(text, "<string>"+word+"</string>", "<string>"+escaped.String()+"</string>", 1)
	}
	return text, nil
}

// write puts the file in its place.
func (p place) write() error {
	text, err := p.text()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.path()), 0o755); err != nil {
		return err
	}
	if p.mac {
		if err := os.MkdirAll(filepath.Dir(p.log()), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(p.path(), []byte(text), 0o644)
}

// loaded asks a Mac whether the service is there already: launchd takes no second one of a name.
func (p place) loaded() []string {
	if !p.mac {
		return nil
	}
	return p.status()
}

// The commands of each step, in order.

func (p place) start() [][]string {
	if p.mac {
		return [][]string{{"launchctl", "bootstrap", p.domain(), p.path()}}
	}
	if p.root != "" {
		return [][]string{{"systemctl", "--root", p.root, "enable", p.label()}}
	}
	return [][]string{{"systemctl", "daemon-reload"}, {"systemctl", "enable", "--now", p.label()}}
}

func (p place) stop() [][]string {
	if p.mac {
		return [][]string{{"launchctl", "bootout", p.domain() + "/" + p.label()}}
	}
	if p.root != "" {
		return [][]string{{"systemctl", "--root", p.root, "disable", p.label()}}
	}
	return [][]string{{"systemctl", "disable", "--now", p.label()}}
}

func (p place) status() []string {
	if p.mac {
		return []string{"launchctl", "print", p.domain() + "/" + p.label()}
	}
	if p.root != "" {
		return []string{"systemctl", "--root", p.root, "is-enabled", p.label()}
	}
	return []string{"systemctl", "--no-pager", "--full", "status", p.label()}
}

func (p place) domain() string { return fmt.Sprintf("gui/%d", p.uid) }
