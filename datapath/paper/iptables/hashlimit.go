package iptables

import (
	"net/netip"
	"strings"
)

// Hashlimit is "-m hashlimit": a token bucket for each source, destination or both. A
// rate in bytes ("512kb/s") is kept in Bytes only.
type Hashlimit struct {
	Above bool // match packets over the rate (--hashlimit-above), else those within it
	// Negated is "! --hashlimit-upto", the same as Above.
	Negated bool
	// Rate is valid iff Bytes is empty.
	Rate  Rate
	Bytes string
	// Burst is the size of a bucket in packets; 5 if the text does not have it. For a rate in
	// bytes it is BytesBurst as written, with its unit.
	Burst      uint32
	BytesBurst string
	Mode       HashMode
	Name       string // of the table in /proc/net/ipt_hashlimit
	// SourceBits and DestinationBits are the lengths of the prefixes that share a bucket.
	SourceBits, DestinationBits uint8
	// The sizes and times of the table (ms) are 0 if the text does not have them.
	HTableSize, HTableMax, HTableGCInterval, HTableExpire uint32
	// RateMatch and RateInterval (seconds): only test whether the rate is kept.
	RateMatch    bool
	RateInterval uint32
}

// HashMode is the key of buckets (xt_hashlimit.h).
type HashMode uint8

// The modes; 0: all packets share one bucket.
const (
	HashDestination     HashMode = 1 << iota // XT_HASHLIMIT_HASH_DIP
	HashDestinationPort                      // XT_HASHLIMIT_HASH_DPT
	HashSource                               // XT_HASHLIMIT_HASH_SIP
	HashSourcePort                           // XT_HASHLIMIT_HASH_SPT
)

var hashModeNames = bitNames{
	{uint32(HashSource), "srcip"}, {uint32(HashSourcePort), "srcport"},
	{uint32(HashDestination), "dstip"}, {uint32(HashDestinationPort), "dstport"},
}

// String is "srcip,dstport".
func (m HashMode) String() string { return hashModeNames.text(uint32(m)) }

var _ = addMatch(&module{
	name: "hashlimit",
	shapes: map[string]shape{
		"--hashlimit": notOne.named("--hashlimit-upto"), "--hashlimit-upto": notOne, "--hashlimit-above": notOne,
		"--hashlimit-burst": one, "--hashlimit-mode": one, "--hashlimit-name": one, "--hashlimit-srcmask": one,
		"--hashlimit-dstmask": one, "--hashlimit-htable-size": one, "--hashlimit-htable-max": one,
		"--hashlimit-htable-gcinterval": one, "--hashlimit-htable-expire": one,
		"--hashlimit-rate-match": flag, "--hashlimit-rate-interval": one,
	},
	build: buildHashlimit,
})

func buildHashlimit(s *section) Match {
	prefix := kind[uint8]{"the length of a prefix", "0 to " + decimal(uint8(addrBits(s.family))), func(t string) (uint8, bool) {
		n, ok := number[uint8](t)
		return n, ok && int(n) <= addrBits(s.family)
	}}
	m := Hashlimit{
		Mode:             optional(s, "--hashlimit-mode", someOf[HashMode]("a mode", hashModeNames), 0),
		Name:             optional(s, "--hashlimit-name", keptText(254), ""),
		SourceBits:       optional(s, "--hashlimit-srcmask", prefix, uint8(addrBits(s.family))),
		DestinationBits:  optional(s, "--hashlimit-dstmask", prefix, uint8(addrBits(s.family))),
		HTableSize:       optional(s, "--hashlimit-htable-size", anyUint32, 0),
		HTableMax:        optional(s, "--hashlimit-htable-max", anyUint32, 0),
		HTableGCInterval: optional(s, "--hashlimit-htable-gcinterval", anyUint32, 0),
		HTableExpire:     optional(s, "--hashlimit-htable-expire", anyUint32, 0),
		RateMatch:        s.has("--hashlimit-rate-match"),
		RateInterval:     optional(s, "--hashlimit-rate-interval", anyUint32, 0),
	}
	if m.Name == "" {
		s.miss("--hashlimit-name")
	}
	o := s.oneOf("--hashlimit-upto", "--hashlimit-above")
	m.Above, m.Negated = o.name.Text == "--hashlimit-above", o.negated
	if len(o.values) > 0 && strings.Contains(o.values[0].Text, "b/s") {
		m.Bytes = value(s, o.values[0], aByteRate)
		m.BytesBurst = optional(s, "--hashlimit-burst", kind[string]{"a burst", "bytes, with kb or mb", func(t string) (string, bool) {
			_, ok := amount(t)
			return t, ok
		}}, "")
		return m
	}
	m.Rate = first(s, o, aFineRate)
	m.Burst = optional(s, "--hashlimit-burst", kind[uint32]{"a burst", "1 to 1000000", func(t string) (uint32, bool) {
		n, ok := amount(t)
		return uint32(n), ok && 1 <= n && n <= 1000000
	}}, 5)
	return m
}

