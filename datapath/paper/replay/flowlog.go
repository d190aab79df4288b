package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// IsFlowLog reports whether a file with this beginning is a flow log, not a capture.
func IsFlowLog(begin []byte) bool {
	begin = bytes.TrimLeft(begin, " \t\r\n")
	return len(begin) > 0 && begin[0] == '{'
}

// Log decides the records of a flow log again, in their order, each with its recorded random
// number. Session affinity follows from the recorded decisions, not from the new ones, so that one
// difference does not cause others. A client that was bound before the log begins is bound by its
// first record.
type Log struct {
	// Generation restricts the comparison to records of that generation of the service table; 0:
	// all.
	Generation uint64

	table    *decision.Table
	affinity *affinity.Table
	known    map[client]bool // there was an earlier record
	pending  []binding       // of records of the time now
	now      time.Time
	summary  LogSummary
}

// client is a client of a service with session affinity.
type client struct {
	service  string
	protocol decision.Protocol
	addr     netip.Addr
}

// binding is a binding in a record.
type binding struct {
	service  *decision.ServicePort
	endpoint netip.AddrPort
	client   netip.Addr
}

// LogSummary counts the records of a flow log.
type LogSummary struct {
	Records     int
	Compared    int
	Different   int // records that would be decided differently
	Nodes       map[string]int
	Generations map[uint64]int // of the node's records
}

// Difference is one field of a record that would have another value.
type Difference struct {
	Line          int
	Record        *flow.Record // as it was recorded
	Field         string       // its name in JSON
	Recorded, Now string
}

// String returns the difference in one line.
func (d *Difference) String() string {
	return fmt.Sprintf("line %d: %s %s -> %s: %s: %s, now %s", d.Line, d.Record.Protocol, d.Record.Source, d.Record.Destination,
		d.Field, cmp.Or(d.Recorded, "none"), cmp.Or(d.Now, "none"))
}

// NewLog makes a replay of flow logs. A table whose node detects pods by interface is an error:
// records do not have the interface.
func NewLog(t *decision.Table) (*Log, error) {
	if err := interfaceNotNeeded(t); err != nil {
		return nil, err
	}
	l := &Log{
		table: t, known: make(map[client]bool),
		summary: LogSummary{Nodes: make(map[string]int), Generations: make(map[uint64]int)},
	}
	l.affinity = affinity.NewAt(func() time.Time { return l.now })
	return l, nil
}

// interfaceNotNeeded returns an error for a table whose decisions depend on the input interface.
func interfaceNotNeeded(t *decision.Table) error {
	if d := &t.Node().Detector; d.Bridge != "" || d.InterfacePrefix != "" {
		return errors.New("a flow log does not record the input interface, so pods cannot be detected by it: set another --detect-local-mode")
	}
	return nil
}

// Summary returns the counts so far.
func (l *Log) Summary() *LogSummary { return &l.summary }

// longestRecord bounds a line: services have thousands of endpoints at most, and
// records with steps name them all.
const longestRecord = 64 << 20

// Run replays a log to its end and calls differs for each difference. An error of
// the log names the line.
func (l *Log) Run(in io.Reader, differs func(*Difference) error) error {
	return eachLine(in, func(n int, line []byte) error { return l.line(n, line, differs) })
}

func (l *Log) line(n int, line []byte, differs func(*Difference) error) error {
	r, p, err := parse(line)
	if err != nil {
		return err
	}
	l.summary.Records++
	l.summary.Nodes[r.Node]++
	if r.Node != l.table.Node().Name {
		return nil
	}
	l.summary.Generations[r.Generation]++
	differences := l.compare(r, l.decide(r, p))
	if l.Generation != 0 && r.Generation != l.Generation {
		return nil
	}
	l.summary.Compared++
	if len(differences) > 0 {
		l.summary.Different++
	}
	for _, d := range differences {
		d.Line = n
		if err := differs(&d); err != nil {
			return err
		}
	}
	return nil
}

// packetOf returns the packet of a record.
func packetOf(r *flow.Record) (*decision.Packet, error) {
	p := &decision.Packet{Local: r.Local}
	var err error
	if p.Protocol, err = decision.ParseProtocol(r.Protocol); err != nil {
		return nil, err
	}
	if p.Source, err = netip.ParseAddrPort(r.Source); err != nil {
		return nil, fmt.Errorf("source %q: want an address with a port", r.Source)
	}
	if p.Destination, err = netip.ParseAddrPort(r.Destination); err != nil {
		return nil, fmt.Errorf("destination %q: want an address with a port", r.Destination)
	}
	if p.Source.Addr().Is4() != p.Destination.Addr().Is4() {
		return nil, fmt.Errorf("source %s and destination %s are of different families", r.Source, r.Destination)
	}
	return p, nil
}

