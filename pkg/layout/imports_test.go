package layout

import (
	"fmt"
	"slices"
	"strings"
)

// mayImport is the import table: what a package may import of this module, outside its tests. Only commands and
// pkg/fleettest, which put everything together, have no row.
var mayImport = map[string][]string{
	"pkg/api":           {},
	"pkg/api/apitest":   {"pkg/api"},
	"pkg/certs":         {},
	"pkg/guard":         {},
	"pkg/client":        {"pkg/api", "pkg/certs"},
	"pkg/cli":           {"pkg/api", "pkg/certs", "pkg/client"},
	"pkg/guest":         {},
	"pkg/layout":        {},
	"fsm":               {"pkg/api"},
	"examples/deploy":   {},
	"central":           {"central/consensus", "central/console", "fsm", "pkg/api", "pkg/certs", "pkg/client", "pkg/guard"},
	"central/consensus": {"fsm", "pkg/api"},
	"central/console":   {},
	"node":              {"node/machine", "pkg/api", "pkg/certs", "pkg/client", "pkg/guard"},
	"node/machine":      {"pkg/api"},
	"node/process":      {"node/machine", "pkg/api", "pkg/guest"},
	"provider":          {"pkg/api", "pkg/client"},
}

// driverMayImport is the row of every driver.
var driverMayImport = []string{"node/machine", "node/process", "pkg/api", "pkg/guest"}

var importRules = []rule{
	{"import table", "packages stay deep and few when what each may lean on is written down", findTable},
	{"no fsm or raft outside central", "clients, hosts and the provider speak HTTP; only central replicates", findReplicated},
	{"central reaches no driver", "central orders hosts about over HTTP and never runs a machine", findCentralDrivers},
	{"only commands name drivers", "the daemon and its tests work with any driver; which ones there are is decided in cmd", findDriverNames},
	{"drivers do not import the daemon", "node/machine is the contract both sides share", findDriverImports},
	{"pkg/fleettest is for tests", "it puts central and hosts into one process; only tests and fluxvm-agent dev want that", findFleettest},
	{"pkg/api is words only", "everything imports it, the state machine too, so it must not know network, files or logs", findAPI},
	{"pkg/guest imports the standard library only", "it is linked into the guest's init, which must stay small", findGuest},
}

// outsideTests calls do for each import of each file that is no test.
func (t *tree) outsideTests(do func(f *source, importPath string)) {
	for _, f := range t.files {
		if !f.test {
			for _, p := range f.imports() {
				do(f, p)
			}
		}
	}
}

func findTable(t *tree) (found []violation, _ error) {
	missing := map[string]bool{}
	t.outsideTests(func(f *source, p string) {
		to, ok := inside(p)
		if !ok || below(f.dir, "cmd", "pkg/fleettest") || f.dir == "." {
			return
		}
		row, known := mayImport[f.dir]
		switch {
		case driver(f.dir):
			row, known = driverMayImport, true
			if below(to, "node/"+strings.Split(f.dir, "/")[1]) {
				return // its own parts
			}
		case !known && !missing[f.dir]:
			missing[f.dir] = true
			found = append(found, violation{f.dir, "has no row in the import table of pkg/layout; put the code into a package that is there, or add a row and say why in docs/architecture.md"})
		}
		if known && !slices.Contains(row, to) {
			found = append(found, violation{f.path, fmt.Sprintf("imports %s; %s may import %s", to, f.dir, orNothing(row))})
		}
	})
	return found, nil
}

func orNothing(row []string) string {
	if len(row) == 0 {
		return "nothing of this module"
	}
	return "only " + strings.Join(row, ", ")
}

func findReplicated(t *tree) (found []violation, _ error) {
	for _, dir := range t.dirs() {
		if !below(dir, "provider", "pkg", "node") || dir == "pkg/fleettest" {
			continue
		}
		for p, chain := range t.reached(dir) {
			to, ours := inside(p)
			if ours && below(to, "fsm", "central") || below(p, "github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb") {
				found = append(found, violation{chain[0], fmt.Sprintf("leads to %s (%s); go through pkg/client", p, strings.Join(chain, " → "))})
			}
		}
	}
	return found, nil
}

func findCentralDrivers(t *tree) (found []violation, _ error) {
	for _, dir := range t.dirs() {
		if !below(dir, "central", "fsm") {
			continue
		}
		for p, chain := range t.reached(dir) {
			if to, ours := inside(p); ours && driver(to) {
				found = append(found, violation{chain[0], fmt.Sprintf("leads to the driver %s (%s); order the host through its API, and in tests use pkg/fleettest", to, strings.Join(chain, " → "))})
			}
		}
	}
	return found, nil
}

func findDriverNames(t *tree) (found []violation, _ error) {
	t.outsideTests(func(f *source, p string) {
		to, ours := inside(p)
		if ours && driver(to) && !below(f.dir, "cmd", "pkg/fleettest") && !driver(f.dir) {
			found = append(found, violation{f.path, "names the driver " + to + "; take a machine.Driver and let a package below cmd choose"})
		}
	})
	return found, nil
}

func findDriverImports(t *tree) (found []violation, _ error) {
	for _, f := range t.files {
		if driver(f.dir) && slices.Contains(f.imports(), module+"/node") {
			found = append(found, violation{f.path, "imports the daemon; what both need belongs into node/machine"})
		}
	}
	return found, nil
}

func findFleettest(t *tree) (found []violation, _ error) {
	t.outsideTests(func(f *source, p string) {
		if to, ours := inside(p); ours && to == "pkg/fleettest" && f.dir != "cmd/fluxvm-agent" {
			found = append(found, violation{f.path, "imports pkg/fleettest; only _test.go files and cmd/fluxvm-agent may"})
		}
	})
	return found, nil
}

func findAPI(t *tree) (found []violation, _ error) {
	t.outsideTests(func(f *source, p string) {
		if f.dir == "pkg/api" && (!standard(p) || below(p, "net", "os", "log")) {
			found = append(found, violation{f.path, "imports " + p + "; pkg/api takes the standard library without net, os and log"})
		}
	})
	return found, nil
}

func findGuest(t *tree) (found []violation, _ error) {
	t.outsideTests(func(f *source, p string) {
		if below(f.dir, "pkg/guest") && !standard(p) {
			found = append(found, violation{f.path, "imports " + p + "; pkg/guest takes the standard library only"})
		}
	})
	return found, nil
}
