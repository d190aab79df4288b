// Package ipvs reads the virtual servers of IPVS from the output of ipvsadm, and answers which real server a new
// connection gets.
//
// The formats are those of ipvsadm.c, and the schedulers those of net/netfilter/ipvs in the kernel. No kernel with IPVS
// checks the answers: they are as documented there.
package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// State is the virtual servers of a host, in the order of the text.
type State struct {
	Servers []*VirtualServer
	// Format is the form of the text: some lack a part of the state.
	Format Format
	// Excerpt names the virtual servers of a part of a listing, whose real servers may be missing, or some of them. Those without any are
	// not in Servers.
	Excerpt []string
	// Hidden are these: the text shows none of their real servers.
	Hidden []*VirtualServer

	index map[identity]*VirtualServer
}

// Format is a form of ipvsadm's output.
type Format uint8

// The formats.
const (
	Save        Format = iota // ipvsadm -Sn: without connections
	List                      // ipvsadm -Ln
	Stats                     // ipvsadm -Ln --stats: without schedulers, weights and connections
	Rate                      // ipvsadm -Ln --rate: without the same
	Thresholds                // ipvsadm -Ln --thresholds: without schedulers and weights
	Persistence               // ipvsadm -Ln --persistent-conn: without schedulers
)

var formatNames = []string{"ipvsadm -Sn", "ipvsadm -Ln", "ipvsadm -Ln --stats", "ipvsadm -Ln --rate", "ipvsadm -Ln --thresholds", "ipvsadm -Ln --persistent-conn"}

// String is the command that prints the format.
func (f Format) String() string { return formatNames[f] }

// HasSchedulers reports whether the format has schedulers, persistence and forwarding methods.
func (f Format) HasSchedulers() bool { return f == Save || f == List }

// HasWeights reports whether the format has the weights of real servers.
func (f Format) HasWeights() bool { return f == Save || f == List || f == Persistence }

// HasConnections reports whether the format has the numbers of active and inactive connections.
func (f Format) HasConnections() bool { return f == List || f == Thresholds || f == Persistence }

// VirtualServer is a virtual server: what ipvsadm calls a virtual service.
type VirtualServer struct {
	Line int // from 1
	// Address is that of a server with a protocol; its port 0 is every port. Protocol is the IANA number, and 0 for a
	// server that gets the packets with Mark.
	Address  netip.AddrPort
	Protocol uint8
	Mark     uint32
	IPv6     bool

	Scheduler string // empty: the format has none
	// Flags are those of the scheduler: "sh-fallback", "sh-port", "mh-fallback", "mh-port", or "flag-1" to "flag-3".
	Flags []string
	// Persistence is for how many seconds a client stays with its real server after its last connection expired; 0: it
	// does not. Clients whose addresses agree in the first ClientBits bits count as one.
	Persistence uint32
	ClientBits  int
	Engine      string // of persistence: "sip"; empty: the client's address
	OnePacket   bool   // every UDP packet gets a real server of its own

	Real    []RealServer
	Traffic Traffic // valid iff the format is Stats or Rate

	format Format
}

// identity is what tells virtual servers apart.
type identity struct {
	protocol uint8
	address  netip.AddrPort
	mark     uint32
	ipv6     bool
}

type realIdentity struct {
	of      *VirtualServer
	address netip.AddrPort
}

func (v *VirtualServer) identity() identity {
	return identity{v.Protocol, v.Address, v.Mark, v.IPv6}
}

// RealServer is a real server: what ipvsadm calls a destination, and kube-proxy an endpoint.
type RealServer struct {
	Line    int            // from 1
	Address netip.AddrPort // port 0: the port stays
	Forward Forward
	Weight  int // 0: no new connections
	// Active and Inactive are the numbers of connections; valid iff the format has connections.
	Active, Inactive uint32
	// Upper and Lower are the thresholds of connections at which it gets no new ones, and gets them again; 0: none, or the
	// format does not have them.
	Upper, Lower uint32
	Traffic      Traffic // valid iff the format is Stats or Rate
}

// Traffic counts: since the server was added or reset (Stats), or per second (Rate).
type Traffic struct {
	Connections, InPackets, OutPackets, InBytes, OutBytes uint64
}

// Forward is how packets get to a real server.
type Forward uint8

