package netfilter

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// Assumption is the treatment of a match or target with an unknown effect.
type Assumption uint8

// The assumptions.
const (
	AssumeNothing Assumption = iota // the walk ends there
	AssumeMatch                     // it matches; an unknown target has no effect
	AssumeNoMatch                   // it does not match; a rule with an unknown target is skipped
)

// Options are the options of a machine.
type Options struct {
	Assume Assumption
	// AllRules gives every rule that did not match a step of its own, instead of one step for
	// several in a row.
	AllRules bool
	// FreshCounters: the rules have just been loaded, so that the counters of -m statistic --mode
	// nth are known. On a running host they are unknown, and the rules match at random.
	FreshCounters bool
	// Doubts is for many packets of which only the end is wanted: results have no Steps, and where a
	// rule may match or not, a way follows each: see [Result.Doubts]. Assume has no effect.
	Doubts bool
	// IPVS are the host's virtual servers; nil: they are not known.
	IPVS *ipvs.State
}

// Machine is the rules of one family on a host. It is immutable and safe for concurrent
// use.
type Machine struct {
	family iptables.Family
	// backends are the rules of each back end of iptables that has some, in the order of the dumps.
	backends []*backend
	hooks    *hookChains
	sets     map[string]*iptables.Set
	network  *network
	options  Options
	servers  *virtualServers // nil: the host's service proxy does not use IPVS
}

// backend is the rules of one back end of iptables: its chains are hooks of their own.
type backend struct {
	dump *iptables.Dump
	// nftables: it is nf_tables.
	nftables bool
	chains   map[string]map[string]*chain // by table and name
	lacks    map[string]bool              // tables that the host has, see lacking and lackingHook
}

// lacking returns the tables that the dump does not have, though kube-proxy's chains in others show that the host has them: as
// iptables-save -t nat prints one.
func lacking(d *iptables.Dump) map[string]bool {
	missing, shows := make(map[string]bool), false
	for name, chains := range map[string][]string{"nat": {kubechains.Services}, "filter": {kubechains.Services, kubechains.Forward}} {
		t := d.Table(name)
		missing[name] = t == nil
		shows = shows || t != nil && slices.ContainsFunc(chains, t.Has)
	}
	if !shows || d.Listing != nil && !d.Listing.Cut || d.Ruleset != nil {
		return nil
	}
	return missing
}

// lacksNAT reports whether the dump has table filter alone, as iptables-save -t filter prints it. A host with services has table nat, too.
func (b *backend) lacksNAT() bool {
	return b.dump.Listing == nil && b.dump.Ruleset == nil && len(b.dump.Tables) == 1 && b.dump.Tables[0].Name == filter.String()
}

// New makes a machine of the rules of a host: one dump, or those of both back ends, all of one
// family. sets may be nil; it, the dumps and the host are kept, and must not change anymore. The
// error names the line of a rule that iptables-restore would not load, either.
func New(dumps []*iptables.Dump, sets map[string]*iptables.Set, h *Host, o Options) (*Machine, error) {
	family := dumps[0].Family
	m := &Machine{family: family, sets: sets, network: newNetwork(h, family), options: o, servers: newVirtualServers(dumps, sets)}
	var faults []error
	for _, d := range dumps {
		b := &backend{dump: d, chains: make(map[string]map[string]*chain), lacks: lacking(d)}
		m.backends = append(m.backends, b)
		for _, t := range d.Tables {
			b.nftables = b.nftables || ofNFTables(t)
			if err := b.compile(t); err != nil {
				faults = append(faults, err)
			}
		}
	}
	m.hooks = hooksOf(m.backends)
	return m, errors.Join(faults...)
}

// Reversed returns the machine of the same rules in which, at each hook, those of one back end come in the other order.
// The kernel's order is that in which the tables were made, which dumps do not show. nil: there is one back end only.
func (m *Machine) Reversed() *Machine {
	if len(m.backends) < 2 {
		return nil
	}
	other := *m
	other.backends = slices.Clone(m.backends)
	slices.Reverse(other.backends)
	other.hooks = hooksOf(other.backends)
	return &other
}

