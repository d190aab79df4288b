package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// virtualServers are those of a host whose service proxy uses IPVS: every service address is one of the host's, and the
// packets to it are translated by IPVS, which no rules show. Or eBPF programs of a network plugin translate them before the rules.
type virtualServers struct {
	mode proxymode.Mode
	ebpf string          // the plugin; empty: IPVS
	sets []*iptables.Set // of service addresses; nil: not known
	// nodePorts are the sets of node ports, by protocol: which of the addresses are the nodes' they do not show.
	nodePorts map[uint8][]*iptables.Set
}

// newVirtualServers returns nil for a host without either.
func newVirtualServers(dumps []*iptables.Dump, sets map[string]*iptables.Set) *virtualServers {
	mode, _ := proxymode.ModeOf(dumps)
	if !mode.IPVS() {
		if plugin, _ := proxymode.EBPF(dumps); plugin != "" {
			return &virtualServers{ebpf: plugin}
		}
		return nil
	}
	v := &virtualServers{mode: mode, nodePorts: make(map[uint8][]*iptables.Set)}
	for name, s := range sets {
		if rest, ok := strings.CutPrefix(proxymode.PlainSet(name), nodePortSets); ok {
			for protocol, of := range map[uint8]string{protoTCP: "TCP", protoUDP: "UDP", protoSCTP: "SCTP"} {
				if strings.Contains(rest, of) {
					v.nodePorts[protocol] = append(v.nodePorts[protocol], s)
				}
			}
		}
		if slices.ContainsFunc(proxymode.ServiceSets, func(prefix string) bool { return strings.HasPrefix(proxymode.PlainSet(name), prefix) }) {
			v.sets = append(v.sets, s)
		}
	}
	return v
}

// has reports whether a set of service addresses has the address.
func (v *virtualServers) has(a netip.Addr) bool {
	return slices.ContainsFunc(v.sets, func(s *iptables.Set) bool {
		return slices.ContainsFunc(s.Elements, func(e iptables.Element) bool { return e.Network.IsValid() && e.Network.Contains(a) })
	})
}

// nodePortSets begin the names of kube-proxy's ipsets of node ports (pkg/proxy/ipvs/ipset.go).
const nodePortSets = "KUBE-NODE-PORT-"

// hasNodePort reports whether the destination has a node port.
func (v *virtualServers) hasNodePort(p *iptables.Packet) bool {
	return slices.ContainsFunc(v.nodePorts[p.Protocol], func(s *iptables.Set) bool {
		return slices.ContainsFunc(s.Elements, func(e iptables.Element) bool { return e.Ports.Contains(p.Destination.Port()) })
	})
}

// beforeServers ends the walk of the first packet of a connection that may be to a virtual server of IPVS, if these are not
// known. false: it has ended.
func (w *walk) beforeServers() bool {
	if w.machine.options.IPVS != nil {
		return w.hook != Output || w.serveOutput() // PREROUTING has nothing of IPVS
	}
	v := w.machine.servers
	if v == nil || w.reply || w.tracking != TrackingNew || w.entry == nil || w.entry.DNAT || w.machine.options.Assume != AssumeNothing || w.machine.options.Doubts {
		return true
	}
	to := w.Packet.Destination
	switch {
	case !iptables.HasPorts(w.Packet.Protocol):
		return true
	case v.has(w.Packet.Destination.Addr()):
		return w.end(Stopped, nil, fmt.Sprintf("%s is a service address, and IPVS translates (%s): ipvsadm -Sn shows to which endpoints", to.Addr(), v.mode))
	case private(to.Addr()) && w.machine.network.route(to.Addr()).Destination.Bits() == 0 && v.hasNodePort(&w.Packet):
		return w.end(Stopped, nil, fmt.Sprintf("%d is a node port: if %s is an address of this host, IPVS translates (%s), which no rules show: ipvsadm -Sn shows to which endpoints", to.Port(), to.Addr(), v.mode))
	case v.sets != nil && !w.machine.network.isLocal(to.Addr()):
		return true
	}
	// A network of pods, or a host behind a device, is no service address.
	r := w.machine.network.route(to.Addr())
	switch {
	case r.Type == Unicast && r.Destination.Bits() > 0:
		return true
	case v.ebpf == "":
	case r.Type == Unicast && !private(to.Addr()), r.Type == Local && (to.Port() < 30000 || to.Port() > 32767) && !w.fromAnotherNetwork():
		return true // the internet, or a program of the host
	default:
		return w.end(Stopped, nil, fmt.Sprintf("%s may be of a service, and eBPF programs of %s translate before the rules, which do not show that", to, v.ebpf))
	}
	return w.end(Stopped, nil, fmt.Sprintf("%s may be a virtual server of IPVS (%s), which no rules show: ipvsadm -Sn lists them with their endpoints", to, v.mode))
}

// fromAnotherNetwork reports whether a packet is from a private address that is far from its destination, as a pod's is from a service address.
func (w *walk) fromAnotherNetwork() bool {
	from, to := w.Packet.Source.Addr(), w.Packet.Destination.Addr()
	near, _ := to.Prefix(map[bool]int{true: 16, false: 48}[to.Is4()])
	return private(from) && private(to) && !near.Contains(from)
}

// LeftToCalico is why a walk ends at a rule that drops what Calico's eBPF programs have not seen.
const LeftToCalico = "Calico's eBPF programs decide before the rules, in place of kube-proxy"
