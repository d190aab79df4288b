package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// scriptSource calls a function for each balancing script, with its failures so far.
type scriptSource func(each func(script string, failures uint64))

// scriptCollector reads the failures of balancing scripts at scrape time.
type scriptCollector struct {
	descs
	scripts *atomic.Pointer[scriptSource]
}

var (
	scriptDescs descs

	descScriptFailures = scriptDescs.add("nfqproxy_balance_script_failures_total", "Calls of a balancing script that failed; the endpoints of such flows were drawn at random.", "script")
)

// Collect implements [prometheus.Collector].
func (c scriptCollector) Collect(to chan<- prometheus.Metric) {
	if read := c.scripts.Load(); read != nil {
		(*read)(func(script string, failures uint64) {
			to <- prometheus.MustNewConstMetric(descScriptFailures, prometheus.CounterValue, float64(failures), script)
		})
	}
}

// ReadScripts makes every scrape from now on read the failures of balancing scripts. Several goroutines may call the
// function at once.
func (m *Metrics) ReadScripts(scripts func(each func(script string, failures uint64))) {
	source := scriptSource(scripts)
	m.scripts.Store(&source)
}
