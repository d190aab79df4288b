package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Session affinity in the kernel's copy: rules bind the client of each new flow, whether it was decided
// by the daemon or by the copy, and the copy has bound clients go where they went before. A client is
// bound for each address of a service apart. The kernel does not replace the endpoint of a client that
// is bound: clients of removed endpoints are removed from the map (see dropStale).

// maxBound is how many clients can be bound in a family, as in package affinity. When the map is full,
// further clients are balanced.
const maxBound = 1 << 16

// bindPrefix and the seconds are the name of a chain that binds clients for some seconds.
const bindPrefix = "bind_"

func bindChain(seconds uint32) string { return fmt.Sprint(bindPrefix, seconds) }

// protocols are those with ports. nft cannot print the ports of a tuple without the protocol.
var protocols = []byte{tcp, udp, sctp}

// bind is the chain that binds clients for some seconds.
func (spec *Spec) bind(t *table, seconds uint32) chain {
	c := chain{name: bindChain(seconds)}
	for _, proto := range protocols {
		c.rules = append(c.rules, rule{l4proto(proto), t.bound(t.copy.bound, time.Duration(seconds)*time.Second)})
	}
	return c
}

// bindClients leads to the chains that bind the clients of new flows to services, after DNAT.
func (spec *Spec) bindClients(t *table) chain {
	var rules []rule
	for _, proto := range protocols {
		rules = append(rules,
			rule{l4proto(proto), t.originalKey().verdictIn(t.copy.bind)},
			rule{l4proto(proto), concat(t.originalDaddr()).in(t.nodePortAddr), originalPortKey().verdictIn(t.copy.bindNodePort)})
	}
	if p := spec.Copy.Loopback; p.IsValid() && t.family == ipv4 {
		for _, proto := range protocols {
			rules = append(rules, rule{l4proto(proto), t.originalDaddr().within(p, true), originalPortKey().verdictIn(t.copy.bindNodePort)})
		}
	}
	return chain{name: "bind", rules: rules}
}

// tuple is a field of a tuple of the packet's connection, in a direction (IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY).
func tuple(text string, words uint32, direction uint32, k expr.CtKey) field {
	return field{text, words, func(register uint32) expr.Any {
		return nft.Directed{Ct: &expr.Ct{Key: k, Register: register, Direction: direction}}
	}}
}

const (
	original, reply = 0, 1
)

func (f family) originalDaddr() field {
	return tuple("ct original "+f.name+" daddr", f.words(), original, f.ctDst)
}

func originalPort() field { return tuple("ct original proto-dst", 1, original, expr.CtKeyPROTODST) }

// endpointAddr is the address of the endpoint of a translated connection, and endpointPort its port.
func (f family) endpointAddr() field {
	return tuple("ct reply "+f.name+" saddr", f.words(), reply, f.ctSrc)
}

func endpointPort() field { return tuple("ct reply proto-src", 1, reply, expr.CtKeyPROTOSRC) }

// originalKey is the service key of the connection before translation, and originalPortKey the same without the address.
func (f family) originalKey() keyed { return concat(f.originalDaddr(), protocol(), originalPort()) }
func originalPortKey() keyed        { return concat(protocol(), originalPort()) }

// bound adds the client of the packet's connection with its endpoint to the map or, if it is there,
// restarts its timeout.
func (f family) bound(s *set, timeout time.Duration) clause {
	k := concat(f.saddr(), f.originalDaddr(), protocol(), originalPort())
	data := keyed{next: k.next}.and(f.endpointAddr()).and(endpointPort())
	return clause{
		fmt.Sprintf("update @%s { %s timeout %s : %s }", s.name, k.text, timeout, data.text),
		slices.Concat(k.exprs, data.exprs, []expr.Any{
			&expr.Dynset{SrcRegKey: key, SrcRegData: k.next, SetName: s.name, SetID: s.id, Operation: opUpdate, Timeout: timeout},
		}),
	}
}

// Binding is a client that the kernel's copy has bound to an endpoint.
type Binding struct {
	Protocol decision.Protocol
	Client   netip.Addr
	// Service is the destination of the client's flows.
	Service, Endpoint netip.AddrPort
	// Last is when the client's last new flow went there.
	Last time.Time
}

// ReadBindings calls each for the clients that the kernel's copy has bound in the calling thread's
// network namespace; without tables there are none.
func ReadBindings(each func(Binding)) error {
	for _, f := range []family{ipv4, ipv6} {
		if err := f.readBindings(func(b Binding, _ string) { each(b) }); err != nil {
			return fmt.Errorf("read the bound clients in nftables table %s %s: %w", f.name, TableName, err)
		}
	}
	return nil
}

// boundName is the name of copyMaps.bound.
const boundName = "copy_bound"

