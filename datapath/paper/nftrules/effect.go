package nftrules

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// effect is a statement that changes something, and after which the rule goes on; it is an [iptables.Native].
type effect struct {
	words string
	facts iptables.Facts
	do    func(*iptables.Context) rules.Truth // nil: nothing that rules see
	says  func(*iptables.Context) string      // nil: nothing
	why   string                              // why the rule does not go on, or why that is not known
}

func (e *effect) Text() string                        { return e.words }
func (e *effect) Effect() bool                        { return true }
func (e *effect) Reads() iptables.Facts               { return e.facts }
func (e *effect) WhyNot(*iptables.Context) string     { return e.why }
func (e *effect) WhyUnknown(*iptables.Context) string { return e.why }

// Does is what the effect did.
func (e *effect) Does(c *iptables.Context) string {
	if e.says == nil {
		return ""
	}
	return e.says(c)
}

func (e *effect) Evaluate(c *iptables.Context) rules.Truth {
	if e.do == nil {
		return rules.True
	}
	return e.do(c)
}

// inert is a statement that no rule sees the effect of.
func inert(words string) iptables.Native { return &effect{words: words} }

// harmless reports whether all statements of an element are such.
func harmless(list []nftables.Statement) bool {
	for _, s := range list {
		switch s.(type) {
		case nftables.Counter, nftables.Last, nftables.Log:
		default:
			return false
		}
	}
	return true
}

// mangle sets a field of the packet, or what meta and ct name (nft_meta.c, nft_ct.c, nft_payload.c).
func (c *compiler) mangle(b *builder, m nftables.Mangle) {
	words := nftables.Text(m)
	switch key := m.Key.(type) {
	case nftables.Meta:
		switch key.Key {
		case "mark":
			c.setNumber(b, m, func(ctx *iptables.Context, n uint32) { ctx.Packet.Mark = n })
			return
		case "priority", "nftrace", "pkttype", "secmark", "broute":
			b.add(inert(words))
			return
		}
	case nftables.CT:
		switch key.Key {
		case "mark":
			c.setNumber(b, m, func(ctx *iptables.Context, n uint32) {
				if e := ctx.Host.Connection(); e != nil && ctx.Host.Tracked() { // else it is a template
					e.Mark = n
				}
			})
			return
		case "event", "label", "secmark":
			b.add(inert(words))
			return
		case "zone":
			if n, ok := literalNumber(m.Value); ok && n < 1<<16 && key.Direction == "" {
				b.add(&effect{words: words, facts: iptables.FactShared, do: func(ctx *iptables.Context) rules.Truth {
					ctx.Host.SetZone(uint16(n))
					return rules.True
				}})
				return
			}
		}
	case nftables.Payload:
		if c.setField(b, key, m) {
			return
		}
	case nftables.TCPOption:
		if key.Name == "maxseg" && key.Field == "size" {
			b.needs(protoTCP)
			c.setSegmentSize(b, m)
			return
		}
	}
	b.unsupported(words, fmt.Errorf("%q is not supported", words))
}

// setNumber sets a mark.
func (c *compiler) setNumber(b *builder, m nftables.Mangle, set func(*iptables.Context, uint32)) {
	words := nftables.Text(m)
	of := field{Value: rules.Const(make([]byte, 4)), kind: kindMark, expr: m.Key}
	value, err := c.operand(m.Value, &of)
	if err != nil {
		b.unsupported(words, err)
		return
	}
	if value.never {
		b.add(never{words, fmt.Sprintf("it is a packet of %s", c.family)})
		return
	}
	b.needs(value.needs)
	says := func(ctx *iptables.Context) string { return words }
	b.add(&effect{words: words, says: says, facts: iptables.FactShared | value.facts, why: fmt.Sprintf("%s has no value for this packet", value.name()), do: func(ctx *iptables.Context) rules.Truth {
		bits, present := value.Read(view{ctx})
		switch {
		case !present:
			return rules.False
		case !bits.All():
			return rules.Unknown
		}
		set(ctx, uint32(numberOf(value.plain(bits.Bytes()))))
		return rules.True
	}})
	b.mark, b.markAt = constantMark(m), len(b.matches)-1
}

