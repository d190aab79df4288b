package traffic

import (
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// Result is what came of a run. Counts are of the flows after the warm-up.
type Result struct {
	Flows int
	// Refused by an endpoint, whose backlog is full or which does not accept connections, or by the node,
	// because the service has no endpoint.
	Refused int
	// SecondChances are decisions for another endpoint, see [SecondChance].
	SecondChances int
	// Unanswered by endpoints that are gone.
	Unanswered int
	// Broken connections ended before their time: their endpoint went, or after a flush of the node's
	// connection table they got another one. Remapped are those of the latter whose endpoint was still
	// there.
	Broken, Remapped int
	// Connect are the times to the first reply, Response those to the end of the work: with Workload.Requests, those of
	// requests from their beginning to the first response.
	Connect, Response stats.Times
	// Series are the same times to the end of the work in the order of these ends; only with Options.Series.
	Series []Served
	// Late are the times by which flows began late: in live runs, on a busy machine.
	Late stats.Times
	// Messages are those between nodes and endpoints for the algorithm: probes, reports and changes of queues of idle
	// endpoints.
	Messages int
	// Waited is the share of connections that waited for a worker.
	Waited float64
	// Open, MaxOverMean and Jain are about the open connections of endpoints: the means of the rows of Windows
	// after the warm-up, for MaxOverMean and Jain of those with open connections. They are 0 if there are none.
	Open, MaxOverMean, Jain float64
	// FlowsMaxOverMean and FlowsJain are about the flows of endpoints after the warm-up.
	FlowsMaxOverMean, FlowsJain float64
	Windows                     []Window
	Changes                     []Change
	// Endpoints is the number of endpoints in all services: the mean of the rows of Windows after the warm-up; only with Autoscale.
	Endpoints float64
	// Requests is nil without Workload.Requests.
	Requests *RequestResult
	// Costs are times of decisions by Options.Stopwatch: they are the only field that differs from run to run.
	Costs stats.Times
}

// Served is a request that got a response.
type Served struct {
	Arrived  time.Duration // since the start
	Response time.Duration // until the end of the work
}

// Window is a row of the time series. Loads are in proportion to the endpoints' weights, and compared within
// a service; of several services it is the mean, weighted by the services' loads.
type Window struct {
	End time.Duration
	// Flows, Refused, Unanswered and Broken are those of the window.
	Flows, Refused, Unanswered, Broken int
	// Open counts the open connections at the end, MaxOverMean and Jain are about them.
	Open              int
	MaxOverMean, Jain float64
	// Endpoints counts the endpoints in services at the end; only with Autoscale.
	Endpoints int `json:",omitempty"`
	// FlowsMaxOverMean and FlowsJain are about the flows in the window.
	FlowsMaxOverMean, FlowsJain float64
	// ConnectP50 and ConnectP99 are percentiles of the times to the first reply, in nanoseconds; [NoReply]: there was none after the warm-up.
	ConnectP50, ConnectP99 int64
}

// Spread compares the loads of endpoints within their services. Of several services it is the mean, weighted
// by their loads. The zero value has no service.
type Spread struct{ load, max, jain float64 }

// Add adds a service with the loads and the weights of its endpoints. It compares loads in proportion to the weights, without the
// endpoints of weight 0, which get no flows; but if all weights are 0, all endpoints get flows, and it compares the loads
// themselves. It changes loads.
func (a *Spread) Add(loads []float64, weights []uint16) {
	if slices.ContainsFunc(weights, func(w uint16) bool { return w > 0 }) {
		n := 0
		for i, w := range weights {
			if w > 0 {
				loads[n] = loads[i] / float64(w)
				n++
			}
		}
		loads = loads[:n]
	}
	total := 0.0
	for _, l := range loads {
		total += l
	}
	if len(loads) < 2 || total == 0 {
		return
	}
	a.load += total
	a.max += float64(total * stats.MaxOverMean(loads))
	a.jain += float64(total * stats.Jain(loads))
}

// Means returns the load of the fullest endpoint in comparison with the mean, and Jain's index; both are 1 if all
// are equal, or without load.
func (a *Spread) Means() (maxOverMean, jain float64) {
	if a.load == 0 {
		return 1, 1
	}
	return a.max / a.load, a.jain / a.load
}

// spread measures the loads of all services' endpoints that are in the newest tables.
func (s *simulation) spread(of func(id int32, e *server) int32) (maxOverMean, jain float64) {
	var sum Spread
	for _, members := range s.members {
		s.loads, s.weights = s.loads[:0], s.weights[:0]
		for _, id := range members {
			if e := &s.servers[id]; e.listed {
				s.loads, s.weights = append(s.loads, float64(of(id, e))), append(s.weights, e.weight)
			}
		}
		sum.Add(s.loads, s.weights)
	}
	return sum.Means()
}

// sample ends a window.
func (s *simulation) sample() {
	w := &s.window
	w.End = time.Duration(s.now)
	for i := range s.servers {
		w.Open += int(s.servers[i].open())
	}
	if len(s.scalers) > 0 {
		for i := range s.servers {
			if s.servers[i].listed {
				w.Endpoints++
			}
		}
	}
	w.MaxOverMean, w.Jain = s.spread(func(_ int32, e *server) int32 { return e.open() })
	w.FlowsMaxOverMean, w.FlowsJain = s.spread(func(_ int32, e *server) int32 { return e.recent })
	s.result.Connect.AddAll(&s.connects)
	w.SetConnects(&s.connects)
	s.result.Windows = append(s.result.Windows, *w)
	s.window = Window{}
	for i := range s.servers {
		s.servers[i].recent = 0
	}
}

// finish computes what is about the whole run.
func (s *simulation) finish() {
	s.result.Connect.AddAll(&s.connects)
	s.result.Finish(s.c.Warmup, s.waited, s.waits)
	s.result.FlowsMaxOverMean, s.result.FlowsJain = s.spread(func(_ int32, e *server) int32 { return e.flows })
	if k := s.sessions; k != nil {
		k.result.MaxOverMean, k.result.Jain = s.spread(func(id int32, _ *server) int32 {
			if int(id) < len(k.begun) {
				return k.begun[id]
			}
			return 0
		})
	}
}

// Finish sets what follows from other fields and from the numbers of counted connections: those that waited for a
// worker, and all that got one.
func (r *Result) Finish(warmup time.Duration, waited, all int) {
	if all > 0 {
		r.Waited = float64(waited) / float64(all)
	}
	var open, endpoints, maxOverMean, jain []float64
	for i := range r.Windows {
		if w := &r.Windows[i]; w.End > warmup {
			open, endpoints = append(open, float64(w.Open)), append(endpoints, float64(w.Endpoints))
			if w.Open > 0 {
				maxOverMean, jain = append(maxOverMean, w.MaxOverMean), append(jain, w.Jain)
			}
		}
	}
	r.Endpoints = stats.Mean(endpoints)
	r.Open, r.MaxOverMean, r.Jain = stats.Mean(open), stats.Mean(maxOverMean), stats.Mean(jain)
}

// NoReply stands for a percentile of no times.
const NoReply = -1

// SetConnects sets the percentiles of the times to the first reply, and removes the times.
func (w *Window) SetConnects(times *stats.Times) {
	w.ConnectP50, w.ConnectP99 = NoReply, NoReply
	if times.N() > 0 {
		w.ConnectP50, w.ConnectP99 = times.Percentile(500), times.Percentile(990)
	}
	times.Reset()
}
