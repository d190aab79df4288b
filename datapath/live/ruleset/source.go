package ruleset

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The source ranges of load balancers (loadBalancerSourceRanges) are in the kernel's copy as prefixes
// of whole bytes, one set for each length: hash sets, which unlike sets of intervals change at the cost
// of the change. A range of another length has up to 128 elements.

// sourceBits are the lengths of prefixes, in the order of copyMaps.sources.
func sourceBits(addr nftables.SetDatatype) (lengths []int) {
	for bits := 8; bits <= int(addr.Bytes)*8; bits += 8 {
		lengths = append(lengths, bits)
	}
	return lengths
}

// restricted reports whether flows to an address of a service port are subject to its source ranges.
func restricted(s *decision.ServicePort, at netip.Addr) bool {
	all := func(p netip.Prefix) bool { return p.Bits() == 0 }
	return s.Restricted() && slices.Contains(s.LoadBalancerIPs, at) && !slices.Contains(s.ExternalIPs, at) && !slices.ContainsFunc(s.SourceRanges, all)
}

// otherSource returns packets from other sources.
func (t *table) otherSource() rule {
	var r rule
	for i, s := range t.copy.sources {
		r = append(r, t.sourceKey((i+1)*8).notIn(s))
	}
	return append(r, verdict("return", expr.VerdictReturn))
}

// sourceKey is the service key and the first bits of the source.
func (f family) sourceKey(bits int) keyed {
	k := f.serviceKey().and(f.saddr())
	if bits < int(f.addrLen)*8 {
		mask := append(bytes.Repeat([]byte{0xff}, bits/8), make([]byte, int(f.addrLen)-bits/8)...)
		address, _ := netip.AddrFromSlice(mask)
		register := k.next - f.words()
		k.text += " & " + address.String()
		k.exprs = append(k.exprs, &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: f.addrLen, Mask: mask, Xor: make([]byte, f.addrLen)})
	}
	return k
}

// copySources calls each for the sources that may use an address of a service port, which key begins
// with.
func (t *table) copySources(key string, s *decision.ServicePort, node *decision.Node, each func(s *set, key, data string)) {
	add := func(p netip.Prefix) {
		bits := max(8, (p.Bits()+7)/8*8)
		for first := range wholeBytes(p, bits) {
			each(t.copy.sources[bits/8-1], key+first, "")
		}
	}
	for _, p := range s.SourceRanges {
		add(p)
	}
	if s.AllowsNode(node.IP(s.Family)) {
		// See decision's walk.allowed.
		for _, ip := range s.LoadBalancerIPs {
			add(netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
}

// wholeBytes yields the first addresses of the prefixes of this length that a prefix consists of: one,
// or for other lengths than of whole bytes as many as its last byte has values.
func wholeBytes(p netip.Prefix, bits int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		address := p.Masked().Addr().AsSlice()
		for n := 1 << (bits - p.Bits()); n > 0; n-- {
			if !yield(string(address)) {
				return
			}
			address[bits/8-1]++
		}
	}
}

// noteSources passes on the changes of the sources of all services that the node's addresses cause.
func (r *Ruleset) noteSources(diff sink, t *decision.Table) {
	if r.followed == nil || r.followed.Node().IP(decision.IPv4) == t.Node().IP(decision.IPv4) && r.followed.Node().IP(decision.IPv6) == t.Node().IP(decision.IPv6) {
		return
	}
	r.eachSource(r.followed, diff.remove)
	r.eachSource(t, diff.add)
}

// eachSource calls each for the sources of all services.
func (r *Ruleset) eachSource(of *decision.Table, each func(s *set, key, data string)) {
	for _, s := range of.Services() {
		for _, a := range s.LoadBalancerIPs {
			if restricted(s, a) && of.Rank(s, decision.EntryLoadBalancer, a) == 0 {
				r.tables.of(s.Family).copySources(addrBytes(a)+protoPortBytes(s.Protocol, s.Port), s, of.Node(), each)
			}
		}
	}
}
