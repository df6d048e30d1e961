package central

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what Prometheus reads. Numbers of the state are taken when asked for.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	launches *prometheus.CounterVec
	claimMS  prometheus.Histogram
}

func newMetrics(r *Replica) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_http_requests_total", Help: "Answers of the fleet API by route and status."}, []string{"route", "method", "status"}),
		launches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_launches_total", Help: "Launches by how they started."}, []string{"start"}),
		claimMS: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fluxvm_claim_milliseconds", Help: "Time from a claim to its hand-over.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}}),
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(m.requests, m.launches, m.claimMS,
		gauge("fluxvm_raft_applied_index", "Index of the newest command applied.", func() float64 { return float64(r.state.View().Index()) }),
		gauge("fluxvm_raft_leader", "1 while this replica leads.", func() float64 {
			if r.reign.Load() != nil {
				return 1
			}
			return 0
		}),
		gauge("fluxvm_vms", "VMs in the state.", func() float64 {
			n := 0
			for range r.state.View().VMs("") {
				n++
			}
			return float64(n)
		}),
		gauge("fluxvm_nodes", "Nodes in the state.", func() float64 {
			n := 0
			for range r.state.View().Nodes("") {
				n++
			}
			return float64(n)
		}),
	)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) answered(route, method string, status int) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
}
