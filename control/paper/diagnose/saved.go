package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// Saved is what files show of a node, for packets of one address family.
type Saved struct {
	Node  string           // its name
	Dumps []*iptables.Dump // none: its rules are not known
	Known survey.Known
	// Differences are those between its rules, or virtual servers, and the objects; nil: not compared.
	Differences []audit.ServiceChange
	// Alone: the answer is from the node's rules, and not from objects.
	Alone bool
	// Daemon: nfqproxy serves the node, and the first of Dumps stands for its decisions ([ReplaceDaemon]).
	Daemon bool
}

// address is the destination of the packet at the node that decides; not valid: no packet gets that far.
func (a *Answer) address() netip.AddrPort {
	if a.Record == nil {
		return netip.AddrPort{}
	}
	return addrPort(a.Record.Destination)
}

// Family is the address family of the connection; FamilyUnknown: no packet gets to a node.
func (a *Answer) Family() iptables.Family {
	switch to := a.address().Addr(); {
	case to.Is4():
		return iptables.IPv4
	case to.Is6():
		return iptables.IPv6
	}
	return iptables.FamilyUnknown
}

// See adds to an answer what the node does with the connection, as files show it: the rules that drop it, and how they, or
// virtual servers of IPVS, differ from the objects. An error is about rules that cannot be simulated.
func (a *Answer) See(n *Saved) error {
	if n.Alone {
		a.by = "the rules show"
	}
	defer a.Settle()
	if !a.address().IsValid() {
		return nil
	}
	protocol, err := decision.ParseProtocol(a.Record.Protocol)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(n.Dumps, HasDaemon) { // there are no objects to replace it by
		a.Cause = &Finding{
			Code: NotShown, Text: fmt.Sprintf("nfqproxy serves %s: its daemon decides, which the bundle's rules do not show; others' rules do not count", n.Node),
			Do: "give the objects with --objects or --kubeconfig: then its decisions for them are followed through the node's rules",
		}
		a.Unless, a.Endpoints = "", nil
		return nil
	}
	if a.Node == n.Node {
		return a.seeDecision(n, protocol)
	}
	passed := false
	source, _, _ := nodepath.Outgoing(a.Record) // as the endpoint's node sees it, as far as it is known
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if e.Node != n.Node || e.Problem != nil || len(n.Dumps) == 0 {
			continue
		}
		passed = true
		found, _, _, err := n.follow(protocol, addrPort(source).Addr(), addrPort(e.Address))
		if err != nil {
			return err
		}
		if len(found) > 0 {
			e.Problem = &found[0]
		}
	}
	if passed {
		a.Notes = append(a.Notes, Finding{
			Code: RulesIncomplete, Text: fmt.Sprintf("the bundle is from %s, where an endpoint runs: its rules were followed from there; those of %s, which decides, are not known", n.Node, cmp.Or(a.Node, "the node")),
			Do: "collect a bundle on the other node, too",
		})
		if a.Cause == nil && !slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return e.Problem == nil }) {
			a.Cause = a.Endpoints[0].Problem
		}
		return nil
	}
	a.Notes = append(a.Notes, Finding{
		Code: RulesIncomplete, Text: fmt.Sprintf("the bundle is from %s, not from %s, which decides: its rules do not affect the connection", n.Node, cmp.Or(a.Node, "the node")),
		Do: "collect a bundle on the node that decides",
	})
	return nil
}

func addrPort(text string) netip.AddrPort {
	a, _ := netip.ParseAddrPort(text)
	return a
}

