// Package trace follows one packet through the machine of package netfilter, and returns its
// possible ways: a Trace, for JSON and for text.
package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Version is the version of the schema. It increases when a field changes its meaning or is
// removed; new fields do not change it.
const Version = 1

// Trace is the result for one packet. SCHEMA.md describes it.
type Trace struct {
	Version     int    `json:"version"`
	Rules       string `json:"rules"`
	Protocol    string `json:"protocol"`
	Source      string `json:"source"` // empty: an address that the host chooses
	Destination string `json:"destination"`
	InInterface string `json:"inInterface,omitempty"`
	Local       bool   `json:"local"`
	Start       string `json:"start,omitempty"`
	// Incomplete is the information of a dump that a listing lacks.
	Incomplete []string `json:"incomplete,omitempty"`
	Notes      []string `json:"notes"`
	// Proxy is the service proxy of the host, if it is one whose translations are not in the rules, and what shows them.
	Proxy string `json:"proxy,omitempty"`
	// Conditions are what the result depends on besides the rules.
	Conditions []string `json:"conditions,omitempty"`
	// Assuming are those of the notes that the verdicts depend on, and that the rules leave open.
	Assuming []string `json:"assuming,omitempty"`
	Ways     []Way    `json:"ways"`
	// LeftOut is the probability of ways that are left out, because there are too many.
	LeftOut float64 `json:"untold,omitempty"`
	// Cut is what was left out because of the work limit, one sentence each.
	Cut []string `json:"cut,omitempty"`
}

// Way is one way that the packet may go.
type Way struct {
	Probability float64     `json:"probability"`
	Verdict     string      `json:"verdict"` // see netfilter.Verdict
	Why         string      `json:"why,omitempty"`
	Line        int         `json:"line,omitempty"`   // of the rule with the verdict
	Handle      uint64      `json:"handle,omitempty"` // of that rule, if it is of nftables and has no line
	File        string      `json:"file,omitempty"`   // that Line counts in; empty: all rules are of one file
	With        string      `json:"with,omitempty"`
	Out         string      `json:"outInterface,omitempty"`
	Source      string      `json:"source"` // in the end
	Destination string      `json:"destination"`
	Mark        string      `json:"mark"`
	Conntrack   *Conntrack  `json:"conntrack,omitempty"`
	Assumptions []string    `json:"assumptions"`
	Steps       []flow.Step `json:"steps"`
	Reply       *Way        `json:"reply,omitempty"`
	Later       *Way        `json:"later,omitempty"` // the client's next packet, after the reply

	// Answer: it is that of a reply, or of a packet after it.
	Answer bool `json:"-"`
	// Fork is the position in Steps of the first random choice; -1: there was none.
	Fork int `json:"-"`
	// Flag is the command's flag that sets the missing data at which the way ends; empty: none.
	Flag string `json:"-"`
	// Cut is the reason why the way was cut off; empty: it was not.
	Cut string `json:"-"`
}

// Conntrack is the connection's entry.
type Conntrack struct {
	State    string   `json:"state"`
	Original Tuple    `json:"original"`
	Reply    Tuple    `json:"reply"`
	Status   []string `json:"status"`
	Mark     string   `json:"mark"`
	Zone     uint16   `json:"zone,omitempty"`
	// SourcePorts and DestinationPorts are the first and last port of the range from which the
	// kernel selects one, if it does; the tuples have a possible one.
	SourcePorts      *[2]uint16 `json:"sourcePorts,omitempty"`
	DestinationPorts *[2]uint16 `json:"destinationPorts,omitempty"`
}

// Tuple is one direction of a connection.
type Tuple struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Question is the packet to follow, with options.
type Question struct {
	Rules  string // the name of the rules
	Packet iptables.Packet
	Start  string         // a chain; empty: the packet's whole way
	Reply  bool           // follow the reply, too
	Later  bool           // and then the client's next packet
	Rand   netfilter.Rand // random numbers; nil: all ways are followed
	Limit  int            // of ways; 0: DefaultLimit
	Notes  []netfilter.Guess
	Time   time.Time // the time, for rules with -m time; zero: unknown
	// Proxy is that of [Trace].
	Proxy string
	// Listing is that of the rules, if they are of a listing.
	Listing *iptables.Listing
}

