package nftrules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// table is a set or map with the fields that are looked up in it.
type table struct {
	*rules.Set
	fields []field
	key    rules.Key
	// declared is the set of the file; nil: it is part of a rule.
	declared *nftables.Set
	// elements are those of the set, in the order of the file. The position of each is its value in the Set.
	elements []nftables.Element
	// dynamic: rules change it.
	dynamic bool
}

// name is the set as rules name it.
func (t *table) name() string {
	if t.declared == nil {
		return "the set"
	}
	return "@" + t.declared.Name
}

// tableKey tells the forms of one set apart, which the fields that are looked up in it make.
type tableKey struct {
	set  string
	form string
}

// table compiles a set or map.
func (c *compiler) table(data nftables.Expr, fields []field) (*table, error) {
	ref, isRef := data.(nftables.SetRef)
	if !isRef {
		anonymous, ok := data.(nftables.AnonymousSet)
		if !ok {
			return nil, fmt.Errorf("%s is no set", nftables.Text(data))
		}
		return compileTable(&table{fields: fields, elements: anonymous.Elements})
	}
	declared := c.sets[string(ref)]
	if declared == nil {
		return nil, fmt.Errorf("the file has no set %s", ref)
	}
	if c.terse && !c.dynamic[string(ref)] {
		return nil, fmt.Errorf("the elements of %s are not in the file: nft without -t prints them", ref)
	}
	var form strings.Builder
	for _, f := range fields {
		fmt.Fprintf(&form, "%p %d %d,", f.kind, f.shift, f.Size())
	}
	k := tableKey{string(ref), form.String()}
	made := c.tables[k]
	if made == nil {
		t, err := compileTable(&table{fields: fields, elements: declared.Elements, declared: declared, dynamic: c.dynamic[string(ref)]})
		if err != nil {
			return nil, err
		}
		made, c.tables[k] = t, t
	}
	same := *made
	same.fields, same.key = fields, keyOf(fields)
	return &same, nil
}

func compileTable(t *table) (*table, error) {
	t.Set, t.key = &rules.Set{ValueSize: 4}, keyOf(t.fields)
	t.Elements = make([]rules.Element, 0, len(t.elements))
	var ranges []rules.Range
	for i, e := range t.elements {
		position := iptables.NetworkNumber(4, uint64(i))
		value := append([]byte(nil), position.Bytes()...)
		if _, any := e.Key.(nftables.Wildcard); any {
			t.Any = &rules.Element{Value: value}
			continue
		}
		r, err := keyRange(t.fields, e.Key)
		if err != nil {
			return nil, err
		}
		t.Elements = append(t.Elements, rules.Element{Key: r, Value: value})
		if t.declared == nil {
			ranges = append(ranges, r)
		}
	}
	t.Sort()
	if ranges != nil {
		tellApart(t.fields, ranges)
	}
	return t, nil
}

// change is what packets have done to a key of a dynamic set.
type change struct {
	deleted bool
	element []nftables.Element // the one that was added
}

// changed is the key under which changes are kept.
type changed struct {
	set *nftables.Set
	key string
}

// find looks the packet up.
func (t *table) find(c *iptables.Context) (*nftables.Element, rules.Truth) {
	if t.dynamic {
		key, truth := t.bytes(c)
		if truth != rules.True {
			return nil, truth
		}
		if done, ok := c.Recall(changed{t.declared, key}).(change); ok {
			switch {
			case done.deleted:
				return nil, rules.False
			}
			return &done.element[0], rules.True
		}
		if key == ofNewConnection {
			return nil, rules.False
		}
	}
	e, truth := t.Find(c, t.key)
	if truth != rules.True {
		return nil, truth
	}
	return &t.elements[numberOf(e.Value)], rules.True
}

// runs runs the statements of an element that was found, such as limits: the rule goes on if all of them match
// (nft_set_elem_update_expr).
func (t *table) runs(c *iptables.Context, e *nftables.Element) rules.Truth {
	statements := t.statementsOf(e)
	if !harmless(statements) && t.mayBeBitmap() {
		return rules.Unknown
	}
	type place struct {
		of *nftables.Element
		at int
	}
	for i, s := range statements {
		of := newStateful(s, "", place{e, i})
		switch {
		case of == nil && !harmless(statements[i:i+1]):
			return rules.Unknown
		case of != nil && of.Evaluate(c) != rules.True:
			return rules.False
		}
	}
	return rules.True
}

// statementsOf are those of an element: all that its set declares, of which JSON lists only the first (nft 1.0.6).
func (t *table) statementsOf(e *nftables.Element) []nftables.Statement {
	if t.declared != nil && len(t.declared.Statements) > len(e.Statements) {
		return t.declared.Statements
	}
	return e.Statements
}

// mayBeBitmap reports whether the kernel may keep the set as a bitmap, which has no statements of elements: it chooses by the
// sizes of its structures (nft_bitmap_estimate, nft_set_bitmap.c).
func (t *table) mayBeBitmap() bool {
	size := 0
	for _, f := range t.fields {
		size += f.Size()
	}
	return size <= 2 && (t.declared == nil || t.declared.Statements == nil && !t.dynamic) && t.elements[0].Value == nil
}

// limited reports whether elements of the set have statements such as limits. Others are not looked up twice: a number
// generator would count on.
func (t *table) limited() bool {
	return t.dynamic || slices.ContainsFunc(t.elements, func(e nftables.Element) bool { return !harmless(t.statementsOf(&e)) })
}