// seeDecision adds what the node that decides does.
func (a *Answer) seeDecision(n *Saved, protocol decision.Protocol) error {
	to := a.address()
	what := "its rules"
	if n.Daemon {
		what = "nfqproxy's decisions for the objects, and the node's rules,"
	}
	var causes []Finding
	for i := range n.Differences {
		c := &n.Differences[i]
		if s := c.Service(); s.Name.String() == a.Record.Service || s.Name == (decision.ServicePortName{}) && netip.AddrPortFrom(s.ClusterIP, s.Port) == to {
			causes = append(causes, differing(c))
		}
	}
	servers := n.servers(protocol, to, a.Record.Local)
	if n.Known.IPVS != nil {
		what = "its virtual servers of IPVS, as documented,"
		if len(n.Dumps) > 0 {
			what = "its rules, and its virtual servers of IPVS as documented,"
		}
	}
	var reached []netip.AddrPort
	var failing map[Finding][]netip.AddrPort
	var notes, strays, unanswered []Finding
	blocked := servers
	if len(n.Dumps) > 0 {
		from := addrPort(a.Record.Source).Addr()
		if a.Record.Local {
			from = netip.Addr{}
		}
		found, ends, s, err := n.follow(protocol, from, to)
		if err != nil {
			return err
		}
		reached, failing = s.Reached, ends
		if !n.Alone && len(causes) == 0 {
			if causes, err = a.seeTwice(n, protocol, from, s); err != nil {
				return err
			}
		}
		if h := n.Known.Host; h != nil {
			a.Notes = slices.DeleteFunc(a.Notes, func(f Finding) bool { return shownBy(h, f) })
		}
		if h := n.Known.Host; h != nil && len(reached) > 0 {
			if device, why := h.Filters(from, to.Addr()); device != "" {
				a.Unless = cmp.Or(a.Unless, fmt.Sprintf("its packets arrive on %s, where %s drops them (%s)", device, n.Node, why))
			}
		}
		blocked = append(blocked, found...)
		if !n.Alone {
			a.dropOthers(s)
		}
		notes, strays, unanswered = unknownEnd(s), strayFindings(s), unansweredFindings(s)
	}
	a.NodeIs += "; " + what + " were followed"
	if n.Alone {
		a.withoutObjects(n, protocol, to, blocked)
	}
	service := ""
	if a.Record != nil {
		service = a.Record.Service
	}
	outdated := len(causes) > 0 && len(reached) > 0 && len(a.Endpoints) > 0 && !slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return slices.Contains(reached, addrPort(e.Address)) })
	lacking := slices.ContainsFunc(n.Differences, func(c audit.ServiceChange) bool {
		return c.Change() == audit.Removed && c.Service().Name.String() == service
	})
	fails := len(blocked) > 0 && len(reached) == 0 || outdated || lacking && len(reached) == 0 || service != "" && len(causes) > 0 && len(reached) == 1 && reached[0] == to
	if len(causes) > 0 && len(reached) > 0 && !fails {
		sent := slices.Clone(reached)
		for _, ends := range failing {
			sent = append(sent, ends...)
		}
		a.useRules(sent, &causes[0])
	}
	for _, f := range slices.Concat(blocked, causes) {
		switch {
		case f.noRule && len(causes) > 0: // they say what
		case a.Has(f):
		case !fails && a.someFail(&f, failing[f]):
		case a.Cause == nil && fails && (f.Code.Severity() == Error || f.Code == NotShown):
			a.Cause = &f
		default:
			a.Notes = append(a.Notes, f)
		}
	}
	for i := range strays {
		a.Notes = append(a.Notes, strays[i])
		a.Unless = cmp.Or(a.Unless, "the default gateway, to which "+n.Node+" sends packets for some endpoints, does not know the way")
	}
	for i := range unanswered {
		a.Notes = append(a.Notes, unanswered[i])
		a.Unless = cmp.Or(a.Unless, "a neighbour of "+n.Node+" that did not answer it still does not")
	}
	switch {
	case len(notes) == 0 || a.Cause != nil:
		a.Notes = append(a.Notes, notes...)
	case len(reached) == 0 && len(blocked) == 0:
		a.Cause = &notes[0]
	default:
		a.Notes = append(a.Notes, notes...)
		a.Unless = cmp.Or(a.Unless, "a rule of "+n.Node+", whose effect is not known, keeps packets from it")
	}
	for _, f := range belowNetwork(n.Dumps, n.Known.Host) {
		a.Notes = append(a.Notes, f)
		a.Unless = cmp.Or(a.Unless, n.Node+" drops its packets below the network layer, where they were not followed")
	}
	return nil
}

