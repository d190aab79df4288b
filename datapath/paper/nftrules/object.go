package nftrules

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// object compiles the use of a named object (nft_objref.c).
func (c *compiler) object(b *builder, s nftables.ObjectRef) error {
	words := nftables.Text(s)
	var n iptables.Native
	var err error
	switch name := s.Name.(type) {
	case nftables.Literal:
		if s.Kind == "synproxy" {
			b.needs(protoTCP)
			b.target = iptables.NativeTarget{Lookup: synproxy(words)}
			return nil
		}
		n, err = c.objectNamed(s.Kind, name.Text, words)
	case nftables.Map:
		n, err = c.objectOf(b, s.Kind, name, words)
	default:
		err = fmt.Errorf("%s is not supported", words)
	}
	if err == nil {
		b.add(n)
	}
	return err
}

// objectNamed is what an object does.
func (c *compiler) objectNamed(kind, name, words string) (iptables.Native, error) {
	o := c.objects[kind+" "+name]
	if o == nil && kind != "counter" && kind != "secmark" {
		return nil, fmt.Errorf("the file has no %s %s", kind, name)
	}
	switch kind {
	case "limit", "quota":
		if of := newStateful(o.Body, words, o); of != nil {
			return of, nil
		}
	case "ct helper":
		if body, ok := o.Body.(nftables.CTHelper); ok {
			return c.setHelper(body, words), nil
		}
	case "ct timeout":
		if body, ok := o.Body.(nftables.CTTimeout); ok {
			return c.setTimeouts(body, words), nil
		}
	case "counter", "secmark", "ct expectation": // no rule sees their effect on this connection
		return inert(words), nil
	}
	return nil, fmt.Errorf("%s is not supported", words)
}

// ofNew is an effect on a connection that is not in the table yet, of a protocol and a family.
func (c *compiler) ofNew(words, protocol, family string, do func(*iptables.Connection)) iptables.Native {
	b, ok := parseProtocol(protocol)
	other := family == "ip" && !c.is4() || family == "ip6" && c.is4()
	return &effect{words: words, facts: iptables.FactShared, do: func(ctx *iptables.Context) rules.Truth {
		if e := ctx.Host.Connection(); e != nil && ctx.Host.Tracked() && !e.Confirmed && ok && e.Original.Protocol == b[0] && !other {
			do(e)
		}
		return rules.True
	}}
}

// setHelper is nft_ct_helper_obj_eval (nft_ct.c): the first one stays.
func (c *compiler) setHelper(h nftables.CTHelper, words string) iptables.Native {
	return c.ofNew(words, h.Protocol, h.L3Proto, func(e *iptables.Connection) {
		if e.Helper == "" {
			e.Helper = h.Type
		}
	})
}

// setTimeouts is nft_ct_timeout_obj_eval (nft_ct.c).
func (c *compiler) setTimeouts(t nftables.CTTimeout, words string) iptables.Native {
	policy := make(map[string]uint32)
	for _, s := range t.Policy {
		policy[s.State] = uint32(s.Timeout.Seconds())
	}
	return c.ofNew(words, t.Protocol, t.L3Proto, func(e *iptables.Connection) { e.Timeouts = policy })
}

// objects are those that a map has; it is an [iptables.Native]. Without one for the packet the rule ends.
type objects struct {
	*table
	words string
	of    map[string]iptables.Native // by name
}

func (c *compiler) objectOf(b *builder, kind string, m nftables.Map, words string) (iptables.Native, error) {
	t, err := c.lookup(b, m)
	if err != nil {
		return nil, err
	}
	o := &objects{t, words, make(map[string]iptables.Native)}
	for _, e := range t.elements {
		l, ok := e.Value.(nftables.Literal)
		if !ok {
			return nil, fmt.Errorf("an element of the map has no %s", kind)
		}
		if o.of[l.Text], err = c.objectNamed(kind, l.Text, words); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *objects) Text() string                  { return o.words }
func (o *objects) Does(*iptables.Context) string { return "" }

// Reads are what the key and the objects depend on.
func (o *objects) Reads() iptables.Facts {
	facts := factsOf(o.fields)
	for _, n := range o.of {
		facts |= n.Reads()
	}
	return facts
}

// Effect reports whether the objects are such that the rule goes on.
func (o *objects) Effect() bool {
	for _, n := range o.of {
		return n.Effect()
	}
	return false
}

func (o *objects) found(c *iptables.Context) (iptables.Native, rules.Truth) {
	e, truth := o.find(c)
	if truth != rules.True {
		return nil, truth
	}
	l, _ := e.Value.(nftables.Literal)
	if n := o.of[l.Text]; n != nil {
		return n, rules.True
	}
	return nil, rules.Unknown
}

func (o *objects) Evaluate(c *iptables.Context) rules.Truth {
	n, truth := o.found(c)
	if n == nil {
		return truth
	}
	return n.Evaluate(c)
}

func (o *objects) WhyNot(c *iptables.Context) string {
	if n, _ := o.found(c); n != nil {
		return n.WhyNot(c)
	}
	return fmt.Sprintf("%s has nothing for %s", o.name(), o.described(c))
}

func (o *objects) WhyUnknown(c *iptables.Context) string {
	return fmt.Sprintf("%s is not known of this packet", o.described(c))
}

// synproxy answers the client's SYN and ACK in place of the server (nft_synproxy.c); it is an [iptables.Lookup].
type synproxy string

func (s synproxy) Text() string { return string(s) }

// Find returns what becomes of the packet; others go on.
func (synproxy) Find(c *iptables.Context) (iptables.Target, fmt.Stringer, rules.Truth) {
	if c.Packet.Flags&(iptables.SYN|iptables.ACK) == 0 {
		if c.Packet.Is4() {
			return nil, nil, rules.True
		}
		// The kernel takes it for a packet of IPv4 (nf_ip_checksum).
		c.Host.Assume("that no device has checked the packet's checksum, so that synproxy finds it wrong")
		return iptables.Drop, nil, rules.True
	}
	return iptables.Synproxy{}, nil, rules.True
}

func (synproxy) WhyNot(*iptables.Context) string { return "" }
func (synproxy) Translates() bool                { return false }
func (synproxy) Chains() []string                { return nil }
