package nftrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// hardwareAddress is the source in the packet's Ethernet frame.
type hardwareAddress struct{ raw bool } // raw: without the condition that the frame is Ethernet's

func (hardwareAddress) Size() int      { return 6 }
func (hardwareAddress) String() string { return "ether saddr" }

// Read returns the address; a packet without a frame has none (nft_payload.c).
func (h hardwareAddress) Read(p rules.Packet) (b rules.Bits, present bool) {
	m := p.(*iptables.Context).Packet.MAC
	if h.raw && p.(*iptables.Context).In == "lo" { // loopback has zeros there
		m = new(iptables.MACAddress)
	}
	if m == nil {
		return rules.UnknownBits(6), false
	}
	b.Put(m[:])
	return b, true
}

// frameType is the type in the packet's Ethernet frame.
type frameType struct{ raw bool } // see hardwareAddress

func (frameType) Size() int      { return 2 }
func (frameType) String() string { return "ether type" }

// Read returns the type; a packet without a frame has none (nft_payload.c).
func (f frameType) Read(p rules.Packet) (b rules.Bits, present bool) {
	if v := p.(*iptables.Context); v.Packet.MAC == nil && !(f.raw && v.In == "lo") {
		return rules.UnknownBits(2), false
	}
	return p.Meta(rules.Meta{Key: "protocol", ByteSize: 2})
}

// sourceAndType are the last 8 bytes of the packet's Ethernet header, as which nft lists conditions on both.
type sourceAndType struct{}

func (sourceAndType) Size() int      { return 8 }
func (sourceAndType) String() string { return "ether saddr and type" }

// Read returns the bytes.
func (sourceAndType) Read(p rules.Packet) (b rules.Bits, present bool) {
	source, present := hardwareAddress{raw: true}.Read(p)
	typ, typed := frameType{raw: true}.Read(p)
	b = rules.UnknownBits(8)
	copy(b.Data[:], source.Data[:6])
	copy(b.Known[:], source.Known[:6])
	copy(b.Data[6:], typ.Data[:2])
	copy(b.Known[6:], typ.Known[:2])
	return b, present && typed
}

// socketField is a fact about the socket of the packet (nft_socket.c): "transparent" or "wildcard".
type socketField string

func (socketField) Size() int        { return 1 }
func (s socketField) String() string { return "socket " + string(s) }

// Read returns the fact.
func (s socketField) Read(p rules.Packet) (rules.Bits, bool) {
	found, wildcard, transparent := p.(*iptables.Context).Host.Listener()
	if s == "wildcard" {
		return iptables.Flag(wildcard), found
	}
	return iptables.Flag(transparent), found
}

// fibDevice is the device that leads to an address (nft_fib4_eval, nft_fib6_eval).
type fibDevice struct {
	source  bool
	mark    bool // the route is that of packets with the packet's mark
	in, out bool // the route must be by that device
	check   bool // only whether there is a route
}

func (f fibDevice) Size() int {
	if f.check {
		return 1
	}
	return rules.DeviceSize
}
func (f fibDevice) String() string { return "fib" }

// Read returns the name of the device; none if there is no route to another host.
func (f fibDevice) Read(p rules.Packet) (rules.Bits, bool) {
	v := p.(*iptables.Context)
	device, mark := "", uint32(0)
	if f.mark {
		mark = v.Packet.Mark
	}
	switch typ, by := v.Host.RouteBack(v.Address(f.source), mark); {
	case v.In == "lo" && !v.Host.Assigned(): // nft_fib_can_skip; before 6.16 only at PREROUTING
		device = v.In
	case typ != iptables.AddrUnicast && typ != iptables.AddrBroadcast:
	case f.in && by != v.In, f.out && by != v.Out:
	default:
		device = by
	}
	if f.check {
		return iptables.Flag(device != ""), true
	}
	return rules.DeviceName(device), true
}

func (c *compiler) fib(e nftables.Fib) field {
	has := func(flag string) bool { return slices.Contains(e.Flags, flag) }
	f := field{expr: e, kind: kindFib}
	if e.Result == "type" {
		f.Value = rules.AddrType{Source: has("saddr"), In: has("iif"), Out: has("oif")}
		return f
	}
	f.kind = kindDevice
	if e.Check {
		f.kind = kindBool
	}
	f.Value = fibDevice{source: has("saddr"), mark: has("mark"), in: has("iif"), out: has("oif"), check: e.Check}
	return f
}

