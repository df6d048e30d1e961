package node

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// metrics are the daemon's own, on a registry of its own so that many daemons fit in one process.
type metrics struct {
	d        *Daemon
	handler  http.Handler
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	beats    *prometheus.CounterVec
	vms      *prometheus.Desc
	memory   *prometheus.Desc
}

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		d:        d,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_node_requests_total", Help: "Requests answered, by route and status."}, []string{"method", "route", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "fluxvm_node_request_seconds", Help: "Time until the answer, by route.",
			Buckets: []float64{0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60}}, []string{"method", "route"}),
		beats:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_node_beats_total", Help: "Reports to replicas of central, by result."}, []string{"result"}),
		vms:    prometheus.NewDesc("fluxvm_node_vms", "VMs on this host, by state.", []string{"state"}, nil),
		memory: prometheus.NewDesc("fluxvm_node_memory_available_bytes", "Memory the host can still give.", nil, nil),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, m.requests, m.took, m.beats, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.vms
	out <- m.memory
}

// Collect is part of prometheus.Collector; it counts at the moment of the scrape.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	count := map[api.VMState]int{}
	for _, v := range m.d.list() {
		count[v.view().State]++
	}
	for _, s := range [...]api.VMState{api.StatePlaced, api.StateBooting, api.StateRunning, api.StatePaused, api.StateStopped, api.StateFailed, api.StateDeleting} {
		out <- prometheus.MustNewConstMetric(m.vms, prometheus.GaugeValue, float64(count[s]), string(s))
	}
	if mem, err := m.d.cfg.Facts.Memory(); err == nil {
		out <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, float64(mem.MemAvailableMiB<<20))
	}
}

func (m *metrics) beat(result string) { m.beats.WithLabelValues(result).Inc() }

func (m *metrics) request(method, route string, status int, took time.Duration) {
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.took.WithLabelValues(method, route).Observe(took.Seconds())
}
