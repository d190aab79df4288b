//go:build linux

package netfilter

import (
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

var (
	broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	multicastMAC = net.HardwareAddr{1, 0, 0x5e, 0, 0, 5}
)

// traffic makes up packets: from few addresses and ports, so that they meet rules and
// each other.
type traffic struct {
	*rand.Rand
	host *Host
	is4  bool
	// sources are those that packets from outside come from, by device; own those of
	// packets made on the host.
	sources      map[string][]netip.Addr
	own          []netip.Addr
	destinations []netip.Addr
	ports        []uint16
	services     []service // requested more often
	sent         []exchange
}

// service is where a rule waits for packets.
type service struct {
	protocol uint8
	address  string
}

// exchange is a packet that was sent, and its result.
type exchange struct {
	packet iptables.Packet
	way    *Way
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// percent is true that often.
func (g *traffic) percent(n int) bool { return g.IntN(100) < n }

// next makes up a packet: of a new connection, the answer to one that was sent, another
// of the same connection, or one that takes its addresses.
func (g *traffic) next() iptables.Packet {
	if len(g.sent) > 0 {
		e := g.sent[max(0, len(g.sent)-1-g.IntN(8))]
		switch n := g.IntN(100); {
		case n < 30:
			if p, ok := g.answer(e); ok && g.comparable(&p) {
				return p
			}
		case n < 45:
			return g.again(e.packet)
		case n < 55:
			p := g.fresh()
			p.Protocol, p.Source, p.Destination = e.packet.Protocol, netip.AddrPortFrom(p.Source.Addr(), e.packet.Source.Port()), netip.AddrPortFrom(p.Destination.Addr(), e.packet.Destination.Port())
			if g.percent(50) {
				p.Local, p.InInterface, p.Owner, p.MAC, p.Source = e.packet.Local, e.packet.InInterface, e.packet.Owner, e.packet.MAC, e.packet.Source
			} else {
				p.Destination = e.packet.Destination
			}
			if p = g.finish(p, false); g.comparable(&p) {
				return p
			}
		}
	}
	return g.fresh()
}

// note keeps a packet for the ones to come.
func (g *traffic) note(p iptables.Packet, w *Way) { g.sent = append(g.sent, exchange{p, w}) }

var protocols = []uint8{protoTCP, protoTCP, protoTCP, protoTCP, protoUDP, protoUDP, protoUDP, protoICMP, protoSCTP}

// comparable reports whether the simulator covers the packet: of what the host sends to all
// neighbours copies come back, and a raw socket sends from a loopback address what no
// other could.
func (g *traffic) comparable(p *iptables.Packet) bool {
	to := p.Destination.Addr()
	n := newNetwork(g.host, map[bool]iptables.Family{true: iptables.IPv4, false: iptables.IPv6}[g.is4])
	return !p.Local || !to.IsMulticast() && !n.isBroadcast(to) && !n.isBroadcast(p.Source.Addr()) && (!p.Source.Addr().IsLoopback() || n.isLocal(to))
}

// fresh is a packet like the first of a connection.
func (g *traffic) fresh() iptables.Packet {
	for {
		if p := g.any(); g.comparable(&p) {
			return p
		}
	}
}

func (g *traffic) any() iptables.Packet {
	p := iptables.Packet{Protocol: pick(g.Rand, protocols), TTL: 64}
	if g.percent(15) {
		p.TTL = pick(g.Rand, []uint8{1, 2, 5, 255})
	}
	if p.Protocol == protoICMP && !g.is4 {
		p.Protocol = protoICMPv6
	}
	source := netip.Addr{}
	if g.percent(35) {
		p.Local, p.Owner = true, g.owner()
		source = pick(g.Rand, g.own)
		if g.percent(25) {
			p.Mark = uint32(g.IntN(8))
		}
	} else {
		p.InInterface = pick(g.Rand, g.host.Interfaces[1:]).Name // the first is lo
		source = pick(g.Rand, g.sources[p.InInterface])
	}
	sport := []uint16{40000, 40001, 40002, 500, 1000}[g.IntN(5)]
	p.Source, p.Destination = netip.AddrPortFrom(source, sport), netip.AddrPortFrom(pick(g.Rand, g.destinations), pick(g.Rand, g.ports))
	if len(g.services) > 0 && g.percent(60) {
		s := pick(g.Rand, g.services)
		p.Protocol, p.Destination = s.protocol, netip.MustParseAddrPort(s.address)
	}
	if g.percent(10) {
		p.TOS = pick(g.Rand, []uint8{0x10, 0x02, 0x13})
	}
	return g.finish(p, false)
}

func (g *traffic) owner() *iptables.SocketOwner {
	id := pick(g.Rand, owners)
	return &iptables.SocketOwner{UID: id, GID: id}
}

// oddFlags are of TCP packets that begin nothing, or should not.
var oddFlags = []iptables.TCPFlags{
	0, iptables.ACK, iptables.ACK | iptables.PSH, iptables.RST, iptables.RST | iptables.ACK, iptables.FIN | iptables.ACK, iptables.FIN,
	iptables.SYN | iptables.ACK, iptables.SYN | iptables.FIN, iptables.SYN | iptables.RST, iptables.FIN | iptables.PSH | iptables.URG, iptables.ACK | iptables.URG,
}

// finish gives the packet what goes with its protocol and its way in.
func (g *traffic) finish(p iptables.Packet, later bool) iptables.Packet {
	p.Flags, p.TCPOptions, p.Chunks, p.ICMPType, p.ICMPCode = 0, nil, nil, 0, 0
	if !hasICMP(p.Protocol) {
		p.ICMPID = 0
	}
	switch {
	case p.Protocol == protoTCP:
		p.Flags = iptables.SYN
		if later || g.percent(10) {
			p.Flags = pick(g.Rand, oddFlags)
		}
		if g.percent(20) {
			p.Flags |= pick(g.Rand, []iptables.TCPFlags{iptables.ECE, iptables.CWR, iptables.ECE | iptables.CWR})
		}
		if p.Flags&^(iptables.ECE|iptables.CWR) == iptables.SYN && g.percent(50) {
			p.TCPOptions, p.MSS = pick(g.Rand, [][]uint8{{2}, {2, 4, 8}, {2, 3}, {2, 3, 4, 8}}), pick(g.Rand, []uint16{1460, 1000, 400})
		}
	case p.Protocol == protoUDP:
	case p.Protocol == protoSCTP:
		p.Chunks = []iptables.ChunkType{{Type: sctpInit}}
	case hasICMP(p.Protocol):
		if p.ICMPID == 0 {
			p.ICMPID = 1 + uint16(g.IntN(3))
		}
		p.Source, p.Destination = netip.AddrPortFrom(p.Source.Addr(), 0), netip.AddrPortFrom(p.Destination.Addr(), 0)
		p.ICMPType = 8
		if p.Protocol == protoICMPv6 {
			p.ICMPType = 128
		}
		if g.percent(5) && p.Protocol == protoICMP {
			p.ICMPType = []uint8{13, 0, 5}[g.IntN(3)]
		}
	}
	return g.link(p)
}

// link gives the packet what goes with its device, and its length.
func (g *traffic) link(p iptables.Packet) iptables.Packet {
	if !p.Local {
		mac := pick(g.Rand, neighbours)
		p.MAC, p.Link, p.Mark, p.Owner = &mac, iptables.LinkUnicast, 0, nil
	}
	p.Length, p.Supposed = uint16(len(encode(&p, false))), 0
	return p
}

// again is another packet of the same direction.
func (g *traffic) again(p iptables.Packet) iptables.Packet {
	if p.Protocol == protoTCP && g.percent(70) {
		p.Flags, p.TCPOptions = iptables.ACK, nil
		if g.percent(20) {
			p.Flags = iptables.FIN | iptables.ACK
		}
	}
	return g.link(p)
}

// answer is what would answer an exchange's packet.
func (g *traffic) answer(e exchange) (p iptables.Packet, ok bool) {
	if p, ok = e.way.Answer(); !ok {
		return p, false
	}
	if p.Local {
		p.Owner = g.owner()
	}
	if p.Protocol == protoTCP && (e.packet.Flags&iptables.SYN == 0 || e.way.Reply) {
		p.Flags = iptables.ACK
	}
	if p.Protocol != protoTCP {
		p.Flags = 0
	}
	return g.link(p), true
}

func withChunk(p iptables.Packet, typ uint8) iptables.Packet {
	p.Chunks = []iptables.ChunkType{{Type: typ}}
	return p
}
