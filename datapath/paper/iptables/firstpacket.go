package iptables

import "net/netip"

// FirstPacket is the first packet of a connection. local: the host itself sends it; an unspecified source is then the one
// that the host selects.
func FirstPacket(protocol uint8, from, to netip.AddrPort, local bool) Packet {
	p := Packet{Protocol: protocol, Source: from, Destination: to, Local: local, Length: 60, TTL: 64, Supposed: FactMAC}
	switch protocol {
	case protoTCP:
		p.Flags = SYN
		p.TCPOptions, p.MSS = synOptions, 1460
		if to.Addr().Is6() {
			p.MSS = 1440
		}
	case protoSCTP:
		p.Chunks = []ChunkType{{Type: 1}} // INIT (RFC 9260)
	}
	if local {
		p.Owner, p.Supposed = new(SocketOwner), FactOwner
	}
	return p
}

// synOptions are the TCP options of a SYN from Linux on Ethernet: segment size, selective acknowledgment, timestamps, padding
// and window scale (tcp_output.c).
var synOptions = []uint8{2, 4, 8, 1, 3}