// DefaultLimit is how many ways are followed.
const DefaultLimit = 1000

// Run follows the packet through the machine. The error is about the question.
func Run(m *netfilter.Machine, q *Question) (*Trace, error) {
	if err := m.Check(&q.Packet); err != nil {
		return nil, err
	}
	p := q.Packet
	t := &Trace{
		Version: Version, Rules: q.Rules, Protocol: iptables.ProtocolName(p.Protocol),
		Source: p.SourceText(), Destination: p.DestinationText(), InInterface: p.InInterface, Local: p.Local, Start: q.Start,
		Notes: []string{}, Proxy: q.Proxy,
	}
	if p.Local && p.Source.Addr().IsUnspecified() {
		t.Source = ""
	}
	if q.Listing != nil {
		for _, n := range q.Listing.Incomplete {
			t.Incomplete = append(t.Incomplete, n.String())
		}
	}
	var start *netfilter.Start
	if q.Start != "" {
		var err error
		if start, err = m.Find(q.Start, p.Local); err != nil {
			return nil, err
		}
	}
	work := netfilter.NewWork()
	begin := func() *netfilter.State { return &netfilter.State{Began: q.Time} }
	var ways []netfilter.Way
	if q.Rand != nil {
		ways = []netfilter.Way{m.SendFrom(start, p, begin(), q.Rand, work)}
	} else {
		ways, t.LeftOut = m.ExploreFrom(start, p, begin, cmp.Or(q.Limit, DefaultLimit), work)
	}
	if t.LeftOut > 0 {
		t.Cut = append(t.Cut, fmt.Sprintf("%d ways are followed; the others have the probability %s together", len(ways), strconv.FormatFloat(t.LeftOut, 'g', 3, 64)))
	}
	for i, w := range ways {
		way := wayOf(w.Result)
		if q.Reply || q.Later {
			way.Reply = reply(m, w, work)
		}
		if q.Later && way.Reply != nil {
			way.Later = later(m, p, w, work)
		}
		t.Ways = append(t.Ways, *way)
		t.noteCut(i+1, way)
	}
	t.addGuesses(m, q, start, ways)
	t.addConditions(m, q, start, ways)
	return t, nil
}

// mostCut bounds the sentences about ways that were cut off.
const mostCut = 10

// noteCut records where a way, its reply and the packet after it were cut off.
func (t *Trace) noteCut(number int, w *Way) {
	for _, c := range []struct {
		what string
		way  *Way
	}{{"way", w}, {"the reply of way", w.Reply}, {"the next packet of way", w.Later}} {
		switch {
		case c.way == nil || c.way.Cut == "":
		case len(t.Cut) < mostCut:
			t.Cut = append(t.Cut, fmt.Sprintf("%s %d: %s", c.what, number, c.way.Cut))
		case len(t.Cut) == mostCut:
			t.Cut = append(t.Cut, "more packets are cut off, see their ways")
		}
	}
}

// occurs reports whether an address of the network occurs in the packet's ways.
func occurs(ways []netfilter.Way, network netip.Prefix) bool {
	return slices.ContainsFunc(ways, func(w netfilter.Way) bool {
		in := []netip.AddrPort{w.Packet.Source, w.Packet.Destination}
		if w.Entry != nil {
			in = append(in, w.Entry.Original.Source, w.Entry.Original.Destination, w.Entry.Reply.Source, w.Entry.Reply.Destination)
		}
		return slices.ContainsFunc(in, func(p netip.AddrPort) bool { return network.Contains(p.Addr()) })
	})
}

