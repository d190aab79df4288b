package netfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// The priorities of IPVS (ip_vs_ops4 of ip_vs_core.c, with NF_IP_PRI_NAT_SRC and NF_IP_PRI_NAT_DST): its replies are
// translated at LOCAL_IN, LOCAL_OUT and FORWARD, and its requests at LOCAL_IN and LOCAL_OUT.
const (
	priorityServedReply = prioritySource - 2 // at LOCAL_IN; at LOCAL_OUT the first after nat
	priorityServed      = prioritySource - 1
	priorityForwarded   = prioritySource // of replies at FORWARD
)

// served is the connection of IPVS that an entry belongs to: its real server.
type served struct {
	virtual, real netip.AddrPort
	forward       ipvs.Forward
}

// Translated reports whether the destination is translated: by a rule, or by IPVS.
func (e *Entry) Translated() bool {
	return e.DNAT || e.served != nil && e.served.forward == ipvs.Masquerade
}

// IPVSDevice is the device that has the addresses of services in kube-proxy's mode ipvs (DefaultDummyDevice of pkg/proxy/ipvs/proxier.go).
const IPVSDevice = "kube-ipvs0"

// AddVirtualServers gives a host the addresses of virtual servers on kube-ipvs0, where kube-proxy has them, unless the
// host's addresses are known. It returns what it assumes; nil: nothing.
func (h *Host) AddVirtualServers(s *ipvs.State, f iptables.Family) []Guess {
	if h.allAddresses {
		return nil
	}
	device := Interface{Name: IPVSDevice}
	for _, a := range s.Addresses(f == iptables.IPv6) {
		if !h.Has(a) {
			device.Addresses = append(device.Addresses, Address{Prefix: alone(a), Narrow: true})
		}
	}
	if len(device.Addresses) == 0 || h.device(IPVSDevice) != nil {
		return nil
	}
	h.Interfaces = append(h.Interfaces, device)
	text := "the addresses of virtual servers are this host's, on " + IPVSDevice
	return []Guess{{Text: text, Claim: text}}
}

// visitInput is LOCAL_IN. false: the walk has ended, here or at a real server's.
func (w *walk) visitInput() bool {
	if w.machine.options.IPVS == nil {
		return w.visitSource(Input)
	}
	if !w.visit(Input, priorityFirst, priorityServedReply) {
		return false
	}
	w.serveReply()
	if !w.visit(Input, priorityServedReply, priorityServed) {
		return false
	}
	switch elsewhere, ok := w.serve(Input); {
	case !ok:
		return false
	case elsewhere:
		in := w.In
		w.In, w.Out = "", w.route.Interface // ip_vs_nat_send_or_cont: the packet goes through LOCAL_OUT, without a device
		if !w.visit(Output, priorityFirst, priorityNAT) || !w.visitNAT(Output) || !w.visit(Output, priorityNAT, priorityLast) {
			return false
		}
		w.In, w.Out = in, w.route.Interface
		if w.postrouting() {
			w.end(Sent, nil, "")
		}
		return false
	}
	return w.visit(Input, priorityServed, prioritySource) && w.visitNAT(Input) && w.visit(Input, prioritySource, priorityLast)
}

// visitForward is FORWARD.
func (w *walk) visitForward() bool {
	if w.machine.options.IPVS == nil {
		return w.visit(Forward, priorityFirst, priorityLast)
	}
	if !w.visit(Forward, priorityFirst, priorityForwarded) {
		return false
	}
	w.serveReply()
	return w.visit(Forward, priorityForwarded, priorityLast)
}

// serveOutput is IPVS at LOCAL_OUT, after nat. A packet to a real server elsewhere goes through LOCAL_OUT again, from its
// beginning: this is the part up to nat. false: the walk has ended.
func (w *walk) serveOutput() bool {
	w.serveReply()
	elsewhere, ok := w.serve(Output)
	if !ok || !elsewhere {
		return ok
	}
	w.Out = w.route.Interface
	return w.visit(Output, priorityFirst, priorityNAT) && w.visitNAT(Output)
}

// serve is ip_vs_in_hook: it finds or selects the real server of a packet, and translates it. elsewhere: the packet goes on
// to another host, by the route. ok is false if the walk has ended.
func (w *walk) serve(h Hook) (elsewhere, ok bool) {
	w.hook = h
	p := &w.Packet
	if w.passedIPVS || w.reply || !iptables.HasPorts(p.Protocol) || p.Destination.Addr().IsMulticast() {
		return false, true
	}
	if w.entry == nil || !w.tracked {
		if v := w.machine.options.IPVS.Find(p.Protocol, p.Destination, p.Mark); v != nil {
			return false, w.end(Stopped, nil, fmt.Sprintf("the packet has no connection entry, and virtual server %s gets it: what IPVS does then is not simulated", v))
		}
		return false, true
	}
	if w.entry.served == nil {
		v := w.machine.options.IPVS.Find(p.Protocol, p.Destination, p.Mark)
		if v == nil && w.machine.options.Assume == AssumeNothing && w.machine.options.IPVS.Hides(p.Protocol, p.Destination) {
			return false, w.end(Stopped, nil, fmt.Sprintf("%s is a virtual server of IPVS, and none of its real servers is in the listing: ipvsadm -Sn shows all", p.Destination))
		}
		if v == nil || !w.begins() {
			return false, true
		}
		if !w.schedule(v) {
			return false, false
		}
	}
	w.passedIPVS = true
	return w.toServer()
}