// constantMark is setting the packet's mark as iptables has it, for a statement at the end of a rule; nil: iptables does not.
func constantMark(m nftables.Mangle) iptables.Target {
	if key, ok := m.Key.(nftables.Meta); !ok || key.Key != "mark" {
		return nil
	}
	set := func(value, mask uint64) iptables.Target {
		return iptables.SetMark{Mark: iptables.MaskedValue{Value: uint32(value), Mask: uint32(mask)}}
	}
	const all = 1<<32 - 1
	switch value := m.Value.(type) {
	case nftables.Literal:
		if n, ok := value.Number(); ok {
			return set(n, all)
		}
	case nftables.Binary:
		left, ok := value.Left.(nftables.Meta)
		n, constant := literalNumber(value.Right)
		if !ok || left.Key != "mark" || !constant {
			return nil
		}
		switch value.Op {
		case "|":
			return set(n, n)
		case "&":
			return set(0, all&^n)
		case "^":
			return set(n, 0)
		}
	}
	return nil
}

// setField sets a field of a header; false: it is not one of those that the simulated packet has.
func (c *compiler) setField(b *builder, key nftables.Payload, m nftables.Mangle) bool {
	f := c.payload(key)
	words := nftables.Text(m)
	set := setters[key.Field]
	value, err := c.operand(m.Value, &f)
	if f.never || err == nil && value.never {
		b.add(never{words, fmt.Sprintf("it is a packet of %s", c.family)})
		return true
	}
	if set == nil || err != nil || f.facts&iptables.FactBytes != 0 {
		return false
	}
	b.needs(f.needs)
	b.needs(value.needs)
	says := func(ctx *iptables.Context) string { return words }
	b.add(&effect{words: words, says: says, facts: iptables.FactShared | value.facts, why: fmt.Sprintf("%s has no value for this packet", value.name()), do: func(ctx *iptables.Context) rules.Truth {
		bits, present := value.Read(view{ctx})
		switch {
		case !present:
			return rules.False
		case !bits.All():
			return rules.Unknown
		}
		set(&ctx.Packet, f.plain(bits.Bytes()))
		return rules.True
	}})
	return true
}

// setters set fields of a packet.
var setters = map[string]func(p *iptables.Packet, b []byte){
	"saddr":    func(p *iptables.Packet, b []byte) { p.Source = withAddr(p.Source, b) },
	"daddr":    func(p *iptables.Packet, b []byte) { p.Destination = withAddr(p.Destination, b) },
	"sport":    func(p *iptables.Packet, b []byte) { p.Source = withPort(p.Source, b) },
	"dport":    func(p *iptables.Packet, b []byte) { p.Destination = withPort(p.Destination, b) },
	"ttl":      func(p *iptables.Packet, b []byte) { p.TTL = b[0] },
	"hoplimit": func(p *iptables.Packet, b []byte) { p.TTL = b[0] },
	"dscp":     func(p *iptables.Packet, b []byte) { p.TOS = p.TOS&3 | byte(numberOf(b))<<2 },
	"ecn":      func(p *iptables.Packet, b []byte) { p.TOS = p.TOS&^3 | byte(numberOf(b))&3 },
	"tos":      func(p *iptables.Packet, b []byte) { p.TOS = b[0] },
}

func withAddr(at netip.AddrPort, b []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, at.Port())
}

func withPort(at netip.AddrPort, b []byte) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr(), uint16(numberOf(b)))
}

// setSegmentSize sets the maximum segment size, if the packet has the option and a greater one (nft_exthdr_tcp_set_eval).
func (c *compiler) setSegmentSize(b *builder, m nftables.Mangle) {
	words := nftables.Text(m)
	size, ok := literalNumber(m.Value)
	if _, route := m.Value.(nftables.RT); route {
		ok = true
	}
	if !ok {
		b.unsupported(words, fmt.Errorf("%q is not supported", words))
		return
	}
	b.add(&effect{words: words, facts: iptables.FactShared, do: func(ctx *iptables.Context) rules.Truth {
		if _, there := (option{kind: 2, size: true}).Read(view{ctx}); there && size > 0 {
			ctx.Change(iptables.TCPMSS{MSS: uint16(size)})
		}
		return rules.True
	}})
}
