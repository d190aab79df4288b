// Package history keeps flows in Parquet files, and reads them. A [Recorder] writes the files of a directory, a [History] reads
// them as an [observe.Observer]. docs/reference/history.md describes the files for other programs.
package history

import (
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Version is the version of the columns. It is incremented when a column changes its meaning or is removed; new columns do not
// change it.
const Version = 1

// row is one state of a flow: the columns of a file. Of several rows with an id, that with the latest Recorded is valid.
// docs/reference/history.md describes the columns. The zero value of an optional column is NULL.
//
// Addresses, ports and lists of endpoints are columns of their own with few distinct values, so that a dictionary keeps
// them in some bits.
type row struct {
	ID       string `parquet:"id,delta"`
	Recorded int64  `parquet:"recorded,timestamp(microsecond),delta"`
	Node     string `parquet:"node,dict,optional"`
	Time     int64  `parquet:"time,timestamp(microsecond),delta"`

	// Proxy and Outdated are of flows that another service proxy decided.
	Proxy    string  `parquet:"proxy,dict,optional"`
	Outdated float64 `parquet:"outdated,optional"`

	Verdict  string `parquet:"verdict,dict"`
	Reason   string `parquet:"reason,dict"`
	Protocol string `parquet:"protocol,dict"`

	Source          string `parquet:"source,dict"`
	SourcePort      uint16 `parquet:"source_port"`
	SourcePod       string `parquet:"source_pod,dict,optional"`
	SourceNode      string `parquet:"source_node,dict,optional"`
	SourceHost      string `parquet:"source_host,dict,optional"`
	Local           bool   `parquet:"local"`
	Destination     string `parquet:"destination,dict"`
	DestinationPort uint16 `parquet:"destination_port,dict"`

	Service      string  `parquet:"service,dict,optional"`
	Entry        string  `parquet:"entry,dict,optional"`
	Branch       string  `parquet:"branch,dict,optional"`
	Policy       string  `parquet:"policy,dict,optional"`
	Endpoint     string  `parquet:"endpoint,dict,optional"`
	EndpointPort uint16  `parquet:"endpoint_port,dict,optional"`
	EndpointPod  string  `parquet:"endpoint_pod,dict,optional"`
	EndpointNode string  `parquet:"endpoint_node,dict,optional"`
	Probability  float64 `parquet:"probability,dict,optional"`
	// Candidates and Excluded are lists with spaces between: ADDRESS:PORT, and ADDRESS:PORT=REASON.
	Candidates     string `parquet:"candidates,dict,optional"`
	CandidateCount int32  `parquet:"candidate_count,dict"`
	Excluded       string `parquet:"excluded,dict,optional"`

	MasqueradeReason  string `parquet:"masquerade_reason,dict,optional"`
	MasqueradeRule    string `parquet:"masquerade_rule,dict,optional"`
	MasqueradeAddress string `parquet:"masquerade_address,dict,optional"`
	Masquerade        bool   `parquet:"masquerade"`
	Conntrack         string `parquet:"conntrack,dict,optional"`
	Error             string `parquet:"error,dict,optional"`
	Generation        int64  `parquet:"generation,delta"`

	// Nanoseconds, rounded up to hundreds; all are NULL without AcceptedNs.
	WaitedNs   int32 `parquet:"waited_ns,optional"`
	DecidedNs  int32 `parquet:"decided_ns,optional"`
	WrittenNs  int32 `parquet:"written_ns,optional"`
	AcceptedNs int32 `parquet:"accepted_ns,optional"`

	State           string `parquet:"state,dict,optional"`
	Since           int64  `parquet:"since,timestamp(microsecond),delta,optional"`
	Over            bool   `parquet:"over"`
	Answered        bool   `parquet:"answered"`
	AnsweredAfterUs int64  `parquet:"answered_after_us,delta,optional"`
	DurationUs      int64  `parquet:"duration_us,delta,optional"`
	KernelState     string `parquet:"kernel_state,dict,optional"`
	SeenSource      string `parquet:"seen_source,dict,optional"`
	SeenSourcePort  uint16 `parquet:"seen_source_port,optional"`
	// Of one array, see counts.
	SentPackets     *int64 `parquet:"sent_packets,optional"`
	SentBytes       *int64 `parquet:"sent_bytes,optional"`
	ReceivedPackets *int64 `parquet:"received_packets,optional"`
	ReceivedBytes   *int64 `parquet:"received_bytes,optional"`
	Repeated        int32  `parquet:"repeated,dict"`
	Incomplete      bool   `parquet:"incomplete"`

	// More has the parts of a record that few records have, as JSON: see more.
	More string `parquet:"more,optional"`
}

// more are the parts of a record without columns.
type more struct {
	// Candidates, if their probabilities are not those that the columns say.
	Candidates []flow.Candidate `json:"candidates,omitempty"`
	Balance    *flow.Balance    `json:"balance,omitempty"`
	Shadows    []flow.Shadow    `json:"shadows,omitempty"`
	Held       *flow.Hold       `json:"held,omitempty"`
	Earlier    []flow.Attempt   `json:"earlier,omitempty"`
}

// pool keeps one copy of each string: rows wait in memory, and most of their strings are those of other rows.
type pool map[string]string

func (p pool) of(s string) string {
	if s == "" {
		return ""
	}
	known, ok := p[s]
	if !ok {
		known = strings.Clone(s) // records are cut from longer texts
		p[known] = known
	}
	return known
}

// rowOf converts a record with a time.
func rowOf(r *flow.Record, p pool) row {
	x := row{
		ID: r.ID, Node: p.of(r.Node), Time: r.Time.UnixMicro(), Proxy: p.of(r.Proxy), Outdated: r.Outdated,
		Verdict: p.of(r.Verdict), Reason: p.of(r.Reason), Protocol: p.of(r.Protocol), Local: r.Local,
		SourcePod: p.of(r.SourcePod), SourceNode: p.of(r.SourceNode), SourceHost: p.of(r.SourceHost),
		Service: p.of(r.Service), Entry: p.of(r.Entry), Branch: p.of(r.Branch), Policy: p.of(r.Policy),
		EndpointPod: p.of(r.Pod), EndpointNode: p.of(r.EndpointNode), CandidateCount: int32(len(r.Candidates)),
		Masquerade: r.Masquerade, MasqueradeReason: p.of(r.MasqueradeReason), MasqueradeRule: p.of(r.MasqueradeRule),
		MasqueradeAddress: p.of(r.MasqueradeAddress), Conntrack: p.of(r.Conntrack), Error: p.of(r.Error), Generation: int64(r.Generation),
	}
	x.Source, x.SourcePort = split(r.Source, p)
	x.Destination, x.DestinationPort = split(r.Destination, p)
	x.Endpoint, x.EndpointPort = split(r.Endpoint, p)
	m := more{Balance: r.Balance, Shadows: r.Shadows, Held: r.Held, Earlier: r.Earlier}
	x.setEndpoints(r, &m, p)
	if s := r.Stages; s != nil {
		if s.Waited != nil {
			x.WaitedNs = nanoseconds(*s.Waited)
		}
		x.DecidedNs, x.WrittenNs, x.AcceptedNs = nanoseconds(s.Decided), nanoseconds(s.Written), nanoseconds(s.Accepted)
	}
	if r.Life != nil {
		x.setLife(r.Life, p)
	}
	if m.Candidates != nil || m.Balance != nil || m.Shadows != nil || m.Held != nil || m.Earlier != nil {
		b, _ := json.Marshal(m) // no value of it has none
		x.More = string(b)
	}
	return x
}

func (x *row) setEndpoints(r *flow.Record, m *more, p pool) {
	var list []byte
	for _, c := range r.Candidates {
		list = append(append(list, c.Endpoint...), ' ')
		if c.Endpoint == r.Endpoint {
			x.Probability = c.Probability
		}
	}
	x.Candidates = p.of(string(list[:max(0, len(list)-1)]))
	list = list[:0]
	for _, e := range r.Excluded {
		list = append(append(append(append(list, e.Endpoint...), '='), e.Reason...), ' ')
	}
	x.Excluded = p.of(string(list[:max(0, len(list)-1)]))
	if !slices.Equal(x.candidates(r.Endpoint), r.Candidates) {
		m.Candidates = r.Candidates
	}
}

func (x *row) setLife(l *flow.Life, p pool) {
	x.State, x.Since = p.of(l.State.String()), l.Since.UnixMicro()
	x.Over, x.Answered, x.Incomplete, x.Repeated = l.Over, l.Answered, l.Incomplete, int32(min(l.Repeated, math.MaxInt32))
	x.AnsweredAfterUs, x.DurationUs = microseconds(l.AnsweredAfter), microseconds(l.Duration)
	x.KernelState = p.of(l.KernelState)
	x.SeenSource, x.SeenSourcePort = split(l.SeenSource, p)
	if l.Sent != nil && l.Received != nil {
		c := &[4]int64{int64(l.Sent.Packets), int64(l.Sent.Bytes), int64(l.Received.Packets), int64(l.Received.Bytes)}
		x.SentPackets, x.SentBytes, x.ReceivedPackets, x.ReceivedBytes = &c[0], &c[1], &c[2], &c[3]
	}
}

// record is the inverse of rowOf, as far as the columns have it.
func (x *row) record() *flow.Record {
	at := time.UnixMicro(x.Time).UTC()
	r := &flow.Record{
		Version: flow.Version, ID: x.ID, Node: x.Node, Time: &at, Proxy: x.Proxy, Outdated: x.Outdated,
		Verdict: x.Verdict, Reason: x.Reason, Protocol: x.Protocol, Local: x.Local,
		Source: join(x.Source, x.SourcePort), Destination: join(x.Destination, x.DestinationPort), Endpoint: join(x.Endpoint, x.EndpointPort),
		SourcePod: x.SourcePod, SourceNode: x.SourceNode, SourceHost: x.SourceHost,
		Service: x.Service, Entry: x.Entry, Branch: x.Branch, Policy: x.Policy, Pod: x.EndpointPod, EndpointNode: x.EndpointNode,
		Masquerade: x.Masquerade, MasqueradeReason: x.MasqueradeReason, MasqueradeRule: x.MasqueradeRule,
		MasqueradeAddress: x.MasqueradeAddress, Conntrack: x.Conntrack, Error: x.Error, Generation: uint64(x.Generation),
		Excluded: []flow.Excluded{},
	}
	for e := range strings.FieldsSeq(x.Excluded) {
		endpoint, reason, _ := strings.Cut(e, "=")
		r.Excluded = append(r.Excluded, flow.Excluded{Endpoint: endpoint, Reason: reason})
	}
	var m more
	if x.More != "" {
		_ = json.Unmarshal([]byte(x.More), &m) // what a later version has is left out
	}
	r.Balance, r.Shadows, r.Held, r.Earlier = m.Balance, m.Shadows, m.Held, m.Earlier
	if r.Candidates = m.Candidates; r.Candidates == nil {
		r.Candidates = x.candidates(r.Endpoint)
	}
	if x.AcceptedNs != 0 {
		r.Stages = &flow.Stages{Decided: seconds(x.DecidedNs), Written: seconds(x.WrittenNs), Accepted: seconds(x.AcceptedNs)}
		if x.WaitedNs != 0 {
			waited := seconds(x.WaitedNs)
			r.Stages.Waited = &waited
		}
	}
	if x.State != "" {
		r.Life = x.life()
	}
	return r
}

// candidates are those of the columns: all have the same probability or, if that is not 1, the endpoint alone has one.
func (x *row) candidates(endpoint string) []flow.Candidate {
	list := []flow.Candidate{}
	even := x.CandidateCount > 0 && x.Probability == 1/float64(x.CandidateCount)
	for e := range strings.FieldsSeq(x.Candidates) {
		c := flow.Candidate{Endpoint: e}
		if even || e == endpoint {
			c.Probability = x.Probability
		}
		list = append(list, c)
	}
	return list
}

func (x *row) life() *flow.Life {
	l := &flow.Life{
		Since: time.UnixMicro(x.Since).UTC(), Over: x.Over, Answered: x.Answered, Incomplete: x.Incomplete, Repeated: uint32(x.Repeated),
		AnsweredAfter: float64(x.AnsweredAfterUs) / 1e6, Duration: float64(x.DurationUs) / 1e6,
		KernelState: x.KernelState, SeenSource: join(x.SeenSource, x.SeenSourcePort),
	}
	_ = l.State.UnmarshalText([]byte(x.State)) // never fails
	if x.SentPackets != nil && x.SentBytes != nil && x.ReceivedPackets != nil && x.ReceivedBytes != nil {
		l.Sent = &flow.Count{Packets: uint64(*x.SentPackets), Bytes: uint64(*x.SentBytes)}
		l.Received = &flow.Count{Packets: uint64(*x.ReceivedPackets), Bytes: uint64(*x.ReceivedBytes)}
		at := time.UnixMicro(max(x.Since, x.Time+x.DurationUs)).UTC() // of a flow that is over, its end
		l.CountedAt = &at
	}
	return l
}

// split splits ADDRESS:PORT.
func split(s string, p pool) (address string, port uint16) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return p.of(s), 0
	}
	return p.of(a.Addr().String()), a.Port()
}

// join is the inverse of split.
func join(address string, port uint16) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return netip.AddrPortFrom(a, port).String()
}

// nanoseconds is zero, which is NULL, only for zero.
func nanoseconds(seconds float64) int32 {
	if seconds == 0 {
		return 0
	}
	return int32(100 * min(max(1, math.Ceil(seconds*1e7-1e-6)), math.MaxInt32/100))
}

func seconds(ns int32) float64 { return float64(ns) / 1e9 }

func microseconds(seconds float64) int64 { return int64(math.Round(seconds * 1e6)) }
