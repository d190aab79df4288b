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
