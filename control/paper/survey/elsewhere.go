package survey

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// followOtherNodes follows connections of pods of other nodes, whose nodes have translated them, to endpoints that may be on this
// node: the rules do not show which pods are. What fails by all devices that such packets may come by is recorded, unless the
// connections of this node's pods fail, too.
func (s *surveyor) followOtherNodes(failed map[lossPlace]bool) error {
	pod, all := s.sources[Pod], s.podNetwork()
	if pod == nil || s.sources[OtherPod] != nil || s.one != nil || s.host.Complete() || !all.IsValid() {
		return nil
	}
	others := &otherNodes{surveyor: s, devices: append(s.outerDevices(), s.namedTunnels()...), machines: make(map[netip.Addr][]*netfilter.Machine)}
	taken := s.taken()
	for i := range s.targets[:min(len(s.targets), maxTargets)] {
		t := &s.targets[i]
		here := slices.IndexFunc(t.port.Endpoints, func(e audit.Endpoint) bool {
			return e.Locality != audit.OnAnotherNode && all.Contains(e.AddrPort.Addr()) && !failed[lossPlace{t, pod, e.AddrPort}] && deviceTo(s.host, e.AddrPort.Addr(), "") == pod.Device
		})
		if t.entry != decision.EntryClusterIP || here < 0 {
			continue
		}
		to := t.port.Endpoints[here].AddrPort
		from := freeIn(all, taken, nodeNetwork(to.Addr(), all.Bits()))
		if nodeNetwork(to.Addr(), 0).Contains(from) { // it is the network of this node alone
			from = netip.Addr{}
			for _, e := range t.port.Endpoints {
				if a := e.AddrPort.Addr(); a.IsValid() && !all.Contains(a) {
					from = freeIn(nodeNetwork(a, 0), taken, netip.Prefix{})
				}
			}
		}
		if !from.IsValid() {
			continue
		}
		e, err := others.follow(&target{port: t.port, to: to, protocol: t.protocol}, from)
		if err != nil {
			return err
		}
		if e != nil {
			e.condition, e.certainty = EndpointHere, Possible
			s.record(e)
		}
	}
	return nil
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
		if failed == nil {
			failed = &v.ends[lost]
		}
	}
	return failed, nil
}