// dropOthers leaves only what was found about endpoints of the objects.
func (a *Answer) dropOthers(s *survey.Survey) {
	other := func(to netip.Addr) bool {
		return !slices.ContainsFunc(a.Endpoints, func(e Endpoint) bool { return addrPort(e.Address).Addr() == to })
	}
	s.Strays = slices.DeleteFunc(s.Strays, func(stray survey.Stray) bool { return other(stray.To) })
	s.Unanswered = slices.DeleteFunc(s.Unanswered, func(u survey.Unanswered) bool {
		return !slices.ContainsFunc(u.To, func(to netip.Addr) bool { return !other(to) })
	})
}

// useRules makes the endpoints those that the node's outdated rules send connections to: without those that the rules lack, and with
// those that are not in the objects.
func (a *Answer) useRules(sent []netip.AddrPort, outdated *Finding) {
	lacks := func(e Endpoint) bool { return e.Problem == nil && !slices.Contains(sent, addrPort(e.Address)) }
	known := a.Endpoints
	a.Endpoints = slices.DeleteFunc(slices.Clone(known), lacks)
	slices.SortFunc(sent, netip.AddrPort.Compare)
	for _, to := range slices.Compact(sent) {
		if !slices.ContainsFunc(known, func(e Endpoint) bool { return addrPort(e.Address) == to }) {
			a.Endpoints = append(a.Endpoints, Endpoint{Address: to.String(), Problem: outdated})
		}
	}
}

// leadsTo reports whether the node has a route to an address besides its default route.
func (n *Saved) leadsTo(to netip.Addr) bool {
	return n.Known.Host != nil && slices.ContainsFunc(n.Known.Host.Routes, func(r netfilter.Route) bool {
		return r.Type == netfilter.Unicast && r.Destination.Bits() > 0 && r.Destination.Contains(to)
	})
}

// someFail makes a finding the problem of endpoints, and reports whether the answer has some of them.
func (a *Answer) someFail(f *Finding, of []netip.AddrPort) (some bool) {
	for i := range a.Endpoints {
		if e := &a.Endpoints[i]; e.Problem == nil && slices.Contains(of, addrPort(e.Address)) {
			e.Problem, some = f, true
		}
	}
	return some
}

// withoutObjects replaces what an answer says of objects that were made of rules: why a Service has no endpoints, and the names
// of virtual servers.
func (a *Answer) withoutObjects(n *Saved, protocol decision.Protocol, to netip.AddrPort, blocked []Finding) {
	if a.abroad || a.Cause != nil && a.Cause.Code == UnknownAddress && (!to.Addr().IsPrivate() || n.leadsTo(to.Addr())) {
		a.Cause = &Finding{
			Code: NotShown, Text: fmt.Sprintf("%s is no address of a Service; rules do not show Pods, other nodes and other hosts", to.Addr()),
			Do: "nfqproxy trace with the same bundle follows a packet to any address",
		}
		a.Unless, a.Notes, a.Endpoints = "", nil, nil
	}
	if a.Cause != nil && len(blocked) > 0 && (a.Cause.Code == NoSelector || a.Cause.Code == NoSlices) {
		a.Cause = nil
	}
	v := n.server(protocol, to)
	if v == nil {
		return
	}
	a.Cause, a.Record, a.Endpoints = nil, nil, nil
	a.Destination.Name = "virtual server " + v.String()
	for _, share := range v.Choose(ipvs.Client{To: to}).Shares {
		a.Endpoints = append(a.Endpoints, Endpoint{Address: share.Server.Address.String()})
	}
}