var aByteRate = kind[string]{"a rate in bytes", "bytes with b/s, kb/s or mb/s", func(s string) (string, bool) {
	_, ok := amount(s)
	return s, ok
}}

// amount reads a number with k or m behind it, for 1024 or its square, and ignores what follows
// (libxt_hashlimit.c, parse_burst and parse_bytes).
func amount(text string) (uint64, bool) {
	if n, ok := number[uint32](text); ok { // also 0x10
		return uint64(n), true
	}
	n, ok := leadingNumber(text)
	if n > 1<<40 {
		return 0, false
	}
	switch strings.ToLower(strings.TrimLeft(text, "0123456789") + " ")[0] {
	case 'k':
		n <<= 10
	case 'm':
		n <<= 20
	}
	return n, ok
}

func (Hashlimit) module() string { return "hashlimit" }
func (m Hashlimit) write(w *words) {
	rate, burst := m.Bytes, m.BytesBurst
	if rate == "" {
		rate, burst = m.Rate.String(), decimal(m.Burst)
	}
	name := "--hashlimit-upto"
	if m.Above {
		name = "--hashlimit-above"
	}
	w.option(m.Negated, name, rate)
	if burst != "" {
		w.bare("--hashlimit-burst", burst)
	}
	if m.Mode != 0 {
		w.bare("--hashlimit-mode", m.Mode.String())
	}
	w.bare("--hashlimit-name", m.Name)
	writeNumber(w, "--hashlimit-htable-size", m.HTableSize, 0)
	writeNumber(w, "--hashlimit-htable-max", m.HTableMax, 0)
	writeNumber(w, "--hashlimit-htable-gcinterval", m.HTableGCInterval, 0)
	writeNumber(w, "--hashlimit-htable-expire", m.HTableExpire, 0)
	// The family is not known here: a prefix of 32 or 128 bits is a whole address.
	for _, o := range []struct {
		name string
		bits uint8
	}{{"--hashlimit-srcmask", m.SourceBits}, {"--hashlimit-dstmask", m.DestinationBits}} {
		if o.bits != 32 && o.bits != 128 {
			w.bare(o.name, decimal(o.bits))
		}
	}
	w.flag(m.RateMatch, "--hashlimit-rate-match")
	writeNumber(w, "--hashlimit-rate-interval", m.RateInterval, 0)
}

func (Hashlimit) reads() Facts { return FactMemory | FactShared }

// test is hashlimit_mt_common (xt_hashlimit.c). Rates in bytes are not simulated.
func (m Hashlimit) test(c *Context) Truth {
	type key struct {
		table               string
		source, destination netip.AddrPort
	}
	if m.Bytes != "" || m.RateMatch {
		return Unknown
	}
	part := func(address, port HashMode, a netip.AddrPort, bits uint8) netip.AddrPort {
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
	k := key{
		m.Name,
		part(HashSource, HashSourcePort, c.Packet.Source, m.SourceBits),
		part(HashDestination, HashDestinationPort, c.Packet.Destination, m.DestinationBits),
	}
	return truthOf(m.Rate.take(c, k, m.Burst) != (m.Above || m.Negated))
}