// found is an element that a packet has found, in words: "10.96.0.1 . tcp . 443 of @service-ips".
type found struct {
	*nftables.Element
	in *table
}

func (f found) String() string { return nftables.Text(f.Key) + " of " + f.in.name() }

// ofNewConnection stands for the key of a connection with its first packet, whose id is not known: the kernel makes one
// that no other connection has (nf_ct_get_id, nf_conntrack_core.c), so that it is in no set that is listed.
const ofNewConnection = "the key of a connection with its first packet"

// bytes is the packet's key.
func (t *table) bytes(v *iptables.Context) (string, rules.Truth) {
	var key []byte
	for _, f := range t.fields {
		if ct, ok := f.Value.(rules.Ct); ok && ct.Key == "id" {
			if e := v.Host.Connection(); e != nil && v.Host.Tracked() && e.Traffic[0].Packets+e.Traffic[1].Packets <= 1 {
				return ofNewConnection, rules.True
			}
		}
		b, present := f.Read(v)
		switch {
		case !present:
			return "", rules.False
		case !b.All():
			return "", rules.Unknown
		}
		part := b.Bytes()
		if len(t.fields) > 1 {
			part = padded(part)
		}
		key = append(key, part...)
	}
	return string(key), rules.True
}

// unread is the part of the key that the packet does not have, or that is not known of it; "": none.
func (t *table) unread(c *iptables.Context) string {
	for _, f := range t.fields {
		switch b, present := f.Read(c); {
		case !present:
			return fmt.Sprintf("the packet has no %s", f.name())
		case !b.All():
			return fmt.Sprintf("%s is not known of this packet", f.name())
		}
	}
	return ""
}

// described is the packet's key in words.
func (t *table) described(c *iptables.Context) string {
	var parts []string
	for _, f := range t.fields {
		parts = append(parts, f.described(c))
	}
	return strings.Join(parts, " . ")
}

// described is the packet's value in words.
func (f *field) described(v *iptables.Context) string {
	if _, random := f.Value.(*numgen); random {
		return f.name()
	}
	b, present := f.Read(v)
	switch {
	case !present:
		return "nothing"
	case !b.All():
		return "unknown"
	}
	return f.kind.describe(f.plain(b.Bytes()))
}

// mapValue is what a map has for the packet, as a field of the kind that is wanted.
type mapValue struct {
	*table
	of field
}

func (m mapValue) Size() int      { return m.of.Size() }
func (m mapValue) String() string { return "map" }

// Read returns the value; a packet without an element has none.
func (m mapValue) Read(p rules.Packet) (b rules.Bits, present bool) {
	e, truth := m.find(p.(*iptables.Context))
	switch {
	case truth == rules.False:
		return rules.UnknownBits(m.Size()), false
	case truth == rules.Unknown || !harmless(m.statementsOf(e)):
		return rules.UnknownBits(m.Size()), true
	}
	data, err := m.of.value(e.Value)
	if err != nil {
		return rules.UnknownBits(m.Size()), true
	}
	b.Put(data)
	return b, true
}

// mapped is what a map has, for a field of a kind.
func (c *compiler) mapped(e nftables.Map, of *field) (field, error) {
	words := nftables.Text(e)
	if of == nil {
		return field{}, fmt.Errorf("%s is not supported", words)
	}
	fields, err := c.fields(e.Key)
	if err != nil {
		return field{}, err
	}
	t, err := c.table(e.Data, fields)
	if err != nil {
		return field{}, err
	}
	for i := range t.elements {
		if t.elements[i].Value == nil {
			return field{}, fmt.Errorf("an element of %s has no value", words)
		}
		if _, err := of.value(t.elements[i].Value); err != nil {
			return field{}, err
		}
	}
	return field{Value: mapValue{t, *of}, kind: of.kind, facts: factsOf(fields), expr: e, needs: needsOf(fields), never: neverOf(fields)}, nil
}

// Sources are the networks of sources that the set has.
func (t *table) Sources() []netip.Prefix { return t.networks(12, 8) }

// Destinations are the networks of destinations that the set has.
func (t *table) Destinations() []netip.Prefix { return t.networks(16, 24) }

// networks are those of the address at one of the offsets in headers of IPv4 and IPv6.
func (t *table) networks(offset4, offset6 int) (all []netip.Prefix) {
	for i, f := range t.fields {
		v, ok := f.Value.(rules.Payload)
		if !ok || !(f.kind == kindAddr4 && v.Offset == offset4 || f.kind == kindAddr6 && v.Offset == offset6) {
			continue
		}
		seen := make(map[netip.Prefix]bool)
		for _, e := range t.elements {
			key := e.Key
			if parts, ok := key.(nftables.Concat); ok && i < len(parts) {
				key = parts[i]
			}
			if p, ok := prefixOf(&f, key); ok && !seen[p] {
				seen[p] = true
				all = append(all, p)
			}
		}
	}
	return all
}

// Devices are the devices that the set has.
func (t *table) Devices() (all []iptables.Interface) {
	for i, f := range t.fields {
		if f.kind != kindDevice {
			continue
		}
		for _, e := range t.elements {
			key := e.Key
			if parts, ok := key.(nftables.Concat); ok && i < len(parts) {
				key = parts[i]
			}
			if d, ok := device(nftables.Match{Op: "==", Right: key}); ok {
				all = append(all, d)
			}
		}
	}
	return all
}