// recorded is a Rand that returns the random number of a record.
type recorded struct{ *flow.Record }

// Float64 returns the random number. A record without one had no choice, or was decided by an
// earlier packet: then the number does not matter.
func (r recorded) Float64() float64 {
	if r.Draw == nil {
		return 0
	}
	return *r.Draw
}

// decide decides the flow of a record again.
func (l *Log) decide(r *flow.Record, p *decision.Packet) *flow.Record {
	// The daemon decides several packets at once, and binds clients afterwards: records of the
	// same time do not affect each other.
	if r.Time == nil || !r.Time.Equal(l.now) {
		for _, b := range l.pending {
			l.affinity.Bind(b.service, b.endpoint, b.client)
		}
		l.pending = l.pending[:0]
	}
	if r.Time != nil {
		l.now = *r.Time
	}
	d := decision.Decide(l.table, p, recorded{r}, l.affinity, nil)
	if s := d.ServicePort; s != nil && s.AffinitySeconds > 0 && s.Name.String() == r.Service {
		c := client{r.Service, p.Protocol, p.Source.Addr()}
		endpoint, err := netip.ParseAddrPort(r.Endpoint)
		if !l.known[c] && r.Reason == decision.Bound.String() && err == nil {
			l.affinity.Bind(s, endpoint, c.addr)
			d = decision.Decide(l.table, p, recorded{r}, l.affinity, nil)
		}
		// As the daemon binds: not for kept or failed entries. Records of simulations do not have
		// this.
		if err == nil && r.Conntrack != "kept" && r.Conntrack != "failed" {
			l.pending = append(l.pending, binding{s, endpoint, c.addr})
		}
		l.known[c] = true
	}
	now := flow.New(l.table, p, &d)
	if r.Conntrack == "kept" && d.Verdict == decision.DNAT {
		if endpoint, err := netip.ParseAddrPort(r.Endpoint); err == nil {
			now.SetKept(endpoint, r.Masquerade)
		}
	}
	return now
}

// compare finds the differences between decisions.
func (l *Log) compare(was, now *flow.Record) []Difference {
	var found []Difference
	field := func(name, recorded, now string) {
		if recorded != now {
			found = append(found, Difference{Record: was, Field: name, Recorded: recorded, Now: now})
		}
	}
	field("verdict", was.Verdict, now.Verdict)
	field("reason", was.Reason, now.Reason)
	field("service", was.Service, now.Service)
	field("entry", was.Entry, now.Entry)
	field("endpoint", was.Endpoint, now.Endpoint)
	field("candidates", candidates(was), candidates(now))
	field("masquerade", fmt.Sprint(was.Masquerade), fmt.Sprint(now.Masquerade))
	field("masqueradeReason", was.MasqueradeReason, now.MasqueradeReason)
	return found
}

// candidates lists them in their order, which is that of the table.
func candidates(r *flow.Record) string {
	var list []string
	for _, c := range r.Candidates {
		list = append(list, c.Endpoint)
	}
	return strings.Join(list, " ")
}

// Check returns an error if no record of the log could be compared; nil: some were.
func (l *Log) Check() error {
	s := &l.summary
	switch {
	case s.Compared > 0:
		return nil
	case s.Records == 0:
		return errors.New("there is no record in it")
	case len(s.Generations) == 0:
		return noneOf(l.table.Node().Name, s.Nodes)
	}
	return fmt.Errorf("no record of node %q is of generation %d: there are %s", l.table.Node().Name, l.Generation, s.generations())
}

// noneOf is the error that the records are of other nodes.
func noneOf[V any](node string, nodes map[string]V) error {
	return fmt.Errorf("no record is of node %q: there are those of %s; name one with --node", node, strings.Join(slices.Sorted(maps.Keys(nodes)), ", "))
}

// generations lists the number of records of each generation.
func (s *LogSummary) generations() string {
	var list []string
	for _, g := range slices.Sorted(maps.Keys(s.Generations)) {
		list = append(list, fmt.Sprintf("%d of generation %d", s.Generations[g], g))
	}
	return strings.Join(list, ", ")
}

// WriteTo prints the summary as text.
func (s *LogSummary) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d decided again", quantity.Count(s.Records, "record"), s.Compared)
	switch s.Different {
	case 0:
		b.WriteString(": no difference\n")
	default:
		fmt.Fprintf(&b, ": %d would be decided differently\n", s.Different)
	}
	if others := s.Records - s.ofNode(); others > 0 {
		fmt.Fprintf(&b, "  %6d  of other nodes\n", others)
	}
	if len(s.Generations) > 1 {
		fmt.Fprintf(&b, "  the log covers several service tables, and not all of them may match the objects: %s\n", s.generations())
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

func (s *LogSummary) ofNode() int {
	n := 0
	for _, of := range s.Generations {
		n += of
	}
	return n
}
