// Package survey follows the first packet of a connection to every service that kube-proxy's rules on
// a host have, from every kind of source, to its end in the simulated kernel, and finds the rules and
// policies that are in the way.
package survey

import (
	"cmp"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Survey is the result of following connections through a node's rules.
type Survey struct {
	// Nodes are the services of each dump.
	Nodes []*audit.Node
	// Ports are the service ports, Destinations their addresses with ports, and Connections those that
	// were followed, from the Sources; of the Judged ones at least one way has an end that is known, and of the Partly ones
	// among them another way has none.
	Ports, Destinations, Connections, Judged, Partly int
	Sources                                          []Source
	// Losses are the reasons why connections fail, in the order of the first one.
	Losses []*Loss
	// Refused are the service ports without an endpoint, and NoneHere those with policy Local and none
	// on this node: kube-proxy's rules reject and drop packets to these destinations.
	Refused, NoneHere []Destinations
	// Skipped lists what was not examined, one sentence each.
	Skipped []string
	// Guesses are assumptions about the host, which the rules do not show.
	Guesses []netfilter.Guess
	// IPVS: virtual servers translate, as documented.
	IPVS bool
	// Strays are endpoints whose packets go to the default gateway, as the node has no route of its own to them.
	Strays []Stray
	// Unanswered are neighbours that did not answer the node, and that packets for endpoints go to.
	Unanswered []Unanswered
	// Reached are the endpoints that the connection of [Known.Only] reaches, and whose replies come back.
	Reached []netip.AddrPort
}

// Destinations are the destinations of one service port.
type Destinations struct {
	Title string
	Lines []int // of kube-proxy's rules
	To    []string
}

// Known is what is known about a host besides its rules. The zero value is nothing.
type Known struct {
	Host *netfilter.Host // nil: nothing
	Sets map[string]*iptables.Set
	// Pods are the networks of this node's pods, at most one of each family; none: not known.
	Pods []netip.Prefix
	// IPVS are the virtual servers, to which connections are followed unless the rules are those of another mode of the
	// service proxy; nil: not known. Services is the node's service table, which has their names; nil: not known.
	IPVS     *ipvs.State
	Services *decision.Table
	// Only is the one connection to follow, instead of those to all services; nil: all.
	Only *Connection
	// TraceFlags are the flags with which nfqproxy trace reads the same files; empty: not known. Run does not use them.
	TraceFlags string
}

// Run surveys the rules of a host: one dump, or those of both back ends. The error names a rule that
// cannot be simulated.
func Run(dumps []*iptables.Dump, known Known) (*Survey, error) {
	s := &surveyor{dumps: dumps, known: known, survey: new(Survey), losses: make(map[lossKey]*Loss)}
	host := s.read()
	s.place(host)
	forwarded := s.forwarded()
	var err error
	if s.machine, err = s.machineOf(host); err != nil {
		return nil, err
	}
	s.destinations()
	s.only()
	s.indexVerdicts()
	for _, n := range s.survey.Nodes {
		s.refusals = append(s.refusals, n.Refusals())
	}
	s.limits()
	if device, err := s.openDevice(); err != nil {
		return nil, err
	} else if device != "" {
		of := *cmp.Or(known.Host, new(netfilter.Host))
		of.PodDevice, known.Host = device, &of
		return Run(dumps, known)
	}
	if forwarded != nil && len(s.targets) == 0 {
		s.targets = append(s.targets, *forwarded)
	}
	failed := make(map[lossPlace]bool)
	for _, w := range s.walkAll(s.machine, nil) {
		s.survey.Connections += w.connections
		s.survey.Judged += w.judged
		s.survey.Partly += w.partly
		s.cut += w.cut
		s.local = distinct.Append(s.local, w.local...)
		s.queues = distinct.Append(s.queues, w.queues...)
		s.survey.Reached = distinct.Append(s.survey.Reached, w.reached...)
		for i := range w.ends {
			e := &w.ends[i]
			if s.record(e); e.outcome.lost() {
				failed[placeOf(e)] = true
			}
		}
	}
	if err := s.followScenarios(failed); err != nil {
		return nil, err
	}
	if err := s.followOtherNodes(failed); err != nil {
		return nil, err
	}
	s.followTunnels()
	s.followNeighbours()
	s.followHealthChecks()
	s.atNeighbours()
	if forwarded != nil { // no connection to a service
		s.survey.Connections, s.survey.Judged = 0, 0
		for _, l := range s.order {
			to := l.Example.To.Addr()
			l.Example.Route = fmt.Sprintf("%s=%s", nodeNetwork(to, 0), deviceTo(s.host, to, ""))
		}
	}
	s.finish()
	return s.survey, nil
}

// read reads the services, and guesses the host at the same time.
func (s *surveyor) read() *netfilter.Host {
	s.survey.Nodes = make([]*audit.Node, len(s.dumps))
	var all sync.WaitGroup
	for i, d := range s.dumps {
		all.Go(func() { s.survey.Nodes[i] = audit.Read(d) })
	}
	known := new(netfilter.Host)
	if s.known.Host != nil {
		*known = *s.known.Host
	}
	known.NoQueueListeners = true
	var ofIPVS []netfilter.Guess
	if s.known.IPVS != nil {
		known.Interfaces = slices.Clone(known.Interfaces)
		ofIPVS = known.AddVirtualServers(s.known.IPVS, s.dumps[0].Family)
	}
	host, guesses := netfilter.GuessHost(s.dumps, known, nil)
	all.Wait()
	s.survey.Guesses = append(ofIPVS, guesses...)
	s.readIPVS()
	return host
}

// readIPVS makes services of virtual servers, if they translate.
func (s *surveyor) readIPVS() {
	mode, _ := proxymode.ModeOf(s.dumps)
	if s.known.IPVS == nil || !mode.IPVS() && mode != proxymode.ModeUnknown {
		return
	}
	n := s.survey.Nodes[0]
	for _, other := range s.survey.Nodes {
		if other.Mode.IPVS() {
			n = other
		}
	}
	s.ipvs = n
	n.Services, n.Proxy.NodePortAddresses = audit.ServicesOfIPVS(s.known.IPVS, s.known.Sets, n.Family, s.known.Services)
	n.Proxy.LocalhostNodePorts = false // IPVS has no virtual server at 127.0.0.1
	s.survey.IPVS = len(n.Services) > 0
}

// machineOf is the machine of the rules on a host.
func (s *surveyor) machineOf(host *netfilter.Host) (*netfilter.Machine, error) {
	return netfilter.New(s.dumps, s.known.Sets, host, netfilter.Options{Doubts: true, IPVS: s.known.IPVS})
}

// maxWorkers is the maximum number of processors that a survey uses.
const maxWorkers = 4

// walkAll follows the connections to all targets, or to those that a function gives instead of them; nil: none. Each walker
// follows a part.
func (s *surveyor) walkAll(machine *netfilter.Machine, some func(*target) *target) []*walker {
	n := min(runtime.GOMAXPROCS(0), maxWorkers, 1+len(s.targets)/64)
	walkers := make([]*walker, n)
	var all sync.WaitGroup
	for i := range walkers {
		w := &walker{surveyor: s, machine: machine, work: netfilter.Work{Steps: 1}}
		walkers[i] = w
		all.Go(func() {
			for t := i * len(s.targets) / n; t < (i+1)*len(s.targets)/n; t++ {
				to := &s.targets[t]
				if some != nil {
					to = some(to)
				}
				if to != nil {
					w.visit(to)
				}
			}
		})
	}
	all.Wait()
	return walkers
}

// surveyor is the state of Run.
type surveyor struct {
	dumps   []*iptables.Dump
	known   Known
	survey  *Survey
	ipvs    *audit.Node // whose services are virtual servers; nil: none
	machine *netfilter.Machine
	host    *netfilter.Host
	targets []target
	address netip.Addr     // of the host
	sources [kinds]*Source // nil: there is none, or its packets cannot be followed

	one *Source // the only one, if one connection is followed

	podsIn    netip.Prefix // see podNetwork
	podsFound bool
	named     []*Source // pods that rules name

	losses  map[lossKey]*Loss
	order   []*Loss
	refused map[string]int
	none    map[string]int
	// tables are those of rules that keep packets from kube-proxy's translation.
	tables map[*iptables.Rule]string
	// refusals are kube-proxy's rules about destinations without endpoints, of each dump.
	refusals []map[audit.Destination]*iptables.Rule
	unknown  []*unknownEnds
	selves   bool             // endpoints are followed as their own clients
	cut      int              // connections with more ways than were followed
	local    []netip.AddrPort // see walker
	queues   []*iptables.Rule // see walker
}

// limits finds what the dumps do not show, and which sources' packets can be followed all the same.
func (s *surveyor) limits() {
	shows := func(table, chain string) bool {
		for i, d := range s.dumps {
			if d.Ruleset != nil { // it has all chains that there are
				return true
			}
			if mode := s.survey.Nodes[i].Mode; (!mode.IPVS() || s.ipvs != nil) && mode != proxymode.ModeUserspace && d.Table(table) != nil && d.Lists(table, chain) {
				return true
			}
		}
		return false
	}
	for _, d := range s.dumps {
		if d.Listing != nil {
			for _, table := range d.Listing.Hidden {
				s.skip("table %s, which iptables does not print: give the output of nft list ruleset", table)
			}
		}
	}
	if len(s.targets) == 0 {
		return
	}
	if !shows("nat", "PREROUTING") {
		s.sources[Pod], s.sources[OtherPod], s.sources[Outside], s.named = nil, nil, nil, nil
		s.skip("connections from pods and from outside: chain PREROUTING of table nat is not in the file, or not whole")
	}
	if !shows("nat", "OUTPUT") {
		s.sources[Node] = nil
		s.skip("connections from the node itself: chain OUTPUT of table nat is not in the file, or not whole")
	}
	for _, chain := range []string{"FORWARD", "INPUT", "OUTPUT"} {
		if !shows("filter", chain) {
			s.skip("firewalls in chain %s of table filter: it is not in the file, or not whole", chain)
		}
	}
	for _, table := range []string{"raw", "mangle"} {
		if !slices.ContainsFunc(s.dumps, func(d *iptables.Dump) bool { return d.Ruleset != nil || d.Lists(table, "PREROUTING") }) {
			s.skip("rules of table %s: it is not in the file, or not whole", table)
		}
	}
	if !shows("nat", "POSTROUTING") {
		s.skip("masquerading: chain POSTROUTING of table nat is not in the file, or not whole")
	}
}

func (s *surveyor) skip(format string, args ...any) {
	s.survey.Skipped = append(s.survey.Skipped, fmt.Sprintf(format, args...))
}

// finish completes the survey.
func (s *surveyor) finish() {
	s.survey.Losses = s.order
	if s.survey.Judged == 0 {
		s.refusedByRules()
	}
	used := make(map[*Source]bool)
	for i := range s.targets {
		for _, from := range s.sourcesFor(&s.targets[i]) {
			used[from] = true
			s.selves = s.selves || from.Kind == Itself
		}
	}
	for _, from := range append(s.sources[:], s.named...) {
		if used[from] {
			s.survey.Sources = append(s.survey.Sources, *from)
		}
	}
	if s.selves {
		s.survey.Sources = append(s.survey.Sources, Source{Kind: Itself})
	}
	if len(s.targets) > maxTargets {
		s.skip("endpoints as their own clients, and 127.0.0.1, for all but the first %d addresses of services", maxTargets)
	}
	for _, a := range s.local {
		s.skip("whether a program of this node answers at %s: rules keep its packets from connection tracking and kube-proxy, and the address is this host's, as with NodeLocal DNSCache", a)
	}
	for _, r := range s.queues {
		s.skip("what a program at a netfilter queue decides, if one runs: %s (without one, the kernel lets the packets pass)", r)
	}
	s.gaps()
	if s.cut > 0 {
		s.skip("all endpoints of %s, which have more than %d ways", quantity.Count(s.cut, "connection"), maxWays)
	}
}
