// Package hostnat computes what a host's own rules of nat POSTROUTING - a CNI plugin's,
// ip-masq-agent's, Docker's, libvirt's - do to the source of a flow whose destination a service
// proxy translates. Such a flow bypasses the rules, because its connection entry fixes both sides
// of the translation.
//
// The rules are those of the kernel: of iptables' two back ends and of nftables. They are steps
// over values of the packet, see package rules.
//
// Some data is unknown when the entry is created. Marks are those of the packet before connection
// tracking: marks that rules of mangle or filter set later are not known. The device is that of
// the route for local packets: routing rules that match a packet's source or mark are ignored. The
// contents of ipsets are not known. A port is selected at random only if the client's own is not
// free or not within the range, with --random or without.
//
// It is a ground package.
package hostnat

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Ruleset is the tables of a host that translate sources, by family, in the order in which packets
// meet them: ACCEPT ends only its own table, and the first table that translates is the last one
// evaluated (nf_nat_core.c, nf_nat_inet_fn). It is immutable once it is evaluated, and then safe
// for concurrent use.
type Ruleset struct {
	Tables map[decision.Family][]*Table
	Host   *Host
}

// Any reports, also for nil, whether there are rules that may translate the source of a flow of
// the family.
func (r *Ruleset) Any(f decision.Family) bool { return r != nil && len(r.Tables[f]) > 0 }

// Table is a base chain of type nat at postrouting, with the chains it leads to.
type Table struct {
	Name string // for messages: "iptables (nft), IPv4, table nat"
	Base *rules.Chain
}

// Packet is the first packet of a connection as it reaches POSTROUTING on its way to Endpoint, its translated
// destination. Its length, options, chunks and frame are not known; an empty InInterface is not known, unless Local.
type Packet struct {
	decision.Packet
	Endpoint netip.AddrPort
	Out      string // the output device
	Mark     uint32
}

// Host is the addresses and devices of a host. The zero value has none. It must not change while
// rules are evaluated.
type Host struct {
	local     map[netip.Addr]string // with their device
	broadcast map[netip.Addr]string
	devices   map[string]uint32
}

const loopback = "lo"

// AddAddress adds an address, with the length of its network, and its device.
func (h *Host) AddAddress(device string, a netip.Prefix) {
	if h.local == nil {
		h.local, h.broadcast = make(map[netip.Addr]string), make(map[netip.Addr]string)
	}
	h.local[a.Addr()] = device
	if a.Addr().Is4() && a.Bits() < 31 && !a.Addr().IsLoopback() {
		last := a.Masked().Addr().As4()
		for bit := a.Bits(); bit < 32; bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		h.broadcast[netip.AddrFrom4(last)] = device
	}
}

// AddDevice adds a device with its index.
func (h *Host) AddDevice(name string, index uint32) {
	if h.devices == nil {
		h.devices = make(map[string]uint32)
	}
	h.devices[name] = index
}

// Has reports whether an address is the host's.
func (h *Host) Has(a netip.Addr) bool {
	_, ok := h.local[a]
	return ok
}

// addrType is the type of an address: inet_addr_type and inet_dev_addr_type
// (net/ipv4/fib_frontend.c), which use the local table only, and __nft_fib6_eval_type
// (nft_fib_ipv6.c). Routes that refuse packets are not known. With a device, only its own addresses
// count.
func (h *Host) addrType(a netip.Addr, device string) uint32 {
	on, own := h.local[a]
	if a.IsLoopback() {
		on, own = loopback, true
	}
	here := func(on string) bool { return device == "" || device == on }
	broadcastOn, broadcast := h.broadcast[a]
	switch {
	case a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return rules.RTNBroadcast
	case own && here(on):
		return rules.RTNLocal
	case a.IsMulticast():
		return rules.RTNMulticast
	case broadcast && here(broadcastOn):
		return rules.RTNBroadcast
	case a.IsUnspecified():
		return rules.RTNUnspec
	}
	return rules.RTNUnicast
}
