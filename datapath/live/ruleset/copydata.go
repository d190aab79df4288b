package ruleset

import (
	"encoding/binary"
	"net/netip"

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

// number is a random number as rules have it: in the order of the host's bytes.
func number(n int) string { return string(binary.NativeEndian.AppendUint32(nil, uint32(n))) }

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
