package iptables

import (
	"fmt"
	"net/netip"
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

var recentModule = &module{
	name: "recent",
	shapes: map[string]shape{
		"--set": notFlag, "--rcheck": notFlag, "--update": notFlag, "--remove": notFlag,
		"--seconds": one, "--reap": flag, "--hitcount": one, "--rttl": flag, "--name": one, "--mask": one,
		"--rsource": flag, "--rdest": flag,
	},
	kernel: []revision[Match]{
		{0, 211, func(r raw) (Match, bool) { return decodeRecent(r, 0) }},
		{1, 228, func(r raw) (Match, bool) { return decodeRecent(r, 1) }},
	},
	build: func(s *section) Match {
		o := s.oneOf(recentModes...)
		m := Recent{
			Negated: o.negated,
			Seconds: optional(s, "--seconds", anyUint32, 0), Reap: s.has("--reap"),
			HitCount: optional(s, "--hitcount", anyUint32, 0), TTL: s.has("--rttl"),
			Name:        optional(s, "--name", shortText(199), "DEFAULT"), // XT_RECENT_NAME_LEN
			Mask:        optional(s, "--mask", s.address(), maskOf(s.family, addrBits(s.family))),
			Destination: s.has("--rdest"),
		}
		for i, mode := range recentModes {
			if o.name.Text == mode {
				m.Mode = RecentMode(i)
			}
		}
		s.atMostOne("--rsource", "--rdest")
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
}

// decodeRecent reads struct xt_recent_mtinfo and xt_recent_mtinfo_v1, which has a mask.
func decodeRecent(r raw, rev uint8) (Match, bool) {
	const check, set, update, remove, ttl, reap = 1, 2, 4, 8, 16, 32 // XT_RECENT_...
	flags := r.u8(8)
	m := Recent{
		Negated: r.u8(9) != 0, Seconds: r.u32(0), HitCount: r.u32(4), TTL: flags&ttl != 0, Reap: flags&reap != 0,
		Name: r.text(10, 200), Destination: r.u8(210) != 0,
	}
	switch flags &^ (ttl | reap) {
	case check:
		m.Mode = RecentCheck
	case set:
		m.Mode = RecentSet
	case update:
		m.Mode = RecentUpdate
	case remove:
		m.Mode = RecentRemove
	default:
		return nil, false
	}
	if m.Mask = maskOf(r.family, addrBits(r.family)); rev > 0 {
		m.Mask = r.addr(212)
	}
	return m, true
}

// Module is "recent".
func (Recent) Module() string { return "recent" }
func (m Recent) write(w *words) {
	w.option(m.Negated, m.Mode.String())
	if m.Seconds != 0 {
		w.bare("--seconds", decimal(m.Seconds))
	}
	w.flag(m.Reap, "--reap")
	if m.HitCount != 0 {
		w.bare("--hitcount", decimal(m.HitCount))
	}
	w.flag(m.TTL, "--rttl")
	w.bare("--name", m.Name, "--mask", m.Mask.String())
	if m.Destination {
		w.bare("--rdest")
	} else {
		w.bare("--rsource")
	}
}
