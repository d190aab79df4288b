package ruleset

import (
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
)

// ProbeReversePath checks whether the kernel can look up the route back to a packet's source in
// rules. The error names the missing feature. It works on the calling thread's network namespace.
func ProbeReversePath() error {
	c := base("filter", "", atPrerouting, priorityQueue)
	exprs := rule{notDecrypted(), sourceLocal(false), noReverseRoute(true), noReverseRoute(false), accept()}.exprs()
	if err := try(0, c, exprs); err != nil {
		return missing("look-up of routes in rules", "CONFIG_NFT_FIB_IPV4 and CONFIG_XFRM", err)
	}
	return nil
}

// reversePathRules accept packets that the kernel drops after these rules: those that fail the
// source validation of IPv4 (fib_validate_source in net/ipv4/fib_frontend.c), and those whose
// source can be no host's (ip_route_input_slow in net/ipv4/route.c). A packet that the kernel
// would accept must never match: it would pass undecided. So packets for which the lookup in rules
// (nft_fib4_eval in net/ipv4/netfilter/nft_fib_ipv4.c) may differ do not match:
//   - packets out of an IPsec tunnel, which are not validated;
//   - sources that are local addresses: accept_local may allow them;
//   - where routing rules have selectors, the sets are empty: the way back may then depend on
//     the translated destination and on the interface that the packet leaves by.
//
// UDP flows that need no decision come first: they are most of the packets here.
func (t *table) reversePathRules() []rule {
	return []rule{
		{l4proto(udp), t.flowKey().in(t.seen), t.flowKey().refreshed(t.seen, 0), accept()},
		{t.saddrIn("127.0.0.0/8", []byte{0xff}, []byte{127}), accept()},
		{t.saddrIn("224.0.0.0/4", []byte{0xf0}, []byte{224}), accept()},
		{interfaceIn(t.rpStrict), notDecrypted(), sourceLocal(false), noReverseRoute(true), counter(), accept()},
		{interfaceIn(t.rpLoose), notDecrypted(), sourceLocal(false), noReverseRoute(false), counter(), accept()},
	}
}

func interfaceIn(s *set) clause { return concat(meta("iif", expr.MetaKeyIIF)).in(s) }

// metaSecpath is NFT_META_SECPATH (linux/netfilter/nf_tables.h).
const metaSecpath expr.MetaKey = 25

// notDecrypted matches packets that did not come out of an IPsec tunnel.
func notDecrypted() clause { return meta("meta ipsec", metaSecpath).is(true, "missing", []byte{0}) }

// noReverseRoute matches packets without a route to their source or, if strict, without one through
// their input interface.
func noReverseRoute(strict bool) clause {
	text := "fib saddr oif"
	if strict {
		text = "fib saddr . iif oif"
	}
	return fib(text, expr.Fib{FlagSADDR: true, FlagIIF: strict, ResultOIF: true}).is(true, "0", host32(0))
}

// FollowReversePath updates the sets of interfaces, so that first packets of IPv4 flows that the
// kernel drops at routing are not queued, and no connection entry is written for them. Without [Spec.ReversePath] it does nothing.
// After an error the sets may have the old or the new elements, until [Ruleset.Audit].
func (r *Ruleset) FollowReversePath(p hostnet.ReversePath) error {
	diff := make(difference)
	r.tables.noteReversePath(diff, r.reversePath, p)
	r.reversePath = p
	current := r.current()
	if err := r.changeAll(diff); err != nil {
		return err
	}
	r.remember(current)
	return nil
}

// noteReversePath records the interfaces to add to the sets and those to remove.
func (t tables) noteReversePath(diff sink, before, after hostnet.ReversePath) {
	of := t.of(decision.IPv4)
	noteAll(diff, func(uint32) *set { return of.rpStrict }, number[uint32], before.Strict, after.Strict)
	noteAll(diff, func(uint32) *set { return of.rpLoose }, number[uint32], before.Loose, after.Loose)
}
