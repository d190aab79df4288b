package netfilter

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// recentEntry is an address in a list of -m recent.
type recentEntry struct {
	addr   netip.Addr
	ttl    uint8
	stamps []float64 // the times at which it was seen, the oldest first
}

// maxStamps is how many times an entry stores (ip_pkt_list_tot), if no rule needs more.
const maxStamps = 20

// recent is recent_mt (xt_recent.c).
func (w *walk) recent(m iptables.Recent) bool {
	addr := w.recentAddress(m)
	if w.state.recent == nil {
		w.state.recent = make(map[string][]*recentEntry)
	}
	list, ttl := w.state.recent[m.Name], w.packet.TTL
	if w.out != "" && !w.packet.Local {
		ttl++ // as it was before it was forwarded
	}
	i := slices.IndexFunc(list, func(e *recentEntry) bool {
		return e.addr == addr && (!m.TTL || e.ttl == 0 || e.ttl == ttl)
	})
	if i < 0 {
		if m.Mode != iptables.RecentSet {
			return m.Negated
		}
		w.state.recent[m.Name] = append(list, &recentEntry{addr, ttl, []float64{w.state.Now}})
		return !m.Negated
	}
	e := list[i]
	found := false
	switch m.Mode {
	case iptables.RecentSet:
		found = true
	case iptables.RecentRemove:
		w.state.recent[m.Name] = slices.Delete(list, i, i+1)
		return !m.Negated
	default:
		found = w.seen(m, e)
	}
	if m.Mode == iptables.RecentSet || m.Mode == iptables.RecentUpdate && found != m.Negated {
		e.ttl = ttl
		e.stamps = append(e.stamps, w.state.Now)
		if n := len(e.stamps) - max(maxStamps, int(m.HitCount)); n > 0 {
			e.stamps = slices.Delete(e.stamps, 0, n)
		}
	}
	return found != m.Negated
}

// recentAddress returns the address that a list stores.
func (w *walk) recentAddress(m iptables.Recent) netip.Addr {
	addr := w.packet.Source.Addr()
	if m.Destination {
		addr = w.packet.Destination.Addr()
	}
	return masked(addr, m.Mask)
}

// seen reports whether the address was seen often and recently enough.
func (w *walk) seen(m iptables.Recent, e *recentEntry) bool {
	hits := uint32(0)
	for _, stamp := range e.stamps {
		if m.Seconds != 0 && w.state.Now-float64(m.Seconds) > stamp {
			continue
		}
		if hits++; hits >= m.HitCount {
			return true
		}
	}
	return false
}

func masked(a, mask netip.Addr) netip.Addr {
	if !mask.IsValid() || mask.BitLen() != a.BitLen() {
		return a
	}
	x, y := a.AsSlice(), mask.AsSlice()
	for i := range x {
		x[i] &= y[i]
	}
	a, _ = netip.AddrFromSlice(x)
	return a
}

// matchKey identifies a match of a rule, which may have several of a kind.
type matchKey struct {
	rule  *iptables.Rule
	index int // among the rule's matches in the order of evaluation
}

// bucketKey identifies a token bucket: that of a match of -m limit, or one of a table of -m
// hashlimit.
type bucketKey struct {
	match               matchKey
	name                string
	source, destination netip.AddrPort
}

// bucket is a token bucket; its credit is in seconds.
type bucket struct {
	credit, last float64
}

// take takes a packet's credit from a bucket, which is full at first (limit_mt, xt_limit.c).
func (w *walk) take(key bucketKey, rate iptables.Rate, burst uint32) bool {
	if w.state.buckets == nil {
		w.state.buckets = make(map[bucketKey]*bucket)
	}
	cost := float64(rate.Interval) / 10000
	full := cost * float64(burst)
	b := w.state.buckets[key]
	if b == nil {
		b = &bucket{full, w.state.Now}
		w.state.buckets[key] = b
	}
	b.credit = min(full, b.credit+w.state.Now-b.last)
	b.last = w.state.Now
	if b.credit < cost {
		return false
	}
	b.credit -= cost
	return true
}

func (w *walk) limit(m iptables.Limit) bool {
	return w.take(bucketKey{match: w.asked}, m.Rate, m.Burst)
}

// hashlimit is hashlimit_mt_common (xt_hashlimit.c). Rates in bytes are not simulated.
func (w *walk) hashlimit(m iptables.Hashlimit) truth {
	if m.Bytes != "" || m.RateMatch {
		return undecided
	}
	key := bucketKey{name: m.Name}
	part := func(address, port iptables.HashMode, a netip.AddrPort, bits uint8) netip.AddrPort {
		var addr netip.Addr
		if m.Mode&address != 0 {
			if p, err := a.Addr().Prefix(int(bits)); err == nil {
				addr = p.Addr()
			}
		}
		if m.Mode&port == 0 {
			return netip.AddrPortFrom(addr, 0)
		}
		return netip.AddrPortFrom(addr, a.Port())
	}
	key.source = part(iptables.HashSource, iptables.HashSourcePort, w.packet.Source, m.SourceBits)
	key.destination = part(iptables.HashDestination, iptables.HashDestinationPort, w.packet.Destination, m.DestinationBits)
	return truthOf(w.take(key, m.Rate, m.Burst) != (m.Above || m.Negated))
}