// The methods.
const (
	Masquerade Forward = iota // the destination is translated, and the source of replies
	Route                     // the packet is sent to the real server's host as it is
	Tunnel                    // in another packet
	LocalNode                 // the packet is for this host, as it is
)

var forwardNames = []string{"Masq", "Route", "Tunnel", "Local"}

// String is the method in ipvsadm's listings.
func (f Forward) String() string { return forwardNames[f] }

var protocolNames = map[uint8]string{protoTCP: "TCP", protoUDP: "UDP", protoSCTP: "SCTP"}

// The protocols of virtual servers, by their IANA numbers.
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// String names the virtual server as ipvsadm's listings do.
func (v *VirtualServer) String() string {
	switch {
	case v.Protocol == 0 && v.IPv6:
		return fmt.Sprintf("FWM %d IPv6", v.Mark)
	case v.Protocol == 0:
		return fmt.Sprintf("FWM %d", v.Mark)
	}
	return fmt.Sprintf("%s %s", protocolNames[v.Protocol], v.Address)
}

// Find finds the virtual server of a packet, as ip_vs_service_find (ip_vs_ctl.c) does: one of its mark, one of its
// destination, or one of the destination's address with any port. nil: there is none. Virtual FTP servers also get the
// packets to other ports of theirs: these are not found.
func (s *State) Find(protocol uint8, to netip.AddrPort, mark uint32) *VirtualServer {
	ipv6 := to.Addr().Is6()
	if v := s.index[identity{mark: mark, ipv6: ipv6}]; v != nil && mark != 0 {
		return v
	}
	if v := s.index[identity{protocol: protocol, address: to, ipv6: ipv6}]; v != nil {
		return v
	}
	if v := s.index[identity{protocol: protocol, address: netip.AddrPortFrom(to.Addr(), 0), ipv6: ipv6}]; v != nil && v.Persistence > 0 {
		return v
	}
	return nil
}

// Hides reports whether the text has a virtual server for packets, and none of its real servers.
func (s *State) Hides(protocol uint8, to netip.AddrPort) bool {
	return slices.ContainsFunc(s.Hidden, func(v *VirtualServer) bool { return v.Protocol == protocol && v.Address == to })
}

// Addresses are those of the virtual servers of a family, sorted, each once.
func (s *State) Addresses(ipv6 bool) []netip.Addr {
	var all []netip.Addr
	for _, v := range slices.Concat(s.Servers, s.Hidden) {
		if v.Protocol != 0 && v.IPv6 == ipv6 {
			all = append(all, v.Address.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Has reports whether the scheduler has one of the flags; the bits' general names are flag-1 and flag-2.
func (v *VirtualServer) has(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(v.Flags, n) })
}

// sorted reports whether the real servers are in the order into which ipvsadm puts them (ipvs_cmp_dests), so that the
// kernel's own order is not known. ipvsadm --nosort keeps that.
func (v *VirtualServer) sorted() bool {
	return slices.IsSortedFunc(v.Real, func(a, b RealServer) int { return a.Address.Compare(b.Address) })
}

// orderKnown reports whether the order of the real servers is that of the kernel's list.
func (v *VirtualServer) orderKnown() bool { return len(v.Real) < 2 || !v.sorted() }

// Sticky is what persistence does to a client, as a sentence without a full stop; empty: nothing.
func (v *VirtualServer) Sticky() string {
	if v.Persistence == 0 {
		return ""
	}
	who := "a client"
	if full := v.addressBits(); v.ClientBits < full {
		who = fmt.Sprintf("a client's network (/%d)", v.ClientBits)
	}
	if v.Engine != "" {
		who = "a client, told apart by " + v.Engine + ","
	}
	// ip_vs_check_template
	but := ""
	if v.format.HasWeights() && slices.ContainsFunc(v.Real, func(r RealServer) bool { return r.Weight == 0 }) {
		but = ", but not one of weight 0 if net.ipv4.vs.expire_quiescent_template is 1, as service proxies set it"
	}
	return fmt.Sprintf("%s with a connection in the last %d s keeps its real server%s: which clients have one is not in the file", who, v.Persistence, but)
}

func (v *VirtualServer) addressBits() int {
	if v.IPv6 {
		return 128
	}
	return 32
}

// list joins real servers for a sentence.
func list(servers []*RealServer) string {
	var names []string
	for _, r := range servers {
		names = append(names, r.Address.String())
	}
	return strings.Join(names, ", ")
}