// readBindings passes on the bindings of a family with their keys. Clients that are bound meanwhile may
// be missing.
func (f family) readBindings(each func(b Binding, key string)) error {
	now := time.Now()
	return nft.DumpOnce(f.nfproto, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(TableName, boundName), func(_ uint8, a nft.Attributes) {
		for _, e := range nft.Elements(a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			key := e.Nested(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE)
			b, ok := f.binding(key, e.Nested(unix.NFTA_SET_ELEM_DATA).Get(unix.NFTA_DATA_VALUE))
			if !ok {
				continue
			}
			timeout, left := e.Uint64(unix.NFTA_SET_ELEM_TIMEOUT), e.Uint64(unix.NFTA_SET_ELEM_EXPIRATION)
			if b.Last = now; left < timeout {
				b.Last = now.Add(-time.Duration(timeout-left) * time.Millisecond)
			}
			each(b, string(key))
		}
	})
}

// binding is the binding of an element; false if it has another form.
func (f family) binding(key, data []byte) (b Binding, ok bool) {
	n := int(f.addrLen)
	if len(key) != 2*n+8 || len(data) != n+4 {
		return b, false
	}
	client, _ := netip.AddrFromSlice(key[:n])
	service, _ := netip.AddrFromSlice(key[n : 2*n])
	endpoint, _ := netip.AddrFromSlice(data[:n])
	return Binding{
		Protocol: decision.Protocol(key[2*n]), Client: client,
		Service:  netip.AddrPortFrom(service, binary.BigEndian.Uint16(key[2*n+4:])),
		Endpoint: netip.AddrPortFrom(endpoint, binary.BigEndian.Uint16(data[n:])),
	}, true
}

// stale reports whether new flows of the client must not go to the endpoint by a table. before is the
// one in force before; nil: not known.
func (b *Binding) stale(t, before *decision.Table) bool {
	p := decision.Packet{Protocol: b.Protocol, Source: netip.AddrPortFrom(b.Client, 0), Destination: b.Service}
	for _, s := range t.Candidates(&p) {
		if s.AffinitySeconds == 0 || otherPolicy(s, before) {
			continue
		}
		policies := []decision.Policy{decision.Cluster, s.ExternalPolicy}
		if b.Service.Addr() == s.ClusterIP {
			policies = []decision.Policy{s.InternalPolicy}
		}
		for _, p := range policies {
			if slices.ContainsFunc(s.Usable[p], func(i uint32) bool { return s.Endpoints[i].AddrPort == b.Endpoint }) {
				return false
			}
		}
	}
	return true
}

// otherPolicy reports whether a service port had other traffic policies in a table.
func otherPolicy(s *decision.ServicePort, before *decision.Table) bool {
	return before != nil && slices.ContainsFunc(before.Service(s.Name.Service()), func(was *decision.ServicePort) bool {
		return was.Name == s.Name && was.Family == s.Family && (was.InternalPolicy != s.InternalPolicy || was.ExternalPolicy != s.ExternalPolicy)
	})
}

// dropStale removes the clients that are bound to endpoints to which new flows must not go by a table.
// before is the one in force before; nil: not known.
func (r *Ruleset) dropStale(t, before *decision.Table) error {
	var stale []elementOf
	for _, of := range r.tables {
		err := of.readBindings(func(b Binding, key string) {
			if b.stale(t, before) {
				stale = append(stale, elementOf{of.nfproto, boundName, key})
			}
		})
		if err != nil {
			return fmt.Errorf("read the bound clients in nftables table %s: %w", of, err)
		}
	}
	if err := r.conn.remove(stale); err != nil {
		return fmt.Errorf("remove clients of removed endpoints from nftables tables %s: %w", r.tables, err)
	}
	r.stale = false
	return nil
}

// mayBeStale reports whether clients may be bound to endpoints that a table no longer has for them.
func mayBeStale(before, after *decision.Table) (stale bool) {
	after.ChangedServices(before, func(_ decision.ServiceName, had, has []*decision.ServicePort) {
		for _, s := range had {
			same := slices.IndexFunc(has, func(t *decision.ServicePort) bool {
				return t.Name == s.Name && t.Protocol == s.Protocol && t.Family == s.Family
			})
			stale = stale || s.AffinitySeconds > 0 && (same < 0 || shrinks(s, has[same]))
		}
	})
	return stale
}

// shrinks reports whether a service port lacks an address, a policy or a usable endpoint that it had.
func shrinks(had, has *decision.ServicePort) bool {
	if has.AffinitySeconds == 0 || had.ClusterIP != has.ClusterIP || had.Port != has.Port || had.NodePort != has.NodePort ||
		!slices.Equal(had.ExternalIPs, has.ExternalIPs) || !slices.Equal(had.LoadBalancerIPs, has.LoadBalancerIPs) ||
		had.InternalPolicy != has.InternalPolicy || had.ExternalPolicy != has.ExternalPolicy {
		return true
	}
	for p, usable := range had.Usable {
		left := make(map[netip.AddrPort]bool, len(has.Usable[p]))
		for _, i := range has.Usable[p] {
			left[has.Endpoints[i].AddrPort] = true
		}
		if slices.ContainsFunc(usable, func(i uint32) bool { return !left[had.Endpoints[i].AddrPort] }) {
			return true
		}
	}
	return false
}
