package nftrules

import (
	"fmt"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// part is a part of a header that stands at no fixed place: a TCP option, a chunk of SCTP, an option of IPv4, or an extension
// header of IPv6 (nft_exthdr.c). Its value is whether it is there, or some of its bytes.
type part struct {
	name string
	// find returns its bytes; nil, although it is there: they are not known.
	find        func(*iptables.Packet) (b []byte, there bool)
	first, size int // in bytes; size is 0 for whether it is there
}

func (p part) Size() int      { return max(1, p.size) }
func (p part) String() string { return p.name }

// Read returns the value. A packet with a shorter part has none.
func (p part) Read(of rules.Packet) (b rules.Bits, present bool) {
	data, there := p.find(&of.(*iptables.Context).Packet)
	switch {
	case p.size == 0:
		return iptables.Flag(there), true
	case !there:
		return rules.UnknownBits(p.size), false
	case data == nil:
		return rules.UnknownBits(p.size), true
	case p.first+p.size > len(data):
		return rules.UnknownBits(p.size), false
	}
	b.Put(data[p.first : p.first+p.size])
	return b, true
}

// partField is a field of a part, by its place in bits; an empty name of a field: whether the part is there.
func partField(e nftables.Expr, name string, at place, find func(*iptables.Packet) ([]byte, bool)) field {
	f := field{expr: e, kind: at.kind, facts: at.facts}
	of := func(first, size int) rules.Value { return part{nftables.Text(e), find, first, size} }
	if name == "" {
		f.Value, f.kind = of(0, 0), kindBool
		return f
	}
	if at.kind == nil { // not known
		f.Value, f.kind = rules.Opaque{ByteSize: 4}, kindNumber4
		return f
	}
	f.Value, f.shift, f.mask = bitsOf(of, at.offset, at.length)
	return f
}

// optionFields are the fields of TCP options but for those of sack (nftables, src/tcpopt.c).
var optionFields = map[string]place{
	"length": {8, 8, kindNumber1, 0}, "size": {16, 16, kindNumber2, 0}, "count": {16, 8, kindNumber1, 0},
	"tsval": {16, 32, kindNumber4, 0}, "tsecr": {48, 32, kindNumber4, 0}, "subtype": {16, 4, kindNumber1, 0},
}

// optionKind is the kind of a TCP option by its name or number.
func optionKind(name string) (kind uint8, ok bool) {
	if k, ok := nftables.OptionKinds[name]; ok {
		return k, true
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil
}

func tcpOption(o nftables.TCPOption) field {
	k, known := optionKind(o.Name)
	at := optionFields[o.Field]
	if o.Field == "left" || o.Field == "right" {
		n, _ := strconv.Atoi(o.Name[len("sack"):])
		at = place{16 + 64*n, 32, kindNumber4, 0}
		if o.Field == "right" {
			at.offset += 32
		}
	}
	if !known {
		at, o.Field = place{}, "?"
	}
	at.facts = iptables.FactOptions
	if o.Field != "" && o.Field != "size" {
		at.facts |= iptables.FactBytes
	}
	return partField(o, o.Field, at, func(p *iptables.Packet) ([]byte, bool) { return p.TCPOption(k) })
}

func rawTCPOption(o nftables.RawTCPOption) field {
	at := place{int(o.Offset), int(o.Length), &kind{size: int(o.Length+7) / 8}, iptables.FactOptions | iptables.FactBytes}
	if o.Length == 0 || o.Length > 64 || o.Offset > 1<<10 || o.Kind > 255 {
		at.kind = nil
	}
	return partField(o, "bits", at, func(p *iptables.Packet) ([]byte, bool) { return p.TCPOption(uint8(o.Kind)) })
}

var chunkTypes = map[string]uint8{
	"data": 0, "init": 1, "init-ack": 2, "sack": 3, "heartbeat": 4, "heartbeat-ack": 5, "abort": 6, "shutdown": 7, "shutdown-ack": 8, "error": 9,
	"cookie-echo": 10, "cookie-ack": 11, "ecne": 12, "cwr": 13, "shutdown-complete": 14, "asconf-ack": 0x80, "forward-tsn": 0xc0, "asconf": 0xc1,
}

// chunkFields are the fields of chunks (nftables, src/sctp_chunk.c); a-rwnd is at the same place in all.
var chunkFields = map[string]place{
	"type": {0, 8, kindNumber1, 0}, "flags": {8, 8, kindNumber1, 0}, "length": {16, 16, kindNumber2, 0},
	"tsn": {32, 32, kindNumber4, 0}, "stream": {64, 16, kindNumber2, 0}, "ssn": {80, 16, kindNumber2, 0}, "ppid": {96, 32, kindNumber4, 0},
	"init-tag": {32, 32, kindNumber4, 0}, "a-rwnd": {64, 32, kindNumber4, 0}, "num-outbound-streams": {96, 16, kindNumber2, 0},
	"num-inbound-streams": {112, 16, kindNumber2, 0}, "initial-tsn": {128, 32, kindNumber4, 0},
	"cum-tsn-ack": {32, 32, kindNumber4, 0}, "num-gap-ack-blocks": {96, 16, kindNumber2, 0}, "num-dup-tsns": {112, 16, kindNumber2, 0},
	"lowest-tsn": {32, 32, kindNumber4, 0}, "seqno": {32, 32, kindNumber4, 0}, "new-cum-tsn": {32, 32, kindNumber4, 0},
}

func chunkField(e nftables.SCTPChunk) field {
	at := chunkFields[e.Field]
	at.facts = iptables.FactChunks
	if e.Field != "" {
		at.facts |= iptables.FactBytes
	}
	return partField(e, e.Field, at, func(p *iptables.Packet) ([]byte, bool) { return p.Chunk(chunkTypes[e.Name]) })
}

// ipOptions are the types of IPv4's options (ip.h), and ipOptionFields their fields (nftables, src/ipopt.c).
var (
	ipOptions      = map[string]uint8{"rr": 7, "lsrr": 131, "ssrr": 137, "ra": 148}
	ipOptionFields = map[string]place{
		"type": {0, 8, kindNumber1, 0}, "length": {8, 8, kindNumber1, 0}, "ptr": {16, 8, kindNumber1, 0}, "addr": {24, 32, kindAddr4, 0}, "value": {16, 16, kindNumber2, 0},
	}
)

func (c *compiler) ipOption(e nftables.IPOption) field {
	at := ipOptionFields[e.Field]
	at.facts = iptables.FactBytes
	f := partField(e, e.Field, at, func(p *iptables.Packet) ([]byte, bool) { return p.IPOption(ipOptions[e.Name]) })
	f.never = !c.is4()
	return f
}

// extensions are the protocol numbers of IPv6's extension headers, and the type of routing headers that have one.
var extensions = map[string]struct {
	protocol uint8
	typ      int // -1: any
}{"hbh": {0, -1}, "rt": {43, -1}, "rt0": {43, 0}, "rt2": {43, 2}, "srh": {43, 4}, "frag": {44, -1}, "dst": {60, -1}, "mh": {135, -1}}

// extensionFields are their fields (nftables, src/exthdr.c).
var extensionFields = map[string]place{
	"nexthdr": {0, 8, kindProtocol, 0}, "hdrlength": {8, 8, kindNumber1, 0},
	"rt type": {16, 8, kindNumber1, 0}, "rt seg-left": {24, 8, kindNumber1, 0}, "rt0 addr": {64, 128, kindAddr6, 0}, "rt2 addr": {64, 128, kindAddr6, 0},
	"srh last-entry": {32, 8, kindNumber1, 0}, "srh flags": {40, 8, kindNumber1, 0}, "srh tag": {48, 16, kindNumber2, 0}, "srh sid": {64, 128, kindAddr6, 0},
	"frag reserved": {8, 8, kindNumber1, 0}, "frag frag-off": {16, 13, kindNumber2, 0}, "frag reserved2": {29, 2, kindNumber1, 0}, "frag more-fragments": {31, 1, kindBool, 0}, "frag id": {32, 32, kindNumber4, 0},
	"mh type": {16, 8, kindNumber1, 0}, "mh reserved": {24, 8, kindNumber1, 0}, "mh checksum": {32, 16, kindNumber2, 0},
}

func (c *compiler) extensionHeader(e nftables.Exthdr) field {
	at, shared := extensionFields[e.Field]
	if !shared {
		at = extensionFields[fmt.Sprintf("%s %s", e.Name, e.Field)]
	}
	at.facts = iptables.FactBytes
	if e.Index > 0 {
		at.offset += 128 * int(min(e.Index, 16))
	}
	x := extensions[e.Name]
	f := partField(e, e.Field, at, func(p *iptables.Packet) ([]byte, bool) {
		b, there := p.Extension(x.protocol)
		if there && x.typ >= 0 && int(b[2]) != x.typ {
			return nil, false
		}
		return b, there
	})
	f.never = c.is4()
	return f
}
