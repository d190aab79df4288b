package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/stats"
)

// WhatIf decides the recorded flows of a node again by another algorithm, or by other objects, and compares
// where they go and what the endpoints have to do. Connections are open for as long as they were: what an
// endpoint's load does to its latency is not modelled.
type WhatIf struct {
	table    *decision.Table
	balancer *balance.Balancer
	affinity *affinity.Table
	rand     *rand.Rand
	now      time.Time
	open     []*replayed // that have not ended, in the order of their ends
	samples  []time.Time // that are still to be taken
	report   WhatIfReport
	loads    map[string]map[string]*EndpointLoad // by service and endpoint
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

// replayed is a flow of the log.
type replayed struct {
	line   int
	record *flow.Record
	packet *decision.Packet
	time   time.Time
	end    time.Time
	known  bool // end is known
	was    *Load
	is     *Load
	conn   balance.Connection
	has    bool
}

// samples is how many times loads are sampled.
const samples = 60

// NewWhatIf makes a WhatIf. Services of the table have their algorithms; nil: the built-in ones.
func NewWhatIf(t *decision.Table, algorithms *balance.Registry, r *rand.Rand) (*WhatIf, error) {
	if _, err := NewLog(t); err != nil {
		return nil, err
	}
	if algorithms == nil {
		algorithms = balance.NewRegistry()
	}
	w := &WhatIf{table: t, rand: r, loads: make(map[string]map[string]*EndpointLoad)}
	w.balancer = balance.New(algorithms, func() int64 { return w.now.UnixNano() })
	w.balancer.Follow(t)
	w.affinity = affinity.NewAt(func() time.Time { return w.now })
	return w, nil
}

// Run decides the flows of a log again, and calls differs for each that would go elsewhere. Records without a
// time, or a log without a record of the node, are errors.
func (w *WhatIf) Run(in io.Reader, differs func(*Difference) error) (*WhatIfReport, error) {
	flows, nodes, err := w.read(in)
	if err != nil {
		return nil, err
	}
	if len(flows) == 0 {
		if len(nodes) > 0 {
			return nil, fmt.Errorf("no record is of node %q: there are those of %s; name one with --node-name", w.table.Node().Name, strings.Join(slices.Sorted(maps.Keys(nodes)), ", "))
		}
		return nil, errors.New("there is no record in it")
	}
	slices.SortStableFunc(flows, func(a, b *replayed) int { return a.time.Compare(b.time) })
	begin, end := flows[0].time, flows[len(flows)-1].time
	for _, f := range flows {
		if f.known && f.end.After(end) {
			end = f.end
		}
	}
	for i := range samples {
		w.samples = append(w.samples, begin.Add(end.Sub(begin)*time.Duration(i+1)/samples))
	}
	w.report.Samples = slices.Clone(w.samples)
	for _, f := range flows {
		if !f.known && f.record.Life != nil {
			f.end = end.Add(1)
		}
		w.advance(f.time)
		if err := w.decide(f, differs); err != nil {
			return nil, err
		}
	}
	w.advance(end)
	for _, f := range w.open { // and those that had not ended
		f.was.stop(end.Sub(f.time))
		f.is.stop(end.Sub(f.time))
	}
	w.finish(end.Sub(begin))
	return &w.report, nil
}

// read reads the flows of the node.
func (w *WhatIf) read(in io.Reader) (flows []*replayed, nodes map[string]bool, err error) {
	nodes = make(map[string]bool)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestRecord)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		f := &replayed{line: n, record: new(flow.Record)}
		if err := json.Unmarshal(lines.Bytes(), f.record); err != nil {
			return nil, nil, fmt.Errorf("line %d: not a record of a flow log: %s", n, strings.TrimPrefix(err.Error(), "json: "))
		}
		r := f.record
		if r.Version != flow.Version {
			return nil, nil, fmt.Errorf("line %d: a record of version %d: only version %d of the flow log is known", n, r.Version, flow.Version)
		}
		if f.packet, err = packetOf(r); err == nil && r.Time == nil {
			err = errors.New("the record has no time")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
		nodes[r.Node] = true
		if r.Node != w.table.Node().Name {
			w.report.Others++
			continue
		}
		f.time, f.end = *r.Time, *r.Time
		if l := r.Life; l != nil && l.State.Ended() && !l.Since.Before(f.time) {
			f.end, f.known = l.Since, true
		}
		flows = append(flows, f)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return flows, nodes, nil
}

// decide decides a flow again.
func (w *WhatIf) decide(f *replayed, differs func(*Difference) error) error {
	w.now = f.time
	d := decision.Decide(w.table, f.packet, w.rand, w.affinity, w.balancer)
	now, r, report := flow.New(w.table, f.packet, &d), f.record, &w.report
	if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
		w.affinity.Bind(d.ServicePort, d.Endpoint(), f.packet.Source.Addr())
	}
	const dnat = "dnat"
	switch was, is := r.Verdict == dnat, now.Verdict == dnat; {
	case !was && !is:
		return nil
	case was && is && r.Endpoint == now.Endpoint:
		report.Same++
	case was && is:
		report.Elsewhere++
		if err := differs(&Difference{f.line, r, "endpoint", r.Endpoint, now.Endpoint}); err != nil {
			return err
		}
	default:
		if was {
			report.Failed++
		} else {
			report.Served++
		}
		if err := differs(&Difference{f.line, r, "verdict", r.Verdict + " " + r.Endpoint, strings.TrimSpace(now.Verdict + " " + now.Endpoint)}); err != nil {
			return err
		}
	}
	report.Flows++
	if !f.known {
		report.Unknown++
	}
	f.was, f.is = &w.load(r.Service, r.Endpoint).Recorded, &w.load(now.Service, now.Endpoint).Now
	f.conn, f.has = w.balancer.Connection(&d)
	f.was.start()
	f.is.start()
	at, _ := slices.BinarySearchFunc(w.open, f, func(a, b *replayed) int { return cmp.Or(a.end.Compare(b.end), -1) })
	w.open = slices.Insert(w.open, at, f)
	return nil
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

// advance ends the connections that end until a time, and samples the loads.
func (w *WhatIf) advance(to time.Time) {
	for len(w.open) > 0 || len(w.samples) > 0 {
		sample := len(w.samples) > 0 && !w.samples[0].After(to)
		if sample && (len(w.open) == 0 || w.samples[0].Before(w.open[0].end)) {
			w.sample()
			continue
		}
		if len(w.open) == 0 || w.open[0].end.After(to) {
			return
		}
		f := w.open[0]
		w.open = w.open[1:]
		w.now = f.end
		if f.has {
			f.conn.Observe(balance.Event{Kind: balance.Inactive, At: w.now.UnixNano()})
			f.conn.Observe(balance.Event{Kind: balance.Ended, At: w.now.UnixNano()})
		}
		f.was.stop(f.end.Sub(f.time))
		f.is.stop(f.end.Sub(f.time))
	}
}

func (w *WhatIf) sample() {
	taken := samples - len(w.samples)
	w.samples = w.samples[1:]
	for _, endpoints := range w.loads {
		for _, e := range endpoints {
			e.Recorded.sample(taken)
			e.Now.sample(taken)
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
	fmt.Fprintf(&b, "%s: %d to the same endpoint, %d elsewhere", counted(r.Flows, "flow"), r.Same, r.Elsewhere)
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
		fmt.Fprintf(&b, "\n%d of %s have no end: those that were open count until the end of the log, and those of a log without states for no time (nfqproxy flows -o jsonl has states)\n", r.Unknown, counted(r.Flows, "flow"))
	}
	if r.Others > 0 {
		fmt.Fprintf(&b, "%s of other nodes are left out\n", counted(r.Others, "record"))
	}
	n, err := to.Write(b.Bytes())
	return int64(n), err
}
