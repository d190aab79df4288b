package xtables

import "github.com/nfqproxy/nfqproxy/datapath/sim/iptables"

// ipset reads struct xt_set_info_match_v1, v3 and v4 (xt_set.h).
func ipset(r reader, rev uint8) (iptables.Match, bool) {
	const (
		maxDimensions = 6      // IPSET_DIM_MAX
		keepCounters  = 1 << 3 // IPSET_FLAG_SKIP_COUNTER_UPDATE
		keepSub       = 1 << 4 // IPSET_FLAG_SKIP_SUBCOUNTER_UPDATE
		returnNomatch = 1 << 7 // IPSET_FLAG_RETURN_NOMATCH, and IPSET_RETURN_NOMATCH of v2
		invertSelf    = 1 << 0 // IPSET_INV_MATCH
	)
	dimensions, flags := int(r.u8(2)), r.u8(3)
	if dimensions > maxDimensions || r.set == nil {
		return nil, false
	}
	name, ok := r.set(r.u16(0))
	m := iptables.SetMatch{Set: name, Negated: flags&invertSelf != 0, ReturnNomatch: rev == 2 && flags&returnNomatch != 0}
	for i := 1; i <= dimensions; i++ {
		d := iptables.SetDestination
		if flags&(1<<i) != 0 {
			d = iptables.SetSource
		}
		m.Directions = append(m.Directions, d)
	}
	if rev < 3 {
		return m, ok
	}
	more := r.u32(40)
	m.ReturnNomatch, m.KeepCounters, m.KeepSubcounters = more&returnNomatch != 0, more&keepCounters != 0, more&keepSub != 0
	test := func(at int) iptables.CounterTest {
		operation, value := at, at+8 // struct ip_set_counter_match0
		if rev == 4 {
			operation, value = at+8, at // struct ip_set_counter_match
		}
		if c := iptables.Comparison(r.u8(operation)); c != iptables.CompareNone {
			ok = ok && c <= iptables.CompareGreater
			return iptables.CounterTest{Compare: c, Value: r.u64(value)}
		}
		return iptables.CounterTest{}
	}
	m.Packets, m.Bytes = test(8), test(24)
	return m, ok
}
