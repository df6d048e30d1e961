package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// hostFaults are what can happen to hosts.
func (f *fleet) hostFaults() []fault {
	steered := func(on, off string) func(context.Context, *host, *rand.Rand) error {
		return func(ctx context.Context, h *host, rng *rand.Rand) error {
			err := f.steer(h, on)
			hold(ctx, rng, 300*time.Millisecond, 6*time.Second)
			return errors.Join(err, f.steer(h, off))
		}
	}
	kinds := []struct {
		name string
		do   func(context.Context, *host, *rand.Rand) error
	}{
		{"host-kill", f.killHost},
		{"host-restart", f.restartHost},
		{"host-pause", func(ctx context.Context, h *host, rng *rand.Rand) error {
			h.daemon.signal(syscall.SIGSTOP)
			hold(ctx, rng, 500*time.Millisecond, 7*time.Second)
			h.daemon.signal(syscall.SIGCONT)
			return nil
		}},
		{"host-reboot", f.rebootHost},
		{"host-frozen", steered(`{"freeze":true}`, `{"freeze":false}`)},
		{"host-refuses", steered(`{"refuse_creates":"not now"}`, `{"refuse_creates":null}`)},
		{"host-pressure", steered(`{"pressure_level":"critical"}`, `{"pressure_level":null}`)},
		{"host-old", steered(`{"rename":false}`, `{"rename":true}`)},
		{"host-clock", steered(`{"clock_offset_secs":-3600}`, `{"clock_offset_secs":0}`)},
		{"host-mute", func(ctx context.Context, h *host, rng *rand.Rand) error {
			err := f.steer(h, `{"lost_replies":`+strconv.Itoa(1+rng.IntN(5))+`}`)
			hold(ctx, rng, 500*time.Millisecond, 3*time.Second)
			return errors.Join(err, f.steer(h, `{"lost_replies":0}`))
		}},
		{"host-partition", f.partHost},
		{"old-orders", f.oldOrders},
	}
	var all []fault
	for _, k := range kinds {
		all = append(all, fault{k.name, func(ctx context.Context, rng *rand.Rand) (string, error) {
			h := f.hosts[rng.IntN(len(f.hosts))]
			return h.name, k.do(ctx, h, rng)
		}})
	}
	return f.wanted(all)
}

// steer changes how a host behaves.
func (f *fleet) steer(h *host, change string) error {
	var last answer
	why := until(context.Background(), 30*time.Second, func() string {
		last = f.call.once(context.Background(), h.target(), request{token: operatorToken, method: http.MethodPatch, path: "/v1/sim", body: rawJSON(change), timeout: 5 * time.Second})
		if last.what != done {
			return fmt.Sprintf("steering %s: %d %v", h.name, last.status, last.err)
		}
		return ""
	})
	if why != "" {
		return errors.New(why)
	}
	return nil
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func (f *fleet) killHost(ctx context.Context, h *host, rng *rand.Rand) error {
	f.truth.look(ctx, h) // what it was ordered goes with it
	h.daemon.end(syscall.SIGKILL, stopPatience)
	hold(ctx, rng, 200*time.Millisecond, 4*time.Second)
	h.daemon.start()
	return nil
}

func (f *fleet) restartHost(ctx context.Context, h *host, rng *rand.Rand) error {
	f.truth.look(ctx, h)
	h.daemon.end(syscall.SIGTERM, stopPatience)
	hold(ctx, rng, 100*time.Millisecond, time.Second)
	h.daemon.start()
	return nil
}

// rebootHost loses the host's VMs: whoever has one may find it gone.
func (f *fleet) rebootHost(_ context.Context, h *host, rng *rand.Rand) error {
	f.clients.rebooted(h.name)
	defer f.clients.rebooted(h.name) // also what was placed there meanwhile
	return f.steer(h, fmt.Sprintf(`{"boot_id":"boot-%d"}`, rng.Uint64()))
}

// partHost cuts a host off from some of the replicas.
func (f *fleet) partHost(ctx context.Context, h *host, rng *rand.Rand) (err error) {
	var lost []string
	for _, p := range f.members() {
		if rng.IntN(2) == 0 {
			lost = append(lost, replicaIP(p.i))
			err = errors.Join(err, lose(hostNet(h.i), replicaIP(p.i)))
		}
	}
	hold(ctx, rng, time.Second, 8*time.Second)
	for _, address := range lost {
		err = errors.Join(err, hear(hostNet(h.i), address))
	}
	return err
}

// oldOrders gives a host an order in the name of a leader from before the one that it heard last. It must refuse.
func (f *fleet) oldOrders(ctx context.Context, h *host, _ *rand.Rand) error {
	f.truth.look(ctx, h)
	epoch, term, vm := f.truth.newest(h)
	if term < 2 || vm == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	token := fmt.Sprintf("%d.%d.chaos", epoch, term-1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, h.target().url+"/v1/vms/"+vm, strings.NewReader(`{"labels":{"chaos":"an order of a deposed leader"}}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+operatorToken)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(api.HeaderFencing, token)
	resp, err := f.call.http.Do(req)
	if err != nil {
		return nil // it is busy with another fault
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 300 {
		f.rec.broken(checkFence, "%s carried out an order with token %s after one of term %d", h.name, token, term)
	}
	return nil
}
