package iptables

import (
	"fmt"
	"net/netip"
	"slices"
)

// Recent is "-m recent": a list of seen addresses (xt_recent.c).
type Recent struct {
	Mode    RecentMode
	Negated bool
	// Seconds: only if the address was seen within them; 0: whenever.
	Seconds uint32
	Reap    bool // forget entries older than Seconds
	// HitCount: only if it was seen that often (within Seconds); 0: once.
	HitCount uint32
	TTL      bool   // only if the TTL is that of the entry
	Name     string // of the list
	// Mask is the stored bits of an address.
	Mask        netip.Addr
	Destination bool // store the packet's destination (--rdest), else its source
}

// RecentMode is the operation on the list (xt_recent.h).
type RecentMode uint8

// The modes.
const (
	RecentSet    RecentMode = iota // XT_RECENT_SET: add or renew; always matches
	RecentCheck                    // XT_RECENT_CHECK
	RecentUpdate                   // XT_RECENT_UPDATE: check, and renew if it matches
	RecentRemove                   // XT_RECENT_REMOVE: matches if it was there
)

var recentModes = []string{"--set", "--rcheck", "--update", "--remove"}

func (m RecentMode) String() string { return nameOf(recentModes, m) }

var _ = addMatch(&module{
	name: "recent",
	shapes: map[string]shape{
		"--set": notFlag, "--rcheck": notFlag, "--update": notFlag, "--remove": notFlag,
		"--seconds": one, "--reap": flag, "--hitcount": one, "--rttl": flag, "--name": one, "--mask": one,
		"--rsource": flag, "--rdest": flag,
	},
	phrases: map[string]phrase{"recent:": recentPhrase},
	build: func(s *section) Match {
		o := s.oneOf(recentModes...)
		m := Recent{
			Negated: o.negated,
			Seconds: optional(s, "--seconds", anyUint32, 0), Reap: s.has("--reap"),
			HitCount: optional(s, "--hitcount", anyUint32, 0), TTL: s.has("--rttl"),
			Name: optional(s, "--name", keptText(199), "DEFAULT"), // XT_RECENT_NAME_LEN
			Mask: optional(s, "--mask", s.address(), maskOf(s.family, addrBits(s.family))),
		}
		if side, ok := s.last("--rsource", "--rdest"); ok {
			m.Destination = side.name.Text == "--rdest"
		}
		m.Mode = RecentMode(max(0, slices.Index(recentModes, o.name.Text)))
		if m.Mode == RecentSet || m.Mode == RecentRemove {
			for _, name := range []string{"--seconds", "--hitcount", "--reap", "--rttl"} {
				if bad, ok := s.find(name); ok {
					s.fail(bad.name, fmt.Sprintf("%s with %s", name, m.Mode), "--rcheck or --update")
				}
			}
		}
		if reap, ok := s.find("--reap"); ok && m.Seconds == 0 {
			s.fail(reap.name, "--reap without --seconds", "--seconds")
		}
		return m
	},
})

func (Recent) module() string { return "recent" }
func (m Recent) write(w *words) {
	w.option(m.Negated, m.Mode.String())
	writeNumber(w, "--seconds", m.Seconds, 0)
	w.flag(m.Reap, "--reap")
	writeNumber(w, "--hitcount", m.HitCount, 0)
	w.flag(m.TTL, "--rttl")
	w.bare("--name", m.Name, "--mask", m.Mask.String())
	if m.Destination {
		w.bare("--rdest")
	} else {
		w.bare("--rsource")
	}
}

func (m Recent) reads() Facts {
	if m.TTL {
		return FactMemory | FactShared | FactTTL
	}
	return FactMemory | FactShared
}

// recentList is the key of a list, by its name.
type recentList string

type recentEntry struct {
	addr   netip.Addr
	ttl    uint8
	stamps []float64 // the times at which it was seen, the oldest first
}

// maxStamps is how many times an entry stores (ip_pkt_list_tot), if no rule needs more.
const maxStamps = 20

func (m Recent) list(c *Context) []recentEntry {
	list, _ := recall[[]recentEntry](c, recentList(m.Name))
	return list
}

