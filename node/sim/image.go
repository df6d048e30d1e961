package sim

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What a sim image can do wrong.
const (
	failNone   = "none"
	failRefuse = "refuse" // the create is refused
	failBoot   = "boot"   // the machine fails instead of running
	failAgent  = "agent"  // the agent never answers
	failCrash  = "crash"  // the machine dies crash_after_ms after it began to run
)

const (
	scheme     = "sim:"
	maxDelayMS = 24 * 3600 * 1000
)

// image is how a machine behaves.
type image struct {
	boot       time.Duration // create to running
	agent      time.Duration // running to the agent's first answer
	fail       string
	crashAfter time.Duration
	balloon    string // how the guest follows its balloon
	template   bool   // VMs of pools and sandboxes may start from a template, at once
	oldAgent   bool   // its agent takes no claims
}

// How a sim guest follows its balloon.
const (
	balloonFollows = "follows"
	balloonAbsent  = "absent" // it has no driver
	balloonStuck   = "stuck"  // it stops at an eighth of its memory
)

// parseImage reads sim:?boot_ms=50&agent_ms=50&fail=none&crash_after_ms=0. Nothing is the default image, and so is a
// directory of this host: one that was imported.
func parseImage(path string) (image, error) {
	img := image{boot: 50 * time.Millisecond, agent: 50 * time.Millisecond, fail: failNone, balloon: balloonFollows}
	if filepath.IsAbs(path) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return img, nil
		}
	}
	rest, ok := strings.CutPrefix(path, scheme)
	if path != "" && !ok {
		return img, api.Invalid("image", "the sim backend boots images such as sim:?boot_ms=50&agent_ms=50, not files")
	}
	query, ok := strings.CutPrefix(rest, "?")
	if rest != "" && !ok {
		return img, api.Invalid("image", "after sim: comes ? and key=value pairs joined by &")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return img, api.Invalid("image", "the sim image's key=value pairs cannot be read")
	}
	delays := map[string]*time.Duration{"boot_ms": &img.boot, "agent_ms": &img.agent, "crash_after_ms": &img.crashAfter}
	for key, given := range values {
		to, isDelay := delays[key]
		switch {
		case len(given) != 1:
			return img, api.Invalid("image", "the sim image gives a key twice")
		case isDelay:
			ms, err := strconv.Atoi(given[0])
			if err != nil || ms < 0 || ms > maxDelayMS {
				return img, api.Invalid("image", "%s of a sim image must be a whole number from 0 to %d", key, maxDelayMS)
			}
			*to = time.Duration(ms) * time.Millisecond
		case key == "fail":
			img.fail = given[0]
			if !slices.Contains([]string{failNone, failRefuse, failBoot, failAgent, failCrash}, img.fail) {
				return img, api.Invalid("image", "fail of a sim image must be none, refuse, boot, agent or crash")
			}
		case key == "balloon":
			img.balloon = given[0]
			if !slices.Contains([]string{balloonFollows, balloonAbsent, balloonStuck}, img.balloon) {
				return img, api.Invalid("image", "balloon of a sim image must be follows, absent or stuck")
			}
		case key == "template":
			img.template = given[0] == "1"
		case key == "old_agent":
			if img.oldAgent, err = strconv.ParseBool(given[0]); err != nil {
				return img, api.Invalid("image", "old_agent of a sim image must be true or false")
			}
		default:
			return img, api.Invalid("image", "a sim image takes boot_ms, agent_ms, fail, crash_after_ms, balloon, template and old_agent")
		}
	}
	return img, nil
}
