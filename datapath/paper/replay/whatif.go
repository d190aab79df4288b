package replay

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// WhatIf decides the recorded flows of a node again by another algorithm, or by other objects, and compares
// where they go and what the endpoints have to do. Connections are open for as long as they were: what an
// endpoint's load does to its latency is not modelled.
type WhatIf struct {
	table  *decision.Table
	rerun  *Rerun
	loads  map[string]map[string]*EndpointLoad // by service and endpoint
	report WhatIfReport
}

// WhatIfReport is the result of [WhatIf.Run].
type WhatIfReport struct {
	Flows int `json:"flows"` // of the node that went to an endpoint, then or now
	// Same went to the same endpoint, Elsewhere to another one. Failed had an endpoint and would be rejected,
	// dropped or not translated; Served are the opposite.
	Same      int `json:"same"`
	Elsewhere int `json:"elsewhere"`
	Failed    int `json:"failed"`
	Served    int `json:"served"`
	// Unknown are those without an end in their records: they count as open for no time if the log has no states, and
	// until the end of the log if they had not ended.
	Unknown  int           `json:"unknown"`
	Others   int           `json:"others"` // records of other nodes
	Services []ServiceLoad `json:"services"`
	// Samples are the times of [Load.Open].
	Samples []time.Time `json:"samples"`
}

// ServiceLoad is the load of a service's endpoints.
type ServiceLoad struct {
	Service   string         `json:"service"`
	Endpoints []EndpointLoad `json:"endpoints"`
	// Jain's index of the endpoints' mean open connections, 1 if they are equal.
	JainRecorded float64 `json:"jainRecorded"`
	JainNow      float64 `json:"jainNow"`
}

// EndpointLoad is the load of an endpoint as it was, and as it would be.
type EndpointLoad struct {
	Endpoint string `json:"endpoint"`
	Recorded Load   `json:"recorded"`
	Now      Load   `json:"now"`
}

// Load counts connections.
type Load struct {
	Flows int     `json:"flows"`
	Peak  int     `json:"peak"` // open at the same time
	Mean  float64 `json:"mean"` // open, mean over time
	Open  []int   `json:"open"` // at the report's samples
	n     int
	sum   time.Duration
}

// comparison is the [Watcher] of a run. It compares each flow with its record.
type comparison struct {
	*WhatIf
	differs func(*Difference) error
	samples []time.Time // that are still to be taken
	flows   []loadPair  // by Recorded.Number
}

// loadPair are the endpoints that a flow went to and goes to; nil: it counts for nothing.
type loadPair struct{ was, is *Load }

// samples is how many times loads are sampled.
const samples = 60

// NewWhatIf makes a WhatIf. Services of the table have their algorithms; nil: the built-in ones.
func NewWhatIf(t *decision.Table, algorithms *balance.Registry, r *rand.Rand) (*WhatIf, error) {
	rerun, err := NewRerun(t, algorithms, r)
	if err != nil {
		return nil, err
	}
	return &WhatIf{table: t, rerun: rerun, loads: make(map[string]map[string]*EndpointLoad)}, nil
}

// Run decides the flows of a log again, and calls differs for each that would go elsewhere. Errors of the log are
// those of [ReadHistory].
func (w *WhatIf) Run(in io.Reader, differs func(*Difference) error) (*WhatIfReport, error) {
	h, err := ReadHistory(in, w.table.Node().Name)
	if err != nil {
		return nil, err
	}
	w.report.Others = h.Others
	c := &comparison{WhatIf: w, differs: differs, flows: make([]loadPair, len(h.Flows))}
	whole := h.End.Sub(h.Begin)
	for i := range samples {
		c.samples = append(c.samples, h.Begin.Add(whole*time.Duration(i+1)/samples))
	}
	w.report.Samples = slices.Clone(c.samples)
	if err := w.rerun.Run(h, c); err != nil {
		return nil, err
	}
	w.finish(whole)
	return &w.report, nil
}

// Decided implements [Watcher].
func (c *comparison) Decided(f *Recorded, d *decision.Decision) error {
	c.sampleTo(f.Start.Add(1))
	now, r, report := flow.New(c.table, f.Packet, d), f.Record, &c.report
	const dnat = "dnat"
	switch was, is := r.Verdict == dnat, now.Verdict == dnat; {
	case !was && !is:
		return nil
	case was && is && r.Endpoint == now.Endpoint:
		report.Same++
	case was && is:
		report.Elsewhere++
		if err := c.differs(&Difference{f.Line, r, "endpoint", r.Endpoint, now.Endpoint}); err != nil {
			return err
		}
	default:
		if was {
			report.Failed++
		} else {
			report.Served++
		}
		if err := c.differs(&Difference{f.Line, r, "verdict", r.Verdict + " " + r.Endpoint, strings.TrimSpace(now.Verdict + " " + now.Endpoint)}); err != nil {
			return err
		}
	}
	report.Flows++
	if !f.Ended {
		report.Unknown++
	}
	l := &c.flows[f.Number]
	l.was, l.is = &c.load(r.Service, r.Endpoint).Recorded, &c.load(now.Service, now.Endpoint).Now
	l.was.start()
	l.is.start()
	return nil
}

