package nftrules

import (
	"fmt"

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
	why   func(*iptables.Context) string      // why the rule does not go on, or why that is not known; nil: it always goes on
}

func (e *effect) Text() string                          { return e.words }
func (e *effect) Effect() bool                          { return true }
func (e *effect) Reads() iptables.Facts                 { return e.facts }
func (e *effect) WhyUnknown(c *iptables.Context) string { return e.WhyNot(c) }

// WhyNot is why the rule does not go on.
func (e *effect) WhyNot(c *iptables.Context) string {
	if e.why == nil {
		return ""
	}
	return e.why(c)
}

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

// mangle sets a field of the packet, or what meta and ct name (nft_meta.c, nft_ct.c, nft_payload.c, nft_exthdr.c).
func (c *compiler) mangle(b *builder, m nftables.Mangle) error {
	switch key := m.Key.(type) {
	case nftables.Meta:
		switch key.Key {
		case "mark":
			err := c.set(b, m, constantField(kindMark, key), func(ctx *iptables.Context, v []byte) { ctx.Packet.Mark = uint32(numberOf(v)) })
			b.mark, b.markAt = constantMark(m), len(b.matches)-1
			return err
		case "priority":
			return c.set(b, m, constantField(kindPriority, key), func(ctx *iptables.Context, v []byte) { ctx.Packet.Priority = uint32(numberOf(v)) })
		case "nftrace", "pkttype", "secmark", "broute":
			b.add(inert(nftables.Text(m)))
			return nil
		}
	case nftables.CT:
		ofConnection := func(set func(e *iptables.Connection, v []byte)) func(*iptables.Context, []byte) {
			return func(ctx *iptables.Context, v []byte) {
				if e := ctx.Host.Connection(); e != nil && ctx.Host.Tracked() { // else it is a template
					set(e, v)
				}
			}
		}
		switch key.Key {
		case "mark":
			return c.set(b, m, constantField(kindMark, key), ofConnection(func(e *iptables.Connection, v []byte) { e.Mark = uint32(numberOf(v)) }))
		case "label": // adds (nf_connlabels_replace)
			return c.set(b, m, constantField(kindLabel, key), ofConnection(func(e *iptables.Connection, v []byte) {
				for i := range v {
					e.Labels[i] |= v[i]
				}
			}))
		case "event", "secmark":
			b.add(inert(nftables.Text(m)))
			return nil
		case "zone":
			if key.Direction == "" {
				return c.set(b, m, constantField(kindNumber2, key), func(ctx *iptables.Context, v []byte) { ctx.Host.SetZone(uint16(numberOf(v))) })
			}
		}
	case nftables.Payload, nftables.RawPayload:
		return c.setField(b, m)
	case nftables.TCPOption:
		return c.setOption(b, key, m)
	}
	return notSupported(m)
}

// notSupported is the error of a statement that is not supported as a whole.
func notSupported(s nftables.Statement) error {
	return fmt.Errorf("%q is not supported", nftables.Text(s))
}

// constantField is what values of a kind are for.
func constantField(k *kind, e nftables.Expr) field {
	return field{Value: rules.Const(make([]byte, k.size)), kind: k, expr: e}
}

// set sets something to a value, in the bytes of the field.
func (c *compiler) set(b *builder, m nftables.Mangle, of field, set func(*iptables.Context, []byte)) error {
	words := nftables.Text(m)
	value, err := c.operand(m.Value, &of)
	switch {
	case err != nil:
		return err
	case value.Size() > of.Size() || value.shift != 0 && of.shift != 0:
		return notSupported(m)
	case of.never || value.never:
		return errFamily
	}
	b.needs(of.needs)
	b.needs(value.needs)
	says := func(*iptables.Context) string { return words }
	none := func(*iptables.Context) string { return fmt.Sprintf("%s has no value for this packet", value.name()) }
	b.add(&effect{words: words, says: says, facts: iptables.FactShared | value.facts, why: none, do: func(ctx *iptables.Context) rules.Truth {
		bits, present := value.Read(ctx)
		switch {
		case !present:
			return rules.False
		case !bits.All():
			return rules.Unknown
		}
		v := value.plain(bits.Bytes())
		if n := of.Size() - len(v); n > 0 { // a shorter number
			v = append(make([]byte, n), v...)
		}
		set(ctx, v)
		return rules.True
	}})
	return nil
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

// setField sets a field of a header.
func (c *compiler) setField(b *builder, m nftables.Mangle) error {
	f, _ := c.field(m.Key)
	switch v := baseOf(f.Value).(type) {
	case hardwareAddress:
		// Only packets with an Ethernet frame have it: nft leaves this condition out.
		b.add(&comparison{field: f, of: nftables.Match{Op: "==", Left: m.Key, Right: nftables.Wildcard{}}, Compare: rules.Compare{Values: []rules.Value{f.Value}, Ranges: []rules.Range{{First: make([]byte, 6), Last: f.kind.most()}}}})
		return c.set(b, m, f, func(ctx *iptables.Context, v []byte) { ctx.Packet.MAC = new(iptables.MACAddress(v)) })
	case rules.Payload:
		if _, err := c.operand(m.Value, &f); err == nil && !f.never {
			return c.setBytes(b, m, f, v)
		}
	}
	if f.never {
		return errFamily
	}
	return notSupported(m)
}

// baseOf is what a value is some bits of.
func baseOf(v rules.Value) rules.Value {
	if masked, ok := v.(rules.Masked); ok {
		return masked.Of
	}
	return v
}

// setBytes writes to a header.
func (c *compiler) setBytes(b *builder, m nftables.Mangle, f field, at rules.Payload) error {
	return c.set(b, m, f, func(ctx *iptables.Context, v []byte) {
		if f.mask != nil {
			old, _ := ctx.Packet.ReadHeader(at.Transport, at.Offset, at.ByteSize)
			for i := range v {
				v[i] = v[i]&f.mask[i] | old.Data[i]&^f.mask[i]
			}
		}
		ctx.Packet.WriteHeader(at.Transport, at.Offset, v)
	})
}

// setOption sets a field of a TCP option, if the packet has it: of the maximum segment size only to a smaller one.
func (c *compiler) setOption(b *builder, o nftables.TCPOption, m nftables.Mangle) error {
	f := tcpOption(o)
	kind, ok := optionKind(o.Name)
	at, is := baseOf(f.Value).(part)
	if !ok || !is || f.mask != nil || at.size < 2 {
		return notSupported(m)
	}
	f.needs = protoTCP
	return c.set(b, m, f, func(ctx *iptables.Context, v []byte) {
		if kind != nftables.OptionKinds["maxseg"] {
			ctx.Packet.WriteTCPOption(kind, at.first, v)
		} else if _, there := ctx.Packet.TCPOption(kind); there && numberOf(v) > 0 {
			ctx.Change(iptables.TCPMSS{MSS: uint16(numberOf(v))})
		}
	})
}

// strip puts no operations in place of a TCP option (nft_exthdr_tcp_strip_eval).
func (c *compiler) strip(b *builder, s nftables.Reset) error {
	o, _ := s.Option.(nftables.TCPOption)
	kind, ok := optionKind(o.Name)
	if !ok {
		return notSupported(s)
	}
	b.needs(protoTCP)
	b.add(&effect{words: nftables.Text(s), facts: iptables.FactShared, do: func(ctx *iptables.Context) rules.Truth {
		ctx.Packet.StripTCPOption(kind)
		return rules.True
	}})
	return nil
}