// Verdict is the result for a packet.
type Verdict uint8

// The verdicts.
const (
	Sent      Verdict = iota // left the host by Result.Out
	Delivered                // reached the host's own sockets
	Dropped
	Rejected // refused, with the reply Result.With
	Queued   // waits for a program
	Stopped  // the walk reached an unknown effect: see Result.Unknown
	Returned // a single chain was walked to its end: see Machine.Find
)

var verdictNames = []string{"sent", "delivered", "dropped", "rejected", "queued", "unknown", "returned"}

func (v Verdict) String() string { return verdictNames[v] }

// Result is the walk of a packet and its end.
type Result struct {
	// Probability is that of the choices on the way; 1 if there were none.
	Probability float64
	// Forks are the positions in Steps of those with a random choice of the kernel.
	Forks []int
	Steps []flow.Step
	// Path are the rules that matched, in order.
	Path    []*iptables.Rule
	Verdict Verdict
	// By is the rule with the verdict; nil: no rule. Why is then, or for a verdict of routing, one
	// sentence.
	By  *iptables.Rule
	Why string
	// Table and Chain are the place of By or, for Dropped without a rule, of the chain whose policy
	// drops the packet; empty: routing decided.
	Table, Chain string
	// NoWay: the host's routes, or its sysctls for forwarding and loopback addresses, have no way for the packet.
	NoWay bool
	// Cut is the reason why the walk was cut off, one sentence, if it took more than its [Work];
	// Verdict is Stopped then. Empty: it was not cut off.
	Cut string
	// With is the reply to a Rejected packet.
	With   iptables.RejectWith
	resets bool // it is a reset, and has a route
	// Packet is the packet at the end of the walk, and Out its output device.
	Packet iptables.Packet
	Out    string
	// Entry is its connection's entry; nil if it has none. It belongs to the State.
	Entry    *Entry
	Reply    bool // the packet is in the reply direction
	Tracking Tracking
	// Unknown is the match with an unknown result; valid iff Verdict is Stopped, and nil if By's
	// target is unknown or a chain is missing.
	Unknown iptables.Match
	// Assumptions are the assumptions of the walk, one sentence each.
	Assumptions []string
	// Doubts are the forks that are not choices of an endpoint by kube-proxy; see [Options.Doubts].
	Doubts []Doubt
}

// Explore follows all ways of a packet, in the order of the rules, not of the probabilities. begin
// makes the initial state of each way; nil: that of a host that has just booted. At most limit
// ways are followed; rest is the probability of the others.
func (m *Machine) Explore(p iptables.Packet, begin func() *State, limit int) (ways []Way, rest float64) {
	return m.ExploreFrom(nil, p, begin, limit, NewWork())
}

// ExploreFrom is Explore for a walk that begins in a chain, as the first packet of a connection,
// and ends with it. A nil start is the beginning of the whole walk. It stays within the given
// work: only the first way may be cut off, others are left out.
func (m *Machine) ExploreFrom(start *Start, p iptables.Packet, begin func() *State, limit int, work *Work) (ways []Way, rest float64) {
	rest = m.Each(start, p, begin, limit, work, func(w Way) { ways = append(ways, w) })
	return ways, rest
}

// Each is ExploreFrom for ways that need not be kept: begin may return a state again that another way
// has used.
func (m *Machine) Each(start *Start, p iptables.Packet, begin func() *State, limit int, work *Work, see func(Way)) (rest float64) {
	var s script
	rest = 1
	for n := 0; ; {
		state := &State{}
		if begin != nil {
			state = begin()
		}
		r := m.walk(start, p, state, &s, work)
		if r.Cut != "" && n > 0 {
			return rest
		}
		r.Probability = s.probability()
		rest -= r.Probability
		see(Way{r, state})
		if n++; !s.next() {
			return 0
		}
		if n >= limit || work.spent() != "" {
			return rest
		}
	}
}