// follow follows a connection through the node's rules. The findings are the reasons why it fails; ends are the endpoints that
// it does not reach for sure for one of them.
func (n *Saved) follow(protocol decision.Protocol, from netip.Addr, to netip.AddrPort) (found []Finding, ends map[Finding][]netip.AddrPort, s *survey.Survey, err error) {
	known := n.Known
	known.Only = &survey.Connection{Protocol: protocol, From: from, To: to}
	if s, err = survey.Run(n.Dumps, known); err != nil {
		return nil, nil, nil, err
	}
	ends = make(map[Finding][]netip.AddrPort)
	for _, l := range s.Losses {
		if l.Effect == survey.Unmasqueraded && slices.Contains(l.Kinds, survey.OtherPod) && n.Known.Host != nil && !n.Known.Host.Has(to.Addr()) {
			found = append(found, Finding{
				Code: NotShown, Text: fmt.Sprintf("%s is not behind %s, and its own node decides about packets to %s", from, n.Node, to),
				Do: "collect a bundle on that node",
			})
			s.Reached = nil // by this node
			continue
		}
		if l.Certainty != survey.NotKnown {
			f := lossFinding(l, len(n.Dumps) > 1, n.Known.TraceFlags)
			f.Object = fileOf(l, n.Dumps)
			if found = append(found, f); l.Certainty == survey.Certain {
				ends[f] = l.Endpoints
			}
		}
	}
	for _, f := range append(withoutEndpoints(s), ofIPTablesMode(s)...) {
		if len(s.Reached) > 0 || !strings.Contains(f.Text, to.String()) && !strings.Contains(f.Text, fmt.Sprintf("node port %d", to.Port())) {
			continue
		}
		if f.Code == NodesWithout {
			f.Code = NoLocalEndpoints // of this connection, it is the cause
		}
		f.Object = n.Dumps[0].File
		found = append(found, f)
	}
	return found, ends, s, nil
}

// fileOf is the file of the rule that is the reason.
func fileOf(l *survey.Loss, dumps []*iptables.Dump) string {
	switch {
	case l.Effect == survey.NoWay || l.Bridge != "":
		return "" // no rule is the reason
	case l.Rule != nil && l.Rule.File != "":
		return l.Rule.File
	case l.File != "":
		return l.File
	}
	return dumps[0].File
}

// unknownEnd says that it is not known what becomes of the connection.
func unknownEnd(s *survey.Survey) (notes []Finding) {
	var why []string
	for _, skipped := range s.Skipped {
		if rest, ok := strings.CutPrefix(skipped, "the end of 1 connection: "); ok {
			why = append(why, rest)
		}
		if strings.HasPrefix(skipped, "whether the packets of the tunnel ") {
			why = append(why, skipped)
		}
	}
	for _, l := range s.Losses {
		if l.Certainty == survey.NotKnown {
			why = append(why, unclearText(l, false))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return []Finding{{
		Code: HostRuleUnclear, Text: "what the node's rules do with the connection is not known in full: " + nearest.Few(why),
		Do: "nfqproxy trace with the same bundle shows the way as far as it is known",
	}}
}

// servers are the findings about the virtual server of a destination.
func (n *Saved) servers(protocol decision.Protocol, to netip.AddrPort, local bool) (found []Finding) {
	v := n.server(protocol, to)
	if v == nil {
		return nil
	}
	mode, _ := proxymode.ModeOf(n.Dumps)
	one := *n.Known.IPVS
	one.Servers = []*ipvs.VirtualServer{v}
	for _, f := range ExamineIPVS(&one, mode, n.Known) {
		if f.Code == AddressOnly || f.Code == ServerWithoutAddress && local { // packets of the node itself get to IPVS all the same
			continue
		}
		if f.Code == ServerInNoSet && n.Known.Host != nil && !n.Known.Host.Has(to.Addr()) {
			continue
		}
		found = append(found, f)
	}
	return found
}

// server is the virtual server that translates packets to a destination; nil: none does, or another mode of kube-proxy.
func (n *Saved) server(protocol decision.Protocol, to netip.AddrPort) *ipvs.VirtualServer {
	mode, _ := proxymode.ModeOf(n.Dumps)
	if n.Known.IPVS == nil || !mode.IPVS() && mode != proxymode.ModeUnknown {
		return nil
	}
	return n.Known.IPVS.Find(uint8(protocol), to, 0)
}

// AboutEntries adds findings about connection entries to the destination, as notes: entries of earlier connections do not
// concern new ones, but for clients that use their ports again.
func (a *Answer) AboutEntries(found []Finding) {
	if !a.address().IsValid() {
		return
	}
	for _, f := range found {
		if strings.Contains(f.Text, "("+a.address().String()+")") && !a.Has(f) {
			a.Notes = append(a.Notes, f)
		}
	}
	a.Settle()
}
