package central

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fluxvm/fluxvm/central/consensus"
)

// metrics are what Prometheus reads. Numbers of the state are taken when asked for.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	launches *prometheus.CounterVec
	claimMS  prometheus.Histogram
	commands prometheus.Counter
	refusals *prometheus.CounterVec
}

func newMetrics(r *Replica) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_http_requests_total", Help: "Answers of the fleet API by route and status."}, []string{"route", "method", "status"}),
		launches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_launches_total", Help: "Launches by how they started."}, []string{"start"}),
		commands: prometheus.NewCounter(prometheus.CounterOpts{Name: "fluxvm_commands_applied_total", Help: "Commands of the log that this process carried out."}),
		claimMS: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fluxvm_claim_milliseconds", Help: "Time from a claim to its hand-over.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}}),
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(m.requests, m.launches, m.claimMS, m.commands,
		gauge("fluxvm_raft_applied_index", "Index of the newest command applied.", func() float64 { return float64(r.state.View().Index()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fluxvm_rows_walked_total", Help: "Rows of the state that commands and reads have gone through, since it was made or restored."},
			func() float64 { return float64(r.state.View().Walked()) }),
		gauge("fluxvm_raft_leader", "1 while this replica leads.", func() float64 {
			if r.reign.Load() != nil {
				return 1
			}
			return 0
		}),
		gauge("fluxvm_raft_log_bytes", "Size of the log's file, which never shrinks by itself.", func() float64 { return float64(r.logStatus().LogBytes) }),
		gauge("fluxvm_raft_log_free_pages", "Pages of the log's file that are free for reuse; central compact gives them back.", func() float64 { return float64(r.logStatus().LogFreePages) }),
		gauge("fluxvm_raft_waiting", "Operations that wait for the log; 1,024 at most.", func() float64 { return float64(r.logStatus().Waiting) }),
		gauge("fluxvm_raft_abandoned", "Operations, ever, whose caller stopped waiting.", func() float64 { return float64(r.logStatus().Abandoned) }),
		gauge("fluxvm_raft_snapshot_index", "Index that the newest snapshot on disk reaches.", func() float64 { return float64(r.logStatus().SnapshotIndex) }),
		gauge("fluxvm_disk_low", "1 while the disk of the data directory has less room than its reserve.", func() float64 {
			if r.disk.isLow() {
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
	m.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_refusals_total", Help: "Requests that were refused for what they showed, by code."}, []string{"code"})
	m.registry.MustRegister(m.refusals)
	m.registry.MustRegister(poolCollector{r})
	if r.cfg.TLS != nil {
		m.registry.MustRegister(gauge("fluxvm_tls_not_after_seconds", "When this replica's certificate ends, in seconds since 1970.",
			func() float64 { return float64(r.cfg.TLS.NotAfter().Unix()) }))
	}
	return m
}

// logStatus is the log's, once it is open.
func (r *Replica) logStatus() consensus.Status {
	select {
	case <-r.opened:
		return r.log.Status()
	default:
		return consensus.Status{}
	}
}

// poolCollector reads the pools from the state when it is asked.
type poolCollector struct{ r *Replica }

// What is told of each pool.
func poolDescriptions() (vms, claims, cold *prometheus.Desc) {
	return prometheus.NewDesc("fluxvm_pool_vms", "VMs of a pool by state.", []string{"pool", "state"}, nil),
		prometheus.NewDesc("fluxvm_pool_claims_24h", "Launches that took a VM of the pool in the last day.", []string{"pool"}, nil),
		prometheus.NewDesc("fluxvm_pool_cold_24h", "Launches that matched the pool in the last day and booted normally.", []string{"pool"}, nil)
}

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(out chan<- *prometheus.Desc) {
	vms, claims, cold := poolDescriptions()
	out <- vms
	out <- claims
	out <- cold
}

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(out chan<- prometheus.Metric) {
	vms, claims, cold := poolDescriptions()
	view := c.r.state.View()
	gauge := func(desc *prometheus.Desc, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, labels...)
	}
	for p := range view.Pools("") {
		count := view.Count(p)
		gauge(vms, float64(count.Ready), p.Name, "ready")
		gauge(vms, float64(count.Booting), p.Name, "booting")
		gauge(vms, float64(count.Failed), p.Name, "failed")
		gauge(vms, float64(count.Claimed), p.Name, "claimed")
		gauge(vms, float64(p.MinReady), p.Name, "wanted")
		claimed, _, _ := view.Claims24h(p.Name)
		gauge(claims, float64(claimed), p.Name)
		gauge(cold, float64(view.Cold24h(p.Name)), p.Name)
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) answered(route, method string, status int) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
}
