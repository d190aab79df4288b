package nftrules

import (
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// field is something that rules read of a packet.
type field struct {
	rules.Value // big-endian, in the bytes that hold it
	kind        *kind
	shift       int // the value stands this many bits further left in its bytes
	facts       iptables.Facts
	expr        nftables.Expr // that it is
	// never: no packet of this family has it.
	never bool
	// needs is the protocol that a packet must have; 0: any. nft leaves this condition out when it prints a rule.
	needs uint8
	mask  []byte // of the bits that the field has; nil: all
}

// place is where a header has a field, in bits.
type place struct {
	offset, length int
	kind           *kind
	facts          iptables.Facts
}

// Protocols by their IANA numbers.
const (
	protoICMP    = 1
	protoIGMP    = 2
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoGRE     = 47
	protoESP     = 50
	protoAH      = 51
	protoICMP6   = 58
	protoIPComp  = 108
	protoSCTP    = 132
	protoUDPLite = 136
)

// headers are the fields of headers, in the order of the bits (nftables, src/proto.c).
var headers = map[string]struct {
	network bool
	needs   uint8
	fields  map[string]place
}{
	"ip": {true, 0, map[string]place{
		"version": {0, 4, kindNumber1, 0}, "hdrlength": {4, 4, kindNumber1, 0}, "dscp": {8, 6, kindDSCP, iptables.FactTOS}, "ecn": {14, 2, kindECN, iptables.FactTOS},
		"tos": {8, 8, kindNumber1, iptables.FactTOS}, "length": {16, 16, kindNumber2, iptables.FactLength}, "id": {32, 16, kindNumber2, 0}, "frag-off": {48, 16, kindNumber2, 0},
		"ttl": {64, 8, kindNumber1, iptables.FactTTL}, "protocol": {72, 8, kindProtocol, 0}, "checksum": {80, 16, kindNumber2, 0},
		"saddr": {96, 32, kindAddr4, 0}, "daddr": {128, 32, kindAddr4, 0},
	}},
	"ip6": {true, 0, map[string]place{
		"version": {0, 4, kindNumber1, 0}, "dscp": {4, 6, kindDSCP, iptables.FactTOS}, "ecn": {10, 2, kindECN, iptables.FactTOS}, "flowlabel": {12, 20, kindNumber4, iptables.FactBytes},
		"length": {32, 16, kindNumber2, iptables.FactLength}, "nexthdr": {48, 8, kindProtocol, 0}, "hoplimit": {56, 8, kindNumber1, iptables.FactTTL},
		"saddr": {64, 128, kindAddr6, 0}, "daddr": {192, 128, kindAddr6, 0},
	}},
	"th": {false, 0, ports(nil)},
	"tcp": {false, protoTCP, ports(map[string]place{
		"sequence": {32, 32, kindNumber4, iptables.FactBytes}, "ackseq": {64, 32, kindNumber4, iptables.FactBytes}, "doff": {96, 4, kindNumber1, iptables.FactBytes},
		"reserved": {100, 4, kindNumber1, 0}, "flags": {104, 8, kindFlags, 0}, "window": {112, 16, kindNumber2, iptables.FactBytes},
		"checksum": {128, 16, kindNumber2, iptables.FactBytes}, "urgptr": {144, 16, kindNumber2, iptables.FactBytes},
	})},
	"udp":     {false, protoUDP, ports(map[string]place{"length": {32, 16, kindNumber2, iptables.FactLength}, "checksum": {48, 16, kindNumber2, iptables.FactBytes}})},
	"udplite": {false, protoUDPLite, ports(map[string]place{"csumcov": {32, 16, kindNumber2, iptables.FactBytes}, "checksum": {48, 16, kindNumber2, iptables.FactBytes}})},
	"sctp":    {false, protoSCTP, ports(map[string]place{"vtag": {32, 32, kindNumber4, iptables.FactBytes}, "checksum": {64, 32, kindNumber4, iptables.FactBytes}})},
	"dccp":    {false, protoDCCP, ports(map[string]place{"type": {67, 4, kindNumber1, iptables.FactBytes}})},
	"icmp": {false, protoICMP, map[string]place{
		"type": {0, 8, kindICMP, 0}, "code": {8, 8, kindICMPCode, 0}, "checksum": {16, 16, kindNumber2, iptables.FactBytes}, "id": {32, 16, kindNumber2, 0},
		"sequence": {48, 16, kindNumber2, iptables.FactBytes}, "gateway": {32, 32, kindNumber4, iptables.FactBytes}, "mtu": {48, 16, kindNumber2, iptables.FactBytes},
	}},
	"icmpv6": {false, protoICMP6, map[string]place{
		"type": {0, 8, kindICMP6, 0}, "code": {8, 8, kindICMP6Code, 0}, "checksum": {16, 16, kindNumber2, iptables.FactBytes}, "id": {32, 16, kindNumber2, 0},
		"sequence": {48, 16, kindNumber2, iptables.FactBytes}, "parameter-problem": {32, 32, kindNumber4, iptables.FactBytes}, "mtu": {32, 32, kindNumber4, iptables.FactBytes},
		"max-delay": {32, 16, kindNumber2, iptables.FactBytes}, "taddr": {64, 128, kindAddr6, iptables.FactBytes}, "daddr": {192, 128, kindAddr6, iptables.FactBytes},
	}},
	"igmp": {false, protoIGMP, map[string]place{
		"type": {0, 8, kindNumber1, iptables.FactBytes}, "mrt": {8, 8, kindNumber1, iptables.FactBytes}, "checksum": {16, 16, kindNumber2, iptables.FactBytes}, "group": {32, 32, kindAddr4, iptables.FactBytes},
	}},
	"ah":   {false, protoAH, map[string]place{"nexthdr": {0, 8, kindProtocol, iptables.FactBytes}, "hdrlength": {8, 8, kindNumber1, iptables.FactBytes}, "spi": {32, 32, kindNumber4, iptables.FactBytes}, "sequence": {64, 32, kindNumber4, iptables.FactBytes}}},
	"esp":  {false, protoESP, map[string]place{"spi": {0, 32, kindNumber4, iptables.FactBytes}, "sequence": {32, 32, kindNumber4, iptables.FactBytes}}},
	"comp": {false, protoIPComp, map[string]place{"nexthdr": {0, 8, kindProtocol, iptables.FactBytes}, "flags": {8, 8, kindNumber1, iptables.FactBytes}, "cpi": {16, 16, kindNumber2, iptables.FactBytes}}},
	"gre":  {false, protoGRE, map[string]place{"flags": {0, 5, kindNumber1, iptables.FactBytes}, "version": {13, 3, kindNumber1, iptables.FactBytes}, "protocol": {16, 16, kindEtherty, iptables.FactBytes}}},
}

func ports(more map[string]place) map[string]place {
	all := map[string]place{"sport": {0, 16, kindPort, 0}, "dport": {16, 16, kindPort, 0}}
	for name, p := range more {
		all[name] = p
	}
	return all
}

// payload is a field of a header.
func (c *compiler) payload(p nftables.Payload) field {
	f := field{expr: p}
	h, known := headers[p.Protocol]
	at, has := h.fields[p.Field]
	switch {
	case p.Tunnel != "" || p.Protocol == "vlan" || p.Protocol == "arp":
		f.never = p.Tunnel == ""
		f.Value, f.kind, f.facts = rules.Opaque{ByteSize: 4}, kindNumber4, iptables.FactBytes
		return f
	case p.Protocol == "ether" && p.Field == "saddr":
		f.Value, f.kind, f.facts = hardwareAddress{}, kindEther, iptables.FactMAC
		return f
	case p.Protocol == "ether" && p.Field == "type":
		f.Value, f.kind, f.facts = frameType{}, kindEtherty, iptables.FactMAC
		return f
	case p.Protocol == "ether" && p.Field == "daddr":
		f.Value, f.kind = rules.Opaque{ByteSize: 6}, kindEther
		return f
	case !known || !has:
		f.Value, f.kind = rules.Opaque{ByteSize: 4}, kindNumber4
		return f
	}
	f.kind, f.facts, f.needs = at.kind, at.facts, h.needs
	f.never = p.Protocol == "ip" && !c.is4() || p.Protocol == "ip6" && c.is4()
	f.Value, f.shift, f.mask = bitsOf(payloadOf(!h.network, p.Protocol == "ip6"), at.offset, at.length)
	return f
}

// payloadOf are bytes of a header.
func payloadOf(transport, six bool) func(first, size int) rules.Value {
	return func(first, size int) rules.Value {
		return rules.Payload{Transport: transport, Six: six, Offset: first, ByteSize: size}
	}
}

// bitsOf are bits, as the bytes that hold them.
func bitsOf(bytes func(first, size int) rules.Value, offset, length int) (v rules.Value, shift int, mask []byte) {
	first, end := offset/8, (offset+length+7)/8
	p := bytes(first, end-first)
	if offset%8 == 0 && length%8 == 0 {
		return p, 0, nil
	}
	mask = make([]byte, end-first)
	for bit := offset; bit < offset+length; bit++ {
		mask[bit/8-first] |= 0x80 >> (bit % 8)
	}
	return rules.Masked{Of: p, Mask: mask}, end*8 - offset - length, mask
}

// metaKinds are the keys of meta that are read; facts of keys are those of metaFacts.
var metaKinds = map[string]*kind{
	"length": kindNumber4, "protocol": kindEtherty, "nfproto": kindFamily, "l4proto": kindProtocol, "mark": kindMark,
	"iif": kindDevice, "oif": kindDevice, "iifname": kindDevice, "oifname": kindDevice, "sdif": kindDevice, "sdifname": kindDevice,
	"iiftype": kindDeviceTy, "oiftype": kindDeviceTy, "iifkind": kindString, "oifkind": kindString,
	"skuid": kindUser, "skgid": kindUser, "pkttype": kindPktType, "cpu": kindNumber4, "iifgroup": kindGroup, "oifgroup": kindGroup,
	"cgroup": kindNumber4, "rtclassid": kindNumber4, "priority": kindPriority, "nftrace": kindBool, "ipsec": kindBool, "random": kindNumber4,
	"time": kindTime, "day": kindDay, "hour": kindHour, "secmark": kindNumber4,
}

var metaFacts = map[string]iptables.Facts{
	"length": iptables.FactLength, "skuid": iptables.FactOwner, "skgid": iptables.FactOwner, "cpu": iptables.FactKernel,
	"time": iptables.FactKernel, "day": iptables.FactKernel, "hour": iptables.FactKernel, "random": iptables.FactRandom,
}

func metaField(m nftables.Meta) field {
	k := metaKinds[m.Key]
	if k == nil {
		k = kindNumber4
	}
	f := field{kind: k, facts: metaFacts[m.Key], expr: m}
	f.Value = rules.Meta{Key: m.Key, ByteSize: k.size}
	if m.Key == "random" {
		f.Value = &numgen{mod: 1 << 32}
	}
	return f
}

// ctKinds are the keys of ct that are read.
var ctKinds = map[string]*kind{
	"state": kindState, "direction": kindDirection, "status": kindStatus, "mark": kindMark, "expiration": kindDuration, "helper": kindString,
	"l3proto": kindFamily, "protocol": kindProtocol, "proto-src": kindPort, "proto-dst": kindPort, "zone": kindNumber2,
	"bytes": kindNumber8, "packets": kindNumber8, "avgpkt": kindNumber8, "id": kindNumber4, "label": kindLabel, "secmark": kindNumber4, "event": kindNumber4,
}

func (c *compiler) ct(e nftables.CT) field {
	f := field{kind: ctKinds[e.Key], expr: e}
	key := e.Key
	if key == "saddr" || key == "daddr" {
		f.kind = kindAddr6
		if c.is4() {
			f.kind = kindAddr4
		}
		f.never = e.Family == nftables.FamilyIP && !c.is4() || e.Family == nftables.FamilyIP6 && c.is4()
	}
	if f.kind == nil {
		f.kind = kindNumber4
	}
	if slices.Contains([]string{"bytes", "packets", "avgpkt"}, key) {
		f.facts = iptables.FactMemory
	}
	f.Value = rules.Ct{Key: key, Reply: e.Direction == "reply", Directed: e.Direction != "", ByteSize: f.kind.size}
	return f
}

// field is what an expression reads; false: it is none that reads a packet.
func (c *compiler) field(e nftables.Expr) (field, bool) {
	switch e := e.(type) {
	case nftables.Payload:
		return c.payload(e), true
	case nftables.RawPayload:
		f := field{expr: e, kind: &kind{size: int(e.Length+7) / 8}, facts: iptables.FactBytes}
		switch {
		case e.Base == "ll" && e.Offset == 48 && e.Length == 48:
			f.Value, f.kind, f.facts = hardwareAddress{raw: true}, kindEther, iptables.FactMAC
			return f, true
		case e.Base == "ll" && e.Offset == 48 && e.Length == 64:
			f.Value, f.facts = sourceAndType{}, iptables.FactMAC
			return f, true
		case e.Base == "ll" && e.Offset == 96 && e.Length == 16:
			f.Value, f.kind, f.facts = frameType{raw: true}, kindEtherty, iptables.FactMAC
			return f, true
		}
		if e.Base == "ll" || e.Length == 0 || e.Length > 256 || e.Offset > 1<<16 {
			f.Value, f.kind = rules.Opaque{ByteSize: min(f.kind.size, 32)}, &kind{size: min(max(1, f.kind.size), 32)}
			return f, true
		}
		of := payloadOf(e.Base == "th", !c.is4())
		if e.Base == "ih" {
			of = func(first, size int) rules.Value { return inner{first, size} }
		}
		f.Value, f.shift, f.mask = bitsOf(of, int(e.Offset), int(e.Length))
		return f, true
	case nftables.Meta:
		return metaField(e), true
	case nftables.CT:
		return c.ct(e), true
	case nftables.Fib:
		return c.fib(e), true
	case nftables.Socket:
		f := field{expr: e, kind: kindBool, facts: iptables.FactSockets, Value: socketField(e.Key)}
		if e.Key == "mark" || e.Key == "cgroupv2" {
			f.Value, f.kind = rules.Opaque{ByteSize: 4}, kindMark
		}
		return f, true
	case nftables.RT:
		return c.rt(e), true
	case nftables.TCPOption:
		return tcpOption(e), true
	case nftables.Exthdr:
		return c.extensionHeader(e), true
	case nftables.IPOption:
		return c.ipOption(e), true
	case nftables.RawTCPOption:
		return rawTCPOption(e), true
	case nftables.SCTPChunk:
		return chunkField(e), true
	case nftables.Numgen:
		return field{Value: &numgen{mod: e.Mod, offset: e.Offset, inc: e.Mode == "inc"}, kind: kindNumber4, facts: iptables.FactRandom, expr: e}, true
	case nftables.SymHash:
		return field{Value: &numgen{mod: e.Mod, offset: e.Offset}, kind: kindNumber4, facts: iptables.FactRandom, expr: e}, true
	case nftables.JHash:
		return c.jhash(e), true
	case nftables.OSF, nftables.IPsec, nftables.Unread:
		return field{Value: rules.Opaque{ByteSize: 4}, kind: kindNumber4, expr: e}, true
	}
	return field{}, false
}

// name is what the field is called in rules.
func (f *field) name() string { return nftables.Text(f.expr) }

func (f *field) unreadable() bool {
	_, is := f.Value.(rules.Opaque)
	return is
}

// constant is a literal as the field has it in its bytes.
func (f *field) constant(l nftables.Literal) ([]byte, error) {
	b, ok := f.kind.constant(l)
	if !ok {
		return nil, fmt.Errorf("%s is no value of %s", nftables.Text(l), f.name())
	}
	return f.placed(b), nil
}

// placed moves a value to where the field has it in its bytes.
func (f *field) placed(b []byte) []byte {
	size := f.Size()
	if f.shift == 0 && len(b) == size {
		return b
	}
	k := kind{size: size}
	moved, ok := k.number(numberOf(b) << f.shift)
	if !ok {
		return make([]byte, size)
	}
	return moved
}

// plain is the value of the field's bytes, moved to the right.
func (f *field) plain(b []byte) []byte {
	if f.shift == 0 {
		return b
	}
	n, _ := f.kind.number(numberOf(b) >> f.shift)
	return n
}
