package survey

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// followOtherNodes follows connections of pods of other nodes, whose nodes have translated them, to endpoints of this node. If
// its routes are not known, any pod may be here: what fails by all devices that such packets may come by is recorded. What fails
// for this node's pods, too, is not.
func (s *surveyor) followOtherNodes(failed map[lossPlace]bool) error {
	pod, all := s.sources[Pod], s.podNetwork()
	if pod == nil || s.sources[OtherPod] != nil || s.one != nil || !all.IsValid() {
		return nil
	}
	others := &otherNodes{surveyor: s, devices: append(s.outerDevices(), s.namedTunnels()...), machines: make(map[netip.Addr][]*netfilter.Machine)}
	taken, complete, uplink := s.taken(), s.host.Complete(), uplinkOf(s.host, s.family())
	routed := s.routedPod(all, taken, uplink)
	for i := range s.targets[:min(len(s.targets), maxTargets)] {
		t := &s.targets[i]
		here := slices.IndexFunc(t.port.Endpoints, func(e audit.Endpoint) bool {
			a := e.AddrPort.Addr()
			device := deviceTo(s.host, a, uplink)
			return e.Locality != audit.OnAnotherNode && all.Contains(a) && !failed[lossPlace{t, pod, e.AddrPort}] &&
				(device == pod.Device || complete && device != uplink && tunnelOf(device) == nil)
		})
		if t.entry != decision.EntryClusterIP || here < 0 {
			continue
		}
		to := t.port.Endpoints[here].AddrPort
		from := routed
		if complete {
			others.devices, others.machines[from] = []string{deviceTo(s.host, from, uplink)}, []*netfilter.Machine{s.machine}
		} else {
			from = s.podElsewhere(t, to.Addr(), taken)
		}
		if !from.IsValid() {
			continue
		}
		e, err := others.follow(&target{port: t.port, to: to, protocol: t.protocol}, from)
		if err != nil {
			return err
		}
		if e != nil && complete {
			s.record(e)
		} else if e != nil {
			e.condition, e.certainty = EndpointHere, Possible
			s.record(e)
		}
	}
	return nil
}

// routedPod is an address of a pod of another node, by the routes of a host of which all are known; not valid: they show none.
func (s *surveyor) routedPod(all netip.Prefix, taken map[netip.Addr]bool, uplink string) netip.Addr {
	for _, r := range s.host.Routes {
		if r.Type == netfilter.Unicast && all.Contains(r.Destination.Addr()) && r.Destination.Bits() >= all.Bits() && (r.Via.IsValid() || tunnelOf(r.Interface) != nil) {
			if a := freeIn(r.Destination, taken, netip.Prefix{}); a.IsValid() && deviceTo(s.host, a, uplink) == r.Interface {
				return a
			}
		}
	}
	return netip.Addr{}
}

// podElsewhere is an address that a pod of another node may have, if that of an endpoint is on this one; not valid: none is known.
func (s *surveyor) podElsewhere(t *target, here netip.Addr, taken map[netip.Addr]bool) netip.Addr {
	all := s.podNetwork()
	from := freeIn(all, taken, nodeNetwork(here, all.Bits()))
	if !nodeNetwork(here, 0).Contains(from) {
		return from
	}
	for _, e := range t.port.Endpoints { // the network is that of this node alone
		if a := e.AddrPort.Addr(); a.IsValid() && !all.Contains(a) {
			return freeIn(nodeNetwork(a, 0), taken, netip.Prefix{})
		}
	}
	return netip.Addr{}
}

// otherNodes follows packets of pods of other nodes.
type otherNodes struct {
	*surveyor
	devices  []string                            // by which they may come
	machines map[netip.Addr][]*netfilter.Machine // by the pod: those of hosts whose route to it leads by each device
}

// follow is the end of the connections of a pod that fail by all devices; nil: by some device one does not.
func (o *otherNodes) follow(t *target, from netip.Addr) (failed *end, err error) {
	machines, known := o.machines[from]
	if !known {
		for _, device := range o.devices {
			host := *o.host
			host.Routes = append(slices.Clone(host.Routes), netfilter.Route{Destination: netip.PrefixFrom(from, from.BitLen()), Interface: device})
			m, err := o.machineOf(&host)
			if err != nil {
				return nil, err
			}
			machines = append(machines, m)
		}
		o.machines[from] = machines
	}
	for i, device := range o.devices {
		v := &walker{surveyor: o.surveyor, machine: machines[i], work: netfilter.Work{Steps: 1}}
		v.follow(&connection{target: t, from: &Source{Kind: OtherPod, Addr: from, Device: device}})
		lost := slices.IndexFunc(v.ends, func(e end) bool { return e.outcome.lost() && e.certainty == Certain })
		if lost < 0 {
			return nil, nil
		}
		failed = cmp.Or(failed, &v.ends[lost])
	}
	return failed, nil
}
