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

	sandboxes *prometheus.Desc
	slots     *prometheus.Desc
	pss       *prometheus.Desc
	balloon   *prometheus.Desc
	reserved  *prometheus.Desc
	denied    *prometheus.CounterVec
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

		sandboxes: prometheus.NewDesc("fluxvm_node_sandboxes", "Sandboxes on this host: active, paused or hibernated.", []string{"state"}, nil),
		slots:     prometheus.NewDesc("fluxvm_node_warm_slots_ready", "Pool VMs and sandbox slots that wait booted.", nil, nil),
		pss:       prometheus.NewDesc("fluxvm_node_vms_pss_bytes", "Memory that the VMs' processes hold, shared pages counted once.", nil, nil),
		balloon:   prometheus.NewDesc("fluxvm_node_balloon_target_bytes", "Memory that guests were asked to give back.", nil, nil),
		reserved:  prometheus.NewDesc("fluxvm_node_memory_reserved_bytes", "Memory promised to VMs that were admitted and have not landed.", nil, nil),
		denied:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fluxvm_node_denied_total", Help: "Starts that quotas or pressure refused, by scope."}, []string{"scope"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, m.denied, m.requests, m.took, m.beats, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{m.vms, m.memory, m.sandboxes, m.slots, m.pss, m.balloon, m.reserved} {
		out <- d
	}
}

// Collect is part of prometheus.Collector; it counts at the moment of the scrape.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	count := map[api.VMState]int{}
	var load api.Density
	var pssKiB, targetMiB int64
	for _, v := range m.d.list() {
		count[v.view().State]++
		v.countIn(&load)
		kib, mib := v.holds()
		pssKiB, targetMiB = pssKiB+kib, targetMiB+mib
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.sandboxes, float64(load.ActiveSandboxes), "active")
	gauge(m.sandboxes, float64(load.PausedSandboxes), "paused")
	gauge(m.sandboxes, float64(load.HibernatedSandboxes), "hibernated")
	gauge(m.slots, float64(load.WarmSlotsReady))
	gauge(m.pss, float64(pssKiB<<10))
	gauge(m.balloon, float64(targetMiB<<20))
	gauge(m.reserved, float64(m.d.reserved.total()<<20))
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