// wayOf turns a result into a way.
func wayOf(r *netfilter.Result) *Way {
	w := &Way{
		Probability: r.Probability, Verdict: r.Verdict.String(), Why: r.Why, With: string(r.With), Out: r.Out,
		Source: r.Packet.SourceText(), Destination: r.Packet.DestinationText(), Mark: fmt.Sprintf("%#x", r.Packet.Mark),
		Assumptions: r.Assumptions, Steps: r.Steps, Fork: -1, Cut: r.Cut,
	}
	if r.By != nil {
		if w.Line, w.File = r.By.Line, r.By.File; w.Line == 0 {
			w.Handle = r.By.Handle
		}
	}
	if w.Assumptions == nil {
		w.Assumptions = []string{}
	}
	if w.Steps == nil {
		w.Steps = []flow.Step{}
	}
	switch r.Unknown.(type) {
	case iptables.SetMatch:
		w.Flag = "--sets"
	case iptables.MAC:
		w.Flag = "--mac"
	case iptables.String, iptables.U32:
		w.Flag = "--payload"
	}
	if r.By == nil && r.Table == "nat" && (r.Chain == "PREROUTING" || r.Chain == "OUTPUT") && strings.HasPrefix(r.Why, "chain ") { // and not of a missing table
		w.Flag = "--start"
	}
	if len(r.Forks) > 0 {
		w.Fork = r.Forks[0]
	}
	if r.Entry != nil {
		w.Conntrack = entry(r.Entry, r.Tracking)
	}
	return w
}

func entry(e *netfilter.Entry, t netfilter.Tracking) *Conntrack {
	tuple := func(t iptables.Tuple) Tuple {
		p := iptables.Packet{Protocol: t.Protocol, Source: t.Source, Destination: t.Destination}
		return Tuple{p.SourceText(), p.DestinationText()}
	}
	c := &Conntrack{
		State: t.String(), Original: tuple(e.Original), Reply: tuple(e.Reply), Status: []string{},
		Mark: fmt.Sprintf("%#x", e.Mark), Zone: e.Zone, SourcePorts: ports(e.SourcePorts), DestinationPorts: ports(e.DestinationPorts),
	}
	for _, s := range []struct {
		is   bool
		name string
	}{{e.SeenReply, "SEEN_REPLY"}, {e.Assured, "ASSURED"}, {e.Confirmed, "CONFIRMED"}, {e.SNAT, "SRC_NAT"}, {e.DNAT, "DST_NAT"}} {
		if s.is {
			c.Status = append(c.Status, s.name)
		}
	}
	return c
}

func ports(r *iptables.PortRange) *[2]uint16 {
	if r == nil {
		return nil
	}
	return &[2]uint16{r.First, r.Last}
}

// reply follows the reply of a way; nil: there is none.
func reply(m *netfilter.Machine, w netfilter.Way, work *netfilter.Work) *Way {
	p, ok := w.Answer()
	if !ok {
		return nil
	}
	if !p.Local && p.Source.Addr() == p.Destination.Addr() {
		return &Way{
			Probability: 1, Verdict: "answered", Source: p.SourceText(), Destination: p.DestinationText(), Mark: "0x0",
			Why:         fmt.Sprintf("%s got a packet from its own address and replies to itself: the reply does not return here, and nothing is translated back", p.Source.Addr()),
			Assumptions: []string{}, Steps: []flow.Step{}, Fork: -1,
		}
	}
	way := wayOf(m.SendFrom(nil, p, w.State, first{}, work).Result)
	way.Answer = true
	if !p.Local {
		way.Assumptions = append(way.Assumptions, fmt.Sprintf("that %s sends its reply to this host", p.Source.Addr()))
	}
	return way
}

// later follows another packet like the first one, now that the connection is known.
func later(m *netfilter.Machine, p iptables.Packet, w netfilter.Way, work *netfilter.Work) *Way {
	if p.Flags == iptables.SYN {
		p.Flags = iptables.ACK
	}
	if p.Source.Addr().IsUnspecified() && w.Entry != nil {
		p.Source = w.Entry.Original.Source
	}
	way := wayOf(m.SendFrom(nil, p, w.State, first{}, work).Result)
	way.Answer = true
	return way
}

// first is a Rand with which every random rule matches. Replies meet such rules in filter and
// mangle only, and rarely.
type first struct{}

func (first) Float64() float64 { return 0 }