// Way is one of the ways of a packet, and the state after it.
type Way struct {
	*Result
	State *State
}

// Send follows one packet, with random choices. The state changes.
func (m *Machine) Send(p iptables.Packet, s *State, r Rand) *Result {
	return m.SendFrom(nil, p, s, r, NewWork()).Result
}

// SendFrom is Send for a walk that begins in a chain, within the given work: see ExploreFrom.
func (m *Machine) SendFrom(start *Start, p iptables.Packet, s *State, r Rand, work *Work) Way {
	return Way{m.walk(start, p, s, drawing{r}, work), s}
}

// Answer returns the reply to the packet of a result: from the destination that it reached, to its
// source. It arrives on the device by which the other one left, or originates on the host. ok is
// false if the packet reached no destination, or many.
func (r *Result) Answer() (p iptables.Packet, ok bool) {
	to := r.Packet.Destination.Addr()
	if r.Verdict != Sent && r.Verdict != Delivered || to.IsMulticast() || to == allOnes {
		return iptables.Packet{}, false
	}
	p = iptables.Packet{
		Protocol: r.Packet.Protocol, Source: r.Packet.Destination, Destination: r.Packet.Source,
		ICMPID: r.Packet.ICMPID, Length: r.Packet.Length, TTL: 64,
		Supposed: iptables.FactMAC | iptables.FactOwner | iptables.FactLength | iptables.FactTOS | iptables.FactTTL | iptables.FactOptions,
	}
	switch {
	case p.Protocol == protoTCP:
		p.Flags = iptables.SYN | iptables.ACK
		p.TCPOptions, p.MSS = r.Packet.TCPOptions, r.Packet.MSS
	case hasICMP(p.Protocol):
		p.ICMPType = icmpAnswer(p.Protocol, r.Packet.ICMPType)
	case p.Protocol == protoSCTP:
		p.Chunks = []iptables.ChunkType{{Type: 2}} // INIT ACK
	}
	if r.Verdict == Delivered {
		p.Local, p.Owner = true, &iptables.SocketOwner{}
	} else {
		p.InInterface = r.Out
	}
	return p, true
}

// walk follows a packet from its beginning, or through one chain.
func (m *Machine) walk(start *Start, p iptables.Packet, s *State, c chooser, work *Work) *Result {
	r := &Result{Probability: 1}
	w := work.walkFor(m)
	*w = walk{machine: m, state: s, chooser: c, result: r, work: work, quiet: m.options.Doubts}
	w.Context = iptables.Context{Packet: p, Host: w}
	if !p.Local {
		w.In = p.InInterface
	}
	if start == nil {
		w.run()
	} else {
		w.single(start)
	}
	r.Packet, r.Reply, r.Tracking = w.Packet, w.reply, w.tracking
	if w.tracked { // else it is a template
		r.Entry = w.entry
	}
	if r.Verdict == Sent {
		r.Out = w.Out
	}
	return r
}

// DeviceTo is the device that packets to an address leave by; empty: none.
func (m *Machine) DeviceTo(a netip.Addr) string {
	if r := m.network.route(a); r.Type == Unicast {
		return r.Interface
	}
	return ""
}

// On returns the machine of the same rules on another host.
func (m *Machine) On(h *Host) *Machine {
	other := *m
	other.network = newNetwork(h, m.family)
	return &other
}

// With returns the machine of the same rules with other options.
func (m *Machine) With(o Options) *Machine {
	other := *m
	other.options = o
	return &other
}

// Route finds the route to an address.
func (m *Machine) Route(to netip.Addr) Route { return m.network.route(to) }

