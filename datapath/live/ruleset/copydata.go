package ruleset

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// copyAddress calls each for the elements of the kernel's copy for an address of a service port.
func (t *table) copyAddress(at netip.AddrPort, s *decision.ServicePort, node *decision.Node, each func(s *set, key, data string)) {
	key := addrBytes(at.Addr()) + protoPortBytes(s.Protocol, at.Port())
	m := &t.copy
	b := balance{kind: copyInternal, affinity: s.AffinitySeconds > 0}
	switch {
	case !s.HasEndpoints && at.Addr() == s.ClusterIP:
		each(m.refused, key, "")
		return
	case !s.HasEndpoints:
		each(m.refusedExternal, key, "")
		return
	case at.Addr() == s.ClusterIP:
		if b.n = copyList(s, s.InternalPolicy, 0, m.endpoint, key, each); b.n > 0 {
			each(m.address, key, b.name())
		}
	default:
		b.kind = copyExternal
		if b.restricted = restricted(s, at.Addr()); b.restricted {
			t.copySources(key, s, node, each)
		}
		copyLists(s, b, copyExternalLocal, m.address, m.endpoint, key, each)
	}
	if b.affinity {
		each(m.bind, key, bindChain(s.AffinitySeconds))
	}
}

// copyNodePort is [table.copyAddress] for the node port of a service port.
func (t *table) copyNodePort(s *decision.ServicePort, each func(s *set, key, data string)) {
	key, m := protoPortBytes(s.Protocol, s.NodePort), &t.copy
	if !s.HasEndpoints {
		each(m.refusedPort, key, "")
		return
	}
	b := balance{kind: copyNodePort, affinity: s.AffinitySeconds > 0}
	copyLists(s, b, copyNodePortLocal, m.nodePort, m.nodePortEndpoint, key, each)
	if b.affinity {
		each(m.bindNodePort, key, bindChain(s.AffinitySeconds))
	}
}

// copyLists calls each for the chain of external flows to a service port, and for the endpoints. b is
// the chain under policy Cluster but for the length of the list, and local its kind under policy Local.
func copyLists(s *decision.ServicePort, b balance, local copyKind, chains, endpoint *set, key string, each func(s *set, key, data string)) {
	b.n = copyList(s, decision.Cluster, 0, endpoint, key, each)
	if s.ExternalPolicy == decision.Local {
		b.kind, b.local = local, copyList(s, decision.Local, localOffset, endpoint, key, each)
	}
	if b.n+b.local > 0 {
		each(chains, key, b.name())
	}
}

// copyList calls each for the endpoints of a list, and returns their number.
func copyList(s *decision.ServicePort, p decision.Policy, offset int, endpoint *set, key string, each func(s *set, key, data string)) int {
	for k, i := range s.Usable[p] {
		each(endpoint, key+number(offset+k), endpointBytes(s.Endpoints[i].AddrPort))
	}
	return len(s.Usable[p])
}

// number is a number as rules have it, random or the index of an interface: in the order of the host's bytes.
func number[N int | uint32](n N) string { return string(host32(uint32(n))) }

// endpointBytes is an address and a port as fields of a concatenation.
func endpointBytes(e netip.AddrPort) string {
	return addrBytes(e.Addr()) + portBytes(e.Port()) + "\x00\x00"
}

// hairpins counts, for each endpoint, the service ports that have it: a flow of an endpoint to itself
// is masqueraded after the translation, when the service port is no longer known. Only endpoints that
// may send through this node count: its own, and those of no known node.
type hairpins struct {
	ipv4 map[hairpin[[4]byte]]int32
	ipv6 map[hairpin[[16]byte]]int32
}

func newHairpins() hairpins {
	return hairpins{make(map[hairpin[[4]byte]]int32), make(map[hairpin[[16]byte]]int32)}
}

// hairpin is an endpoint without pointers and in as little memory as possible: there may be 100,000.
type hairpin[A [4]byte | [16]byte] struct {
	addr     A
	port     uint16
	protocol decision.Protocol
}

// note counts the endpoints of service ports, or with a sign of -1 removes them.
func (h hairpins) note(ports []*decision.ServicePort, sign int32) {
	for _, s := range ports {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			switch a, port := e.AddrPort.Addr().Unmap(), e.AddrPort.Port(); {
			case !e.Local && e.NodeName != "" || decision.FamilyOf(a) != s.Family:
			case a.Is4():
				h.ipv4[hairpin[[4]byte]{a.As4(), port, s.Protocol}] += sign
			default:
				h.ipv6[hairpin[[16]byte]{a.As16(), port, s.Protocol}] += sign
			}
		}
	}
}

// noteHairpins records the endpoints that come and go with a table, and returns how the counts change.
func (r *Ruleset) noteHairpins(diff sink, t *decision.Table) hairpins {
	changes := newHairpins()
	counted := func(t *decision.Table) bool { return t != nil && !t.Node().NoHairpinMasquerade }
	t.ChangedServices(r.followed, func(_ decision.ServiceName, before, after []*decision.ServicePort) {
		if counted(r.followed) {
			changes.note(before, -1)
		}
		if counted(t) {
			changes.note(after, 1)
		}
	})
	compareCounts(diff, r.tables[0].copy.hairpin, r.hairpins.ipv4, changes.ipv4, func(a [4]byte) string { return string(a[:]) })
	compareCounts(diff, r.tables[1].copy.hairpin, r.hairpins.ipv6, changes.ipv6, func(a [16]byte) string { return string(a[:]) })
	return changes
}

// compareCounts records the endpoints of one family that come and go when the counts change.
func compareCounts[A [4]byte | [16]byte](diff sink, of *set, counts, changes map[hairpin[A]]int32, text func(A) string) {
	for e, n := range changes {
		addr := text(e.addr)
		note(diff, of, addr+addr+protoPortBytes(e.protocol, e.port), counts[e] > 0, counts[e]+n > 0)
	}
}

// add adds counts.
func (h hairpins) add(changes hairpins) {
	addCounts(h.ipv4, changes.ipv4)
	addCounts(h.ipv6, changes.ipv6)
}

func addCounts[K comparable](counts, changes map[K]int32) {
	for key, n := range changes {
		if counts[key] += n; counts[key] == 0 {
			delete(counts, key)
		}
	}
}

// The source ranges of load balancers (loadBalancerSourceRanges) are in the kernel's copy as prefixes
// of whole bytes, one set for each length: hash sets, which unlike sets of intervals change at the cost
// of the change. A range of another length has up to 128 elements.

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
	if s.Allows(node.IP(s.Family)) {
		// See decision's walk.allowed.
		for _, ip := range s.LoadBalancerIPs {
			add(netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
}

// wholeBytes yields the first addresses of the prefixes of this length that a prefix consists of: one,
// or for other lengths than of whole bytes as many as its last byte has values.
func wholeBytes(p netip.Prefix, bits int) iter.Seq[string] {
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
