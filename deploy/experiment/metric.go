package experiment

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Metric is a quantity that every cell has.
type Metric struct {
	Name  string // as a column of the CSV files
	Title string // with its unit, as a column of tables
	// Scale is the factor from the value, in seconds or as a share, to the unit of the title.
	Scale float64
	// Always: it is in tables even if it is 0 everywhere. By default: it is in tables at all.
	Always, ByDefault bool
	// Meaning is one sentence.
	Meaning string
	// of is NaN if the run has not measured it: no flow has come so far.
	of func(r *traffic.Result) float64
}

// Unit is the unit of values: s, share (0 to 1, or more where there can be several for each), or empty for numbers.
func (m *Metric) Unit() string {
	switch m.Scale {
	case milliseconds:
		return "s"
	case percent:
		return "share"
	}
	return ""
}

const (
	milliseconds = 1e3
	percent      = 100
)

// Metrics are all metrics, in the order of columns.
var Metrics = []Metric{
	{"flows", "flows", 1, false, false, "flows that arrived after the warm-up", func(r *traffic.Result) float64 { return float64(r.Flows) }},
	{"connect_p50", "connect p50 ms", milliseconds, true, true, "time to the first reply, median", percentile(connect, 500)},
	{"connect_p99", "p99 ms", milliseconds, true, true, "time to the first reply, 99th percentile", percentile(connect, 990)},
	{"connect_p999", "p99.9 ms", milliseconds, true, true, "time to the first reply, 99.9th percentile", percentile(connect, 999)},
	{"response_mean", "response mean ms", milliseconds, false, false, "time to the end of the work, mean", func(r *traffic.Result) float64 { return mean(&r.Response) }},
	{"response_p50", "response p50 ms", milliseconds, false, false, "time to the end of the work, median", percentile(response, 500)},
	{"response_p99", "response p99 ms", milliseconds, false, false, "time to the end of the work, 99th percentile", percentile(response, 990)},
	{"waited", "waited %", percent, false, false, "share of connections that waited for a worker", func(r *traffic.Result) float64 { return r.Waited }},
	{"refused", "refused %", percent, false, true, "share of flows that an endpoint or the node refused", shareOf(func(r *traffic.Result) int { return r.Refused })},
	{"unanswered", "unanswered %", percent, false, true, "share of flows to endpoints that were gone", shareOf(func(r *traffic.Result) int { return r.Unanswered })},
	{"second_chances", "second chances %", percent, false, true, "decisions for another endpoint because the one before refused or did not answer, as a share of flows", shareOf(func(r *traffic.Result) int { return r.SecondChances })},
	{"broken", "broken %", percent, false, true, "share of flows whose connection ended before its time", shareOf(func(r *traffic.Result) int { return r.Broken })},
	{"inconsistent", "inconsistent %", percent, false, true, "share of flows whose connection broke because it got another endpoint, though its own was still there", shareOf(func(r *traffic.Result) int { return r.Remapped })},
	{"remapped", "remapped %", percent, false, true, "share of addresses and ports that get another endpoint after a change of the set, though their own is still there; mean of all changes, and not measured without one", remapped},
	{"messages", "messages/flow", 1, false, true, "messages between nodes and endpoints for the algorithm, as probes and reports, for each flow", shareOf(func(r *traffic.Result) int { return r.Messages })},
	{"open_mean", "open", 1, false, false, "open connections in all, mean over time", func(r *traffic.Result) float64 { return r.Open }},
	{"max_mean", "max/mean", 1, true, true, "open connections of the fullest endpoint in comparison with the mean, mean over the time with open connections", openBalance(func(r *traffic.Result) float64 { return r.MaxOverMean })},
	{"jain", "Jain", 1, true, true, "Jain's index of open connections, mean over the time with open connections", openBalance(func(r *traffic.Result) float64 { return r.Jain })},
	{"flows_max_mean", "flows max/mean", 1, false, false, "flows of the endpoint with most in comparison with the mean, of the whole run", flowsBalance(func(r *traffic.Result) float64 { return r.FlowsMaxOverMean })},
	{"flows_jain", "flows Jain", 1, false, false, "Jain's index of the endpoints' flows, of the whole run", flowsBalance(func(r *traffic.Result) float64 { return r.FlowsJain })},
	{"late_p99", "late p99 ms", milliseconds, false, true, "time by which flows began late, 99th percentile; of live runs", percentile(late, 990)},
	{"response_p999", "response p99.9 ms", milliseconds, false, false, "time to the end of the work, 99.9th percentile", percentile(response, 999)},
	{"requests", "requests", 1, false, false, "requests that began after the warm-up", func(r *traffic.Result) float64 { return float64(r.Requests.N) }},
	{"errors", "errors %", percent, false, true, "share of requests without a response in time", requestShare(func(q *traffic.RequestResult) int { return q.Late + q.Failed })},
	{"deadline_errors", "deadline errors %", percent, false, true, "share of requests without a response until the deadline, if not all attempts failed before", requestShare(func(q *traffic.RequestResult) int { return q.Late })},
	{"retries", "retries %", percent, false, true, "attempts after one that failed, as a share of requests", requestShare(func(q *traffic.RequestResult) int { return q.Retries })},
	{"hedges", "hedges %", percent, false, true, "attempts beside one that had no response yet, as a share of requests", requestShare(func(q *traffic.RequestResult) int { return q.Hedges })},
	{"wasted", "wasted work %", percent, false, true, "share of the endpoints' working time on attempts whose response no client used", func(r *traffic.Result) float64 { return r.Requests.Wasted / max(r.Requests.Worked, 1) }},
	{"requests_max_mean", "requests max/mean", 1, false, false, "attempts of the endpoint with most in comparison with the mean, of the whole run", func(r *traffic.Result) float64 { return r.Requests.MaxOverMean }},
	{"requests_jain", "requests Jain", 1, false, false, "Jain's index of the endpoints' attempts, of the whole run", func(r *traffic.Result) float64 { return r.Requests.Jain }},
	{"endpoints", "endpoints", 1, false, true, "endpoints of all services, mean over time", func(r *traffic.Result) float64 { return r.Endpoints }},
}