// Ended implements [Watcher].
func (c *comparison) Ended(f *Recorded, at time.Time) {
	c.sampleTo(f.End)
	if l := c.flows[f.Number]; l.was != nil {
		l.was.stop(at.Sub(f.Start))
		l.is.stop(at.Sub(f.Start))
	}
}

// load is the load of an endpoint; of none, if it is empty: that is in no report.
func (w *WhatIf) load(service, endpoint string) *EndpointLoad {
	if endpoint == "" {
		return new(EndpointLoad)
	}
	s := w.loads[service]
	if s == nil {
		s = make(map[string]*EndpointLoad)
		w.loads[service] = s
	}
	if s[endpoint] == nil {
		s[endpoint] = &EndpointLoad{Endpoint: endpoint}
	}
	return s[endpoint]
}

// sampleTo takes the samples before a time.
func (c *comparison) sampleTo(end time.Time) {
	for len(c.samples) > 0 && c.samples[0].Before(end) {
		taken := samples - len(c.samples)
		c.samples = c.samples[1:]
		for _, endpoints := range c.loads {
			for _, e := range endpoints {
				e.Recorded.sample(taken)
				e.Now.sample(taken)
			}
		}
	}
}

func (l *Load) start() {
	l.Flows++
	l.n++
	l.Peak = max(l.Peak, l.n)
}

func (l *Load) stop(open time.Duration) {
	l.n--
	l.sum += open
}

// sample appends the open connections; before the first flow there were none.
func (l *Load) sample(number int) {
	for len(l.Open) < number {
		l.Open = append(l.Open, 0)
	}
	l.Open = append(l.Open, l.n)
}

// finish makes the report of the services.
func (w *WhatIf) finish(whole time.Duration) {
	for _, name := range slices.Sorted(maps.Keys(w.loads)) {
		s := ServiceLoad{Service: name}
		var recorded, now []float64
		for _, endpoint := range slices.Sorted(maps.Keys(w.loads[name])) {
			e := w.loads[name][endpoint]
			for _, l := range []*Load{&e.Recorded, &e.Now} {
				l.Mean = l.sum.Seconds() / max(whole.Seconds(), 1e-9)
				l.sampleAll()
			}
			recorded, now = append(recorded, e.Recorded.Mean), append(now, e.Now.Mean)
			s.Endpoints = append(s.Endpoints, *e)
		}
		s.JainRecorded, s.JainNow = stats.Jain(recorded), stats.Jain(now)
		w.report.Services = append(w.report.Services, s)
	}
}

func (l *Load) sampleAll() {
	for len(l.Open) < samples {
		l.Open = append(l.Open, l.n)
	}
}

// WriteTo prints the report as text.
func (r *WhatIfReport) WriteTo(to io.Writer) (int64, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %d to the same endpoint, %d elsewhere", quantity.Count(r.Flows, "flow"), r.Same, r.Elsewhere)
	if r.Failed > 0 {
		fmt.Fprintf(&b, ", %d would fail", r.Failed)
	}
	if r.Served > 0 {
		fmt.Fprintf(&b, ", %d that failed would have an endpoint", r.Served)
	}
	b.WriteString("\n")
	for _, s := range r.Services {
		fmt.Fprintf(&b, "\n%s: Jain's index of open connections %.3f, now %.3f\n", s.Service, s.JainRecorded, s.JainNow)
		t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ENDPOINT\tFLOWS\tNOW\tPEAK OPEN\tNOW\tMEAN OPEN\tNOW\t")
		for _, e := range s.Endpoints {
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.2f\t%.2f\t\n", e.Endpoint, e.Recorded.Flows, e.Now.Flows, e.Recorded.Peak, e.Now.Peak, e.Recorded.Mean, e.Now.Mean)
		}
		_ = t.Flush() // to a buffer
	}
	if r.Unknown > 0 {
		fmt.Fprintf(&b, "\n%d of %s have no end: those that were open count until the end of the log, and those of a log without states for no time (nfqproxy flows -o jsonl has states)\n", r.Unknown, quantity.Count(r.Flows, "flow"))
	}
	if r.Others > 0 {
		fmt.Fprintf(&b, "%s of other nodes are left out\n", quantity.Count(r.Others, "record"))
	}
	return b.WriteTo(to)
}