// Place sets the origin of a packet by its source: local if that is the host's own address; else
// its given device or, if that does not exist, the device that leads to its source.
func (m *Machine) Place(p *iptables.Packet) {
	from := p.Source.Addr()
	if m.network.isLocal(from) {
		p.Local, p.InInterface = true, ""
	} else if m.network.device(p.InInterface) == nil {
		p.InInterface = m.network.back(from, p.Destination.Addr(), "", 0).Interface
	}
}

// Start is a chain that a walk may start in, instead of at a hook.
type Start struct {
	chain *chain
	hook  Hook
}

// Find finds the chain that is named "KUBE-SERVICES" or, where several tables have one of that
// name, "nat/KUBE-SERVICES". For rules that depend on the hook, it is the first from which a local
// or an arriving packet can reach the chain.
func (m *Machine) Find(name string, local bool) (*Start, error) {
	var found []*chain
	for _, b := range m.backends {
		for _, t := range b.tables() {
			plain := strings.TrimPrefix(name, t+"/") // of nftables "ip kube-proxy"
			if plain == name {
				plain = strings.TrimPrefix(name, t[strings.LastIndexByte(t, ' ')+1:]+"/")
			}
			for _, chain := range []string{name, plain} { // kube-proxy has slashes in names
				if c := b.chains[t][chain]; c != nil && !slices.Contains(found, c) && (c.line != 0 || len(c.rules) > 0) {
					found = append(found, c)
				}
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("there is no chain %s among the rules", name)
	case 1:
		return &Start{found[0], m.hookOf(found[0], local)}, nil
	}
	var names []string
	for _, c := range found {
		full := c.table + "/" + c.name
		if slices.Contains(names, full) {
			return nil, fmt.Errorf("both back ends have a chain %s: give the rules of one of them only", full)
		}
		names = append(names, full)
	}
	return nil, fmt.Errorf("several tables have a chain %s: write %s", name, strings.Join(names, " or "))
}

// tables are the names of the tables: of iptables, in the order in which packets meet them.
func (b *backend) tables() (names []string) {
	if !b.native() {
		return tableNames[:]
	}
	for _, t := range b.dump.Tables {
		names = append(names, t.Name)
	}
	return names
}

// hookOf returns a hook from which the chain is reached.
func (m *Machine) hookOf(c *chain, local bool) Hook {
	order := []Hook{Prerouting, Input, Forward, Postrouting, Output}
	if local {
		order = []Hook{Output, Postrouting, Input, Prerouting, Forward}
	}
	for _, h := range order {
		for _, b := range slices.Concat(m.hooks.at[h], m.hooks.nat[h]) {
			if b.chain != nil && b.table == c.table && reaches(b.chain, c, make(map[*chain]bool)) {
				return h
			}
		}
	}
	return order[0] // no hook leads there, or the listing does not show it
}

func reaches(from, to *chain, seen map[*chain]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for i := range from.rules {
		for next := range from.rules[i].leadsTo(from) {
			if !seen[next] && reaches(next, to, seen) {
				return true
			}
		}
	}
	return false
}

// leadsTo are the chains that a rule of a chain jumps or goes to.
func (r *rule) leadsTo(in *chain) iter.Seq[*chain] {
	return func(yield func(*chain) bool) {
		if r.jump != nil {
			yield(r.jump)
			return
		}
		t, ok := r.Target.(iptables.NativeTarget)
		if !ok {
			return
		}
		for _, name := range t.Chains() {
			if next := in.in[name]; next != nil && !yield(next) {
				return
			}
		}
	}
}

// Check returns an error if the packet is not valid for this machine.
func (m *Machine) Check(p *iptables.Packet) error {
	is4 := m.family != iptables.IPv6
	for _, a := range []netip.Addr{p.Source.Addr(), p.Destination.Addr()} {
		if a.Is4() != is4 {
			other, program := iptables.IPv6, "ip6tables-save"
			if a.Is4() {
				other, program = iptables.IPv4, "iptables-save"
			}
			return fmt.Errorf("%s is not an %s address, but the rules are of %s: %s prints those of %s", a, m.family, m.family, program, other)
		}
	}
	return nil
}