// requestsOnly are the metrics of experiments with workload.requests, and scaledOnly those of experiments with autoscale; others have no
// columns for them.
var (
	requestsOnly = []string{"response_p999", "requests", "errors", "deadline_errors", "retries", "hedges", "wasted", "requests_max_mean", "requests_jain"}
	scaledOnly   = []string{"endpoints"}
)

// lacks is what an experiment must have so that it has a metric; empty: nothing else.
func lacks(metric string, requests, autoscale bool) string {
	switch {
	case !requests && slices.Contains(requestsOnly, metric):
		return "workload.requests"
	case !autoscale && slices.Contains(scaledOnly, metric):
		return "an event with autoscale"
	}
	return ""
}

// simulatedOnly are the metrics that a live run does not have: a kernel shows neither what would happen to other flows
// nor, without a record of each flow, second chances. No endpoint of a lab exchanges messages with nodes.
var simulatedOnly = []string{"second_chances", "remapped", "messages"}

// liveOnly are the metrics that a simulation does not have.
var liveOnly = []string{"late_p99"}

func connect(r *traffic.Result) *stats.Times  { return &r.Connect }
func response(r *traffic.Result) *stats.Times { return &r.Response }
func late(r *traffic.Result) *stats.Times     { return &r.Late }

func percentile(of func(*traffic.Result) *stats.Times, permille int) func(*traffic.Result) float64 {
	return func(r *traffic.Result) float64 {
		if of(r).N() == 0 {
			return math.NaN()
		}
		return seconds(of(r).Percentile(permille))
	}
}

func seconds(nanoseconds int64) float64 { return float64(nanoseconds) / float64(time.Second) }

// mean is NaN without times.
func mean(t *stats.Times) float64 { return t.Sum() / float64(time.Second) / float64(t.N()) }

// openBalance is NaN without open connections, which nothing balances.
func openBalance(of func(*traffic.Result) float64) func(*traffic.Result) float64 {
	return func(r *traffic.Result) float64 {
		if r.Open == 0 {
			return math.NaN()
		}
		return of(r)
	}
}

// flowsBalance is NaN without flows.
func flowsBalance(of func(*traffic.Result) float64) func(*traffic.Result) float64 {
	return func(r *traffic.Result) float64 {
		if r.Flows == 0 {
			return math.NaN()
		}
		return of(r)
	}
}

// shareOf is NaN without flows.
func shareOf(count func(*traffic.Result) int) func(*traffic.Result) float64 {
	return func(r *traffic.Result) float64 { return float64(count(r)) / float64(r.Flows) }
}

// requestShare is NaN without requests.
func requestShare(count func(*traffic.RequestResult) int) func(*traffic.Result) float64 {
	return func(r *traffic.Result) float64 { return float64(count(r.Requests)) / float64(r.Requests.N) }
}

// remapped is NaN without a change that keeps endpoints.
func remapped(r *traffic.Result) float64 {
	var shares []float64
	for _, c := range r.Changes {
		if c.Kept > 0 {
			shares = append(shares, float64(c.Moved)/float64(c.Kept))
		}
	}
	if len(shares) == 0 {
		return math.NaN()
	}
	return stats.Mean(shares)
}

// metric finds a metric by its name; nil: there is none.
func metric(name string) *Metric {
	i := slices.IndexFunc(Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &Metrics[i]
}

// metric checks the name of a metric in a field of the file.
func (p *reader) metric(field, name string, s *Spec) {
	p.Want(field, metric(name) != nil, "want one of %s, not %q%s", strings.Join(metricNames(), ", "), name, nearest.Hint(name, metricNames()))
	scaled := slices.ContainsFunc(s.Events, func(e traffic.Event) bool { return e.Autoscale != nil })
	if what := lacks(name, s.Workload.Requests != nil, scaled); what != "" {
		p.Fail(field, "want %s: runs without it have no metric %s", what, name)
	}
}

func metricNames() (names []string) {
	for i := range Metrics {
		names = append(names, Metrics[i].Name)
	}
	return names
}