// begins reports whether a packet may get a real server, if its connection has none: one that begins a connection
// (tcp_conn_schedule, sctp_conn_schedule; net.ipv4.vs.sloppy_tcp is 0).
func (w *walk) begins() bool {
	switch w.Packet.Protocol {
	case protoTCP:
		return w.Packet.Flags&iptables.SYN != 0
	case protoSCTP:
		return len(w.Packet.Chunks) > 0 && w.Packet.Chunks[0].Type == sctpInit
	}
	return true
}

// schedule selects a real server. false: there is none, and the walk has ended (ip_vs_leave).
func (w *walk) schedule(v *ipvs.VirtualServer) bool {
	c := v.Choose(ipvs.Client{From: w.Packet.Source, To: w.Packet.Destination})
	w.grant("that IPVS does as documented: %s", c.Basis)
	if slices.Contains(w.machine.options.IPVS.Excerpt, v.String()) {
		w.grant("that virtual server %s has no other real servers than those in the part of the listing", v)
	}
	if c.Assumed != "" {
		w.grant("%s", c.Assumed)
	}
	if v.Persistence > 0 {
		w.grant("that the client has no real server from an earlier connection (%s)", v.Sticky())
	}
	rest := 1.0
	w.probability = 0
	defer func() { w.probability = 0 }()
	for i, s := range c.Shares {
		last := i == len(c.Shares)-1 && c.Refused == 0
		if !last && !w.Draw(s.Probability/rest) {
			rest -= s.Probability
			continue
		}
		r := s.Server
		w.entry.served = &served{w.Packet.Destination, r.Address, r.Forward}
		if r.Address.Port() == 0 || v.Address.Port() != w.Packet.Destination.Port() && v.Protocol != 0 {
			w.entry.served.real = netip.AddrPortFrom(r.Address.Addr(), w.Packet.Destination.Port())
		}
		w.addServed(fmt.Sprintf("virtual server %s: the real server is %s (%s, line %d)", v, w.entry.served.real, orScheduler(v), r.Line), s.Probability < 1)
		return true
	}
	w.addServed(fmt.Sprintf("virtual server %s has no real server for it", v), len(c.Shares) > 0)
	w.result.With = "icmp-port-unreachable"
	if !w.Packet.Is4() {
		w.result.With = "icmp6-port-unreachable"
	}
	return w.end(Rejected, nil, fmt.Sprintf("virtual server %s: %s", v, c.Basis))
}

func orScheduler(v *ipvs.VirtualServer) string {
	if v.Scheduler == "" {
		return "an unknown scheduler"
	}
	return v.Scheduler
}

// addServed adds a step of IPVS.
func (w *walk) addServed(text string, forked bool) {
	if w.quiet {
		return
	}
	s := flow.Step{Outcome: flow.StepTracked, Text: text}
	if forked {
		w.fork()
		s.Probability = w.probability
	}
	w.add(s)
}

// toServer is ip_vs_nat_xmit, and what the other methods do instead.
func (w *walk) toServer() (elsewhere, ok bool) {
	s := w.entry.served
	switch s.forward {
	case ipvs.LocalNode: // ip_vs_null_xmit
		return false, true
	case ipvs.Route, ipvs.Tunnel:
		how := "as it is (direct routing)"
		if s.forward == ipvs.Tunnel {
			how = "in a tunnel"
		}
		return false, w.end(Stopped, nil, fmt.Sprintf("IPVS sends it to %s %s: its way from there is not simulated", s.real.Addr(), how))
	}
	n := w.machine.network
	route := n.route(s.real.Addr()) // looked up without source and mark (__ip_vs_get_out_rt)
	local := route.Type == Local
	switch {
	case !local && w.Packet.Source.Addr().IsLoopback(): // crosses_local_route_boundary
		return false, w.end(Dropped, nil, fmt.Sprintf("IPVS does not send packets of %s to another host: %s", w.Packet.Source.Addr(), s.real.Addr()))
	case local && s.real.Addr().IsLoopback() && w.hook == Input:
		return false, w.end(Dropped, nil, fmt.Sprintf("IPVS does not translate packets from outside to %s", s.real.Addr()))
	case !local && route.Type != Unicast:
		w.route = route
		return false, w.noWay()
	case !local && w.Packet.TTL <= 1:
		return false, w.end(Dropped, nil, "its time to live ends here: the sender gets an ICMP error, time exceeded")
	}
	w.grant("that net.ipv4.vs.conntrack is 1, as service proxies set it")
	w.Packet.Destination = s.real
	if !w.entry.Confirmed { // ip_vs_update_conntrack
		w.entry.Reply.Source = s.real
	}
	w.addServed("the destination becomes "+w.Packet.DestinationText()+", by IPVS", false)
	if local {
		return false, true // with its old route
	}
	w.Packet.TTL--
	w.route = route
	w.addRoute()
	return true, true
}

// serveReply is ip_vs_out_hook: the source of a reply becomes the virtual server's address.
func (w *walk) serveReply() {
	if w.passedIPVS || !w.reply || w.entry == nil || w.entry.served == nil {
		return
	}
	s := w.entry.served
	if s.forward != ipvs.Masquerade || w.Packet.Source != s.real {
		return
	}
	w.passedIPVS = true
	w.Packet.Source = s.virtual
	w.addServed("the source becomes "+w.Packet.SourceText()+" again, by IPVS", false)
}
