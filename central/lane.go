package central

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	ordersPerNode = 16 // quick requests to one node at a time
	longPerNode   = 32 // commands in guests, deletes and scrubs at a time
	openAfter     = 2  // failures in a row after which a node is skipped
	skipFor       = 15 * time.Second
	probeTimeout  = 2 * time.Second
	probePeriod   = time.Second
)

// lanes bound what is asked of each node at a time, and skip nodes that do not answer, so that nothing waits for a
// host that is known to be silent. A lane is a node's, by its URL.
type lanes struct {
	wall func() time.Time
	mu   sync.Mutex
	of   map[string]*lane

	failing map[string]*lane // those of them that have failed too often in a row
}

type lane struct {
	url         string
	quick, long chan struct{} // held while a request is under way
	failures    int           // in a row
	until       time.Time     // skipped until then; afterwards one request at a time tries
	trying      bool
}

// errSkipped says that a node was not asked because it did not answer before.
var errSkipped = errors.New("the node has not answered lately and is not asked for now")

func newLanes(wall func() time.Time) *lanes {
	return &lanes{wall: wall, of: map[string]*lane{}, failing: map[string]*lane{}}
}

func (l *lanes) get(url string) *lane {
	one := l.of[url]
	if one == nil {
		one = &lane{url: url, quick: make(chan struct{}, ordersPerNode), long: make(chan struct{}, longPerNode)}
		l.of[url] = one
	}
	return one
}

// takesLong says whether a node may rightly think about a request for longer than a moment: its time-out tells nothing
// of the node.
func takesLong(method, path string) bool {
	return method == http.MethodDelete || method == http.MethodPost && path != "/v1/vms"
}

// enter waits for a place in the node's lane. leave must be called with what became of the request. An error is
// notSent: nothing reached the node.
func (l *lanes) enter(ctx context.Context, url, method, path string) (leave func(error), err error) {
	l.mu.Lock()
	one := l.get(url)
	trial := one.failures >= openAfter
	if trial && (one.trying || l.wall().Before(one.until)) {
		l.mu.Unlock()
		return nil, notSent{errSkipped}
	}
	one.trying = one.trying || trial
	l.mu.Unlock()
	long := takesLong(method, path)
	places := one.quick
	if long {
		places = one.long
	}
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		l.left(one, trial, nil, true)
		return nil, notSent{ctx.Err()}
	}
	return func(err error) {
		<-places
		l.left(one, trial, err, long)
	}, nil
}

// left takes note of what became of a request. Any answer shows that the node is there; so does a broken one.
func (l *lanes) left(one *lane, trial bool, err error, long bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if trial {
		one.trying = false
	}
	defer l.note(one)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, context.DeadlineExceeded) && !long:
		if one.failures++; one.failures >= openAfter {
			one.until = l.wall().Add(skipFor)
		}
	case err == nil && !long, codeOf(err) != "":
		one.failures = 0
	}
}

// note is called with the lock held, after a lane's failures have changed.
func (l *lanes) note(one *lane) {
	if one.failures >= openAfter {
		l.failing[one.url] = one
	} else {
		delete(l.failing, one.url)
	}
}

// skipped are the nodes that requests would not be sent to now, by URL; nil for none.
func (l *lanes) skipped() (urls map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for url, one := range l.failing {
		if l.wall().Before(one.until) {
			if urls == nil {
				urls = map[string]bool{}
			}
			urls[url] = true
		}
	}
	return urls
}

// skips says whether requests to the node would not be sent now.
func (l *lanes) skips(url string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of[url]
	return one != nil && one.failures >= openAfter && l.wall().Before(one.until)
}

// silent are the nodes that are skipped.
func (l *lanes) silent() (urls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for url := range l.failing {
		urls = append(urls, url)
	}
	return urls
}

// probed notes what became of asking a node that is skipped.
func (l *lanes) probed(url string, there bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch one := l.of[url]; {
	case one == nil:
	case there:
		one.failures = 0
		l.note(one)
	default:
		one.until = l.wall().Add(skipFor)
	}
}

// keep forgets the lanes of nodes that are no more; those in use are forgotten later.
func (l *lanes) keep(known map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for url, one := range l.of {
		if !known[url] && len(one.quick)+len(one.long) == 0 {
			delete(l.of, url)
			delete(l.failing, url)
		}
	}
}

// passProbes asks the nodes that are skipped whether they are there again, all at once.
func (g *reign) passProbes(ctx context.Context) error {
	known := map[string]bool{}
	for node := range g.view().Nodes("") {
		known[node.URL] = true
	}
	g.r.calls.lanes.keep(known)
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var asked sync.WaitGroup
	for _, url := range g.r.calls.lanes.silent() {
		asked.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
			if err != nil {
				return
			}
			resp, err := g.r.calls.client.Do(req)
			g.r.calls.lanes.probed(url, err == nil)
			if err != nil {
				return
			}
			resp.Body.Close()
			poke(g.vmPoke)
			poke(g.poolPoke)
		})
	}
	asked.Wait()
	return nil
}

// weatherOf is what placement looks at beside the rows: a node's own report, and whether it answers.
func (g *reign) weatherOf(view fsm.View) func(node string) weather {
	return func(name string) weather {
		w := g.r.fleet.weather(name)
		if node := view.Node(name); node != nil {
			w.mute = g.r.calls.lanes.skips(node.URL)
		}
		return w
	}
}

// whyRefused is the reason that a node's refusal stands for, as placement counts it.
func whyRefused(e *api.Error) string {
	if e == nil {
		return api.WhyUnhealthy
	}
	for _, why := range [...]string{api.WhyMacOSLimit, api.WhyCPU, api.WhyMemory, api.WhyPort, api.WhyScrub} {
		if e.Reasons[why] > 0 {
			return why
		}
	}
	switch {
	case e.Code == api.CodeHostPressure:
		return api.WhyPressure
	case e.Code == api.CodeHostFull:
		return api.WhyMemory
	case e.Code == api.CodeInvalid && (e.Field == "image" || strings.HasPrefix(e.Field, "image.")):
		return api.WhyImage
	case e.Code == api.CodeInvalid:
		return api.WhyBackend
	}
	return api.WhyUnhealthy
}