// rt is a fact about the packet's route (nft_rt_get_eval).
func (c *compiler) rt(e nftables.RT) field {
	f := field{expr: e, kind: kindNumber4, Value: rules.Opaque{ByteSize: 4}}
	switch e.Key {
	case "ipsec":
		f.Value, f.kind = rules.Const{0}, kindBool
	case "nexthop":
		f.kind = c.addressField().kind
		f.Value = nextHop(f.kind.size)
		f.never = e.Family == nftables.FamilyIP && !c.is4() || e.Family == nftables.FamilyIP6 && c.is4()
	case "mtu":
		f.Value, f.kind = segmentSize{}, kindNumber2
	}
	return f
}

// nextHop is the next hop of the packet's route; it is the destination on the link.
type nextHop int

func (n nextHop) Size() int    { return int(n) }
func (nextHop) String() string { return "rt nexthop" }

// Read returns the address; a packet without a route has none.
func (n nextHop) Read(p rules.Packet) (b rules.Bits, present bool) {
	a := p.(*iptables.Context).Host.NextHop()
	if !a.IsValid() {
		return rules.UnknownBits(n.Size()), false
	}
	b.PutAddr(a)
	return b, true
}

// inner are bytes behind the transport header (nft_payload_inner_offset).
type inner struct{ first, size int }

func (i inner) Size() int    { return i.size }
func (inner) String() string { return "@ih" }

// Read returns the bytes; only packets of TCP and UDP have some.
func (i inner) Read(p rules.Packet) (rules.Bits, bool) {
	packet := &p.(*iptables.Context).Packet
	header := 8
	switch packet.Protocol {
	case protoUDP:
	case protoTCP:
		b, present := packet.ReadHeader(true, 12, 1)
		if !b.All() || !present {
			return rules.UnknownBits(i.size), present
		}
		header = int(b.Data[0]>>4) * 4
	default:
		return rules.UnknownBits(i.size), false
	}
	return packet.ReadHeader(true, header+i.first, i.size)
}

// segmentSize is the greatest segment that fits the packet's route and the route back (get_tcpmss, nft_rt.c).
type segmentSize struct{}

func (segmentSize) Size() int      { return 2 }
func (segmentSize) String() string { return "rt mtu" }

// Read returns the size, for the devices' usual MTUs.
func (segmentSize) Read(p rules.Packet) (rules.Bits, bool) {
	v := p.(*iptables.Context)
	const loopback, ethernet, least = 65536, 1500, 536 // TCP_MSS_DEFAULT
	mtu, headers := uint64(loopback), uint64(40)
	if !v.Packet.Is4() {
		headers = 60
	}
	back, _ := v.Host.RouteBack(v.Packet.Source.Addr(), 0)
	if v.Out != "lo" || back == iptables.AddrUnicast || back == iptables.AddrBroadcast {
		mtu = ethernet
		v.Host.Assume(fmt.Sprintf("that the path's MTU is %d", mtu))
	}
	if mtu == loopback {
		return iptables.NetworkNumber(2, least), true
	}
	return iptables.NetworkNumber(2, mtu-headers), true
}

// numgen is a number that is drawn at random. One that counts is, too: where its counter stands is not known.
type numgen struct {
	mod, offset uint64
	inc         bool
	// cuts are the numbers, in order, at which the rule begins to do something else; without the offset, and from 0 on.
	cuts []uint64
}

func (*numgen) Size() int        { return 4 }
func (n *numgen) String() string { return "numgen" }

// Read draws one of the parts that the rule tells apart, and returns its first number.
func (n *numgen) Read(p rules.Packet) (rules.Bits, bool) {
	v := p.(*iptables.Context)
	if n.inc && v.Host.Fresh() {
		next, _ := v.Recall(n).(uint64)
		v.Keep(n, (next+1)%max(1, n.mod))
		return iptables.NetworkNumber(4, next+n.offset), true
	}
	const most = 256
	cuts := n.cuts
	if cuts == nil {
		if n.mod > most {
			return rules.UnknownBits(4), true
		}
		for i := range n.mod {
			cuts = append(cuts, i)
		}
	}
	left := n.mod
	for i, first := range cuts {
		end := n.mod
		if i+1 < len(cuts) {
			end = cuts[i+1]
		}
		size := end - first
		if size >= left || v.Host.Draw(float64(size)/float64(left)) {
			return iptables.NetworkNumber(4, first+n.offset), true
		}
		left -= size
	}
	return iptables.NetworkNumber(4, n.offset), true
}