// addr returns the address that the list stores.
func (m Recent) addr(c *Context) netip.Addr {
	a := c.Packet.Source.Addr()
	if m.Destination {
		a = c.Packet.Destination.Addr()
	}
	if !m.Mask.IsValid() || m.Mask.BitLen() != a.BitLen() {
		return a
	}
	return masked(a, m.Mask)
}

// test is recent_mt (xt_recent.c).
func (m Recent) test(c *Context) Truth {
	addr, list, ttl, now := m.addr(c), m.list(c), c.Packet.TTL, c.Host.Uptime()
	if c.Out != "" && !c.Packet.Local {
		ttl++ // as it was before it was forwarded
	}
	i := slices.IndexFunc(list, func(e recentEntry) bool {
		return e.addr == addr && (!m.TTL || e.ttl == 0 || e.ttl == ttl)
	})
	if i < 0 {
		if m.Mode == RecentSet {
			c.keep(recentList(m.Name), append(slices.Clip(list), recentEntry{addr, ttl, []float64{now}}))
		}
		return truthOf((m.Mode == RecentSet) != m.Negated)
	}
	e, found := list[i], true
	switch m.Mode {
	case RecentRemove:
		c.keep(recentList(m.Name), slices.Delete(slices.Clone(list), i, i+1))
		return truthOf(!m.Negated)
	case RecentCheck, RecentUpdate:
		found = m.seen(e, now)
	}
	if m.Mode == RecentSet || m.Mode == RecentUpdate && found != m.Negated {
		e.ttl, e.stamps = ttl, append(slices.Clip(e.stamps), now)
		e.stamps = e.stamps[max(0, len(e.stamps)-max(maxStamps, int(m.HitCount))):]
		list = slices.Clone(list)
		list[i] = e
		c.keep(recentList(m.Name), list)
	}
	return truthOf(found != m.Negated)
}

// seen reports whether the address was seen often and recently enough.
func (m Recent) seen(e recentEntry, now float64) bool {
	hits := uint32(0)
	for _, stamp := range e.stamps {
		if m.Seconds != 0 && now-float64(m.Seconds) > stamp {
			continue
		}
		if hits++; hits >= m.HitCount {
			return true
		}
	}
	return false
}

func (m Recent) whyNot(c *Context) string {
	a := m.addr(c)
	if m.Negated {
		return fmt.Sprintf("%s is on the list %s", a, m.Name)
	}
	if !slices.ContainsFunc(m.list(c), func(e recentEntry) bool { return e.addr == a }) {
		return fmt.Sprintf("%s is not on the list %s", a, m.Name)
	}
	text := fmt.Sprintf("%s is on the list %s, but was not seen", a, m.Name)
	if m.HitCount > 1 {
		text += fmt.Sprintf(" %d times", m.HitCount)
	}
	if m.Seconds > 0 {
		text += fmt.Sprintf(" in the last %d s", m.Seconds)
	}
	return text
}

// Changes describes the change of the list by a match; empty: it only checks.
func (m Recent) Changes(c *Context) string {
	verb := map[RecentMode]string{RecentSet: "is added to", RecentUpdate: "is updated on", RecentRemove: "is removed from"}[m.Mode]
	if verb == "" {
		return ""
	}
	return fmt.Sprintf("%s %s the list %s", m.addr(c), verb, m.Name)
}

func recentPhrase(w *wording, negated bool) bool {
	w.load("recent")
	mode, ok := w.oneOf(map[string]string{"SET": "--set", "CHECK": "--rcheck", "UPDATE": "--update", "REMOVE": "--remove"})
	w.emit(negated, mode)
	return ok && w.listed(modules["recent"].shapes, [][2]string{
		{"seconds:", "--seconds"}, {"reap", "--reap"}, {"hit_count:", "--hitcount"}, {"TTL-Match", "--rttl"},
		{"name:", "--name"}, {"mask:", "--mask"}, {"side: source", "--rsource"}, {"side: dest", "--rdest"},
	})
}