// tellApart has a number generator draw only what ranges tell apart.
func tellApart(fields []field, ranges []rules.Range) {
	if len(fields) != 1 {
		return
	}
	n, ok := fields[0].Value.(*numgen)
	if !ok || n.mod == 0 {
		return
	}
	cuts := []uint64{0}
	add := func(number uint64) {
		if number > n.offset && number-n.offset < n.mod {
			cuts = append(cuts, number-n.offset)
		}
	}
	for _, r := range ranges {
		add(numberOf(r.First))
		add(numberOf(r.Last) + 1)
	}
	slices.Sort(cuts)
	n.cuts = slices.Compact(cuts)
}

// hash is jhash of values (nft_hash.c).
type hash struct {
	of          []field
	mod, offset uint64
	seed        uint32
}

func (hash) Size() int      { return 4 }
func (hash) String() string { return "jhash" }

// Read returns the number.
func (h hash) Read(p rules.Packet) (rules.Bits, bool) {
	var data []byte
	for _, f := range h.of {
		b, present := f.Read(p)
		if !present {
			return rules.UnknownBits(4), false
		}
		if !b.All() {
			return rules.UnknownBits(4), true
		}
		part := slices.Clone(f.plain(b.Bytes()))
		if f.hostOrder() {
			slices.Reverse(part)
		}
		data = append(data, part...)
		if len(h.of) > 1 {
			data = append(data, make([]byte, (4-len(data)%4)%4)...)
		}
	}
	return iptables.NetworkNumber(4, uint64(rules.Hash(data, h.seed))*h.mod>>32+h.offset), true
}

// hostOrder reports whether the kernel has the value as a number of the machine, which is little-endian.
func (f *field) hostOrder() bool {
	switch v := f.Value.(type) {
	case rules.Meta:
		return f.kind.parse == nil && v.Key != "protocol"
	case rules.Ct:
		return f.kind.parse == nil
	}
	return false
}

// jhash of an expression. Without a seed, the kernel draws one.
func (c *compiler) jhash(e nftables.JHash) field {
	f := field{kind: kindNumber4, expr: e}
	of, err := c.fields(e.Of)
	if err != nil || !e.Seeded {
		f.Value, f.facts, f.needs, f.never = &numgen{mod: e.Mod, offset: e.Offset}, iptables.FactRandom, needsOf(of), neverOf(of)
		return f
	}
	h := hash{of: of, mod: e.Mod, offset: e.Offset, seed: uint32(e.Seed)}
	f.facts, f.needs, f.never = factsOf(of), needsOf(of), neverOf(of)
	f.Value = h
	return f
}

// operation is A op B, of values that are both not constant.
type operation struct {
	op   string
	a, b rules.Value
}

func (o operation) Size() int { return o.a.Size() }
func (o operation) String() string {
	return strings.Join([]string{o.a.String(), o.op, o.b.String()}, " ")
}

// Read returns the value.
func (o operation) Read(p rules.Packet) (rules.Bits, bool) {
	a, there := o.a.Read(p)
	b, too := o.b.Read(p)
	for i := range a.Size {
		known := a.Known[i] & b.Known[i]
		switch o.op {
		case "&":
			a.Data[i] &= b.Data[i]
		case "|":
			a.Data[i] |= b.Data[i]
		default:
			a.Data[i] ^= b.Data[i]
		}
		a.Data[i], a.Known[i] = a.Data[i]&known, known
	}
	return a, there && too
}

// shifted is a number moved by bits: to the left, or to the right if they are negative.
type shifted struct {
	of rules.Value
	by int
}

func (s shifted) Size() int      { return s.of.Size() }
func (s shifted) String() string { return s.of.String() }

// Read returns the value.
func (s shifted) Read(p rules.Packet) (rules.Bits, bool) {
	b, present := s.of.Read(p)
	if !b.All() || b.Size > 8 {
		return rules.UnknownBits(b.Size), present
	}
	n := numberOf(b.Bytes())
	if s.by < 0 {
		n >>= -s.by
	} else {
		n <<= s.by
	}
	return iptables.NetworkNumber(b.Size, n&(1<<(8*b.Size)-1)), present
}
