package iptables

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Statistic is "-m statistic".
type Statistic struct {
	// Nth is set for "--mode nth": of Every packets that reach the rule, the one after Packet
	// others matches. Every is at least 1, Packet is less.
	Nth           bool
	Every, Packet uint32
	// Probability is valid for "--mode random", in 1/2^31: 0 to 1<<31. The kernel
	// compares 31 random bits with it (xt_statistic.c, statistic_mt).
	Probability uint32
	Negated     bool
}

// ProbabilityOne is a Probability of 1.
const ProbabilityOne = 1 << 31

var aProbability = kind[uint32]{"a probability", "0 to 1", func(s string) (uint32, bool) {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil || !(p >= 0 && p <= 1) || strings.ContainsAny(s, "_xXpP") {
		return 0, false
	}
	return uint32(math.Round(p * ProbabilityOne)), true // lround, as libxt_statistic.c
}}

var _ = addMatch(&module{
	name: "statistic",
	shapes: map[string]shape{
		"--mode": one, "--probability": notOne, "--every": notOne, "--packet": one,
	},
	phrases: map[string]phrase{"statistic": statisticPhrase},
	build: func(s *section) Match {
		mode, ok := s.find("--mode")
		m := Statistic{}
		if !ok {
			s.miss("--mode random or --mode nth")
			return m
		}
		needed, foreign := "--probability", []string{"--every", "--packet"}
		switch mode.values[0].Text {
		case "random":
		case "nth":
			m.Nth, needed, foreign = true, "--every", []string{"--probability"}
		default:
			s.fail(mode.values[0], fmt.Sprintf("%.40q is not a mode", mode.values[0].Text), "random or nth")
			return m
		}
		for _, name := range foreign {
			if o, ok := s.find(name); ok {
				s.fail(o.name, fmt.Sprintf("%s with --mode %s", name, mode.values[0].Text), needed)
			}
		}
		o := s.oneOf(needed)
		m.Negated = o.negated
		if !m.Nth {
			m.Probability = first(s, o, aProbability)
			return m
		}
		m.Every = first(s, o, kind[uint32]{"a number of packets", "1 or more", func(t string) (uint32, bool) {
			n, ok := number[uint32](t)
			return n, ok && n > 0
		}})
		if m.Packet = optional(s, "--packet", anyUint32, 0); m.Packet >= m.Every {
			s.fail(s.name, fmt.Sprintf("packet %d of %d", m.Packet, m.Every), fmt.Sprintf("--packet 0 to %d", int64(m.Every)-1))
		}
		return m
	},
})

func (Statistic) module() string { return "statistic" }
func (m Statistic) write(w *words) {
	if m.Nth {
		w.bare("--mode", "nth")
		w.option(m.Negated, "--every", decimal(m.Every), "--packet", decimal(m.Packet))
		return
	}
	w.bare("--mode", "random")
	w.option(m.Negated, "--probability", fmt.Sprintf("%.11f", float64(m.Probability)/ProbabilityOne))
}

func (m Statistic) reads() Facts {
	switch {
	case m.Nth:
		return FactMemory
	case m.Probability > 0 && m.Probability < ProbabilityOne:
		return FactRandom
	}
	return 0
}

// test is statistic_mt (xt_statistic.c).
func (m Statistic) test(c *Context) Truth {
	if m.Nth {
		return truthOf(m.turn(c) != m.Negated)
	}
	p := float64(m.Probability) / ProbabilityOne
	if m.Negated {
		p = 1 - p
	}
	return truthOf(p == 1 || p > 0 && c.Host.Draw(p))
}

// turn counts a packet. A dump does not show a counter's position, so on a running host the first
// packet may meet any; from the first match on it is known.
func (m Statistic) turn(c *Context) bool {
	type key place
	type counter struct {
		known bool
		count uint32 // valid iff known: that of the last packet
		// missed is how many packets in a row did not match; valid iff not known. They exclude as
		// many positions.
		missed uint32
	}
	if m.Every <= 1 {
		return true
	}
	n, seen := recall[counter](c, key(c.place()))
	if !seen && c.Host.Fresh() {
		n = counter{known: true, count: m.Every - m.Packet - 1}
	}
	if n.known {
		n.count = (n.count + 1) % m.Every
	} else if left := m.Every - n.missed; left == 1 || c.Host.Draw(1/float64(left)) {
		n = counter{known: true}
	} else {
		n.missed++
	}
	c.keep(key(c.place()), n)
	return n.known && n.count == 0
}

// Rate is a number of packets in a time.
type Rate struct {
	// Interval is the time for one packet, at least 1. The kernel has no fractions: "300/sec" of
	// limit is 33, which iptables-save prints as 303/sec.
	Interval uint64
	// Fine: Interval is in 1/1000000 s (XT_HASHLIMIT_SCALE_v2, Linux 4.9), else in 1/10000 s (XT_LIMIT_SCALE).
	Fine bool
}

// second is the number of units of Interval in a second.
func (r Rate) second() uint64 {
	if r.Fine {
		return 1000000
	}
	return 10000
}

// rateUnits are the units that iptables prints, and their full names (libxt_limit.c).
var rateUnits = []struct {
	name, full string
	seconds    uint64
}{{"day", "day", 86400}, {"hour", "hour", 3600}, {"min", "minute", 60}, {"sec", "second", 1}}

// String is "5/min", in the largest unit that is precise enough (libxt_limit.c, print_rate).
func (r Rate) String() string {
	if r.Interval == 0 {
		return "0/sec"
	}
	best := rateUnits[0]
	for _, u := range rateUnits[1:] {
		units := u.seconds * r.second()
		if r.Interval > units || units/r.Interval < units%r.Interval {
			break
		}
		best = u
	}
	return fmt.Sprintf("%d/%s", best.seconds*r.second()/r.Interval, best.name)
}

var (
	aRate     = rateUpTo(Rate{})
	aFineRate = rateUpTo(Rate{Fine: true}) // of hashlimit
)

// rateUpTo reads a rate in the precision given: at most one packet in one unit of Interval.
func rateUpTo(r Rate) kind[Rate] {
	want := fmt.Sprintf("packets/sec, /min, /hour or /day, at most %d/sec", r.second())
	return kind[Rate]{"a rate", want, func(s string) (Rate, bool) {
		count, unit, named := strings.Cut(s, "/")
		units := r.second()
		if named {
			units = 0
			for _, u := range rateUnits {
				if begins(u.full, unit) {
					units = u.seconds * r.second()
				}
			}
		}
		n, ok := leadingNumber(count)
		if !ok || n == 0 || n > units {
			return Rate{}, false
		}
		return Rate{units / n, r.Fine}, true
	}}
}

// leadingNumber reads the digits that a text begins with, as atoi does.
func leadingNumber(text string) (uint64, bool) {
	text = strings.TrimPrefix(strings.TrimLeft(text, " \t"), "+")
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseUint(text[:digits], 10, 64)
	return n, err == nil
}

// Limit is "-m limit": a token bucket for all packets of the rule.
type Limit struct {
	Rate Rate
	// Burst is the size of the bucket in packets; 5 if the text does not have it.
	Burst uint32
}

var aBurst = kind[uint32]{"a burst", "1 to 10000", func(s string) (uint32, bool) {
	n, ok := number[uint32](s)
	return n, ok && 1 <= n && n <= 10000
}}

var _ = addMatch(&module{
	name:    "limit",
	shapes:  map[string]shape{"--limit": one, "--limit-burst": one},
	phrases: map[string]phrase{"limit:": limitPhrase},
	build: func(s *section) Match {
		// libxt_limit.c: "3/hour" is the default.
		return Limit{optional(s, "--limit", aRate, Rate{Interval: 12000000}), optional(s, "--limit-burst", aBurst, 5)}
	},
})

func (Limit) module() string { return "limit" }
func (m Limit) write(w *words) {
	w.bare("--limit", m.Rate.String())
	writeNumber(w, "--limit-burst", m.Burst, 5)
}

func (Limit) reads() Facts { return FactMemory }

// test is limit_mt (xt_limit.c).
func (m Limit) test(c *Context) Truth {
	type key place
	return truthOf(m.Rate.take(c, key(c.place()), m.Burst))
}

// bucket is a token bucket; its credit is in seconds.
type bucket struct{ credit, last float64 }

// take takes a packet's credit from a bucket, which is full at first (limit_mt).
func (r Rate) take(c *Context, key any, burst uint32) bool {
	cost, now := float64(r.Interval)/float64(r.second()), c.Host.Uptime()
	full := cost * float64(burst)
	b, known := recall[bucket](c, key)
	if !known {
		b = bucket{full, now}
	}
	credit := min(full, b.credit+now-b.last)
	enough := credit >= cost
	if enough {
		credit -= cost
	}
	c.keep(key, bucket{credit, now})
	return enough
}

func statisticPhrase(w *wording, negated bool) bool {
	w.load("statistic")
	if negated || !w.word("mode") {
		return false
	}
	mode, _ := w.next()
	w.emit(false, "--mode", mode)
	not := w.word("!")
	switch {
	case mode.Text == "random" && w.word("probability"):
		// 11 digits are exact for the 31 bits (libxt_statistic.c).
		if _, digits, _ := strings.Cut(w.peek(), "."); len(digits) < 11 {
			w.notes["probabilities"] = fmt.Sprintf("probabilities are rounded to %d digits", len(digits))
		}
		v, ok := w.next()
		w.emit(not, "--probability", v)
		return ok
	case mode.Text == "nth" && w.word("every"):
		v, ok := w.next()
		w.emit(not, "--every", v)
		return ok && (!w.word("packet") || w.value("--packet"))
	}
	return false
}

// limitPhrase reads what limit and hashlimit print: "limit: avg 5/min burst 5" and
// "limit: above 10/sec burst 5 mode srcip-dstport".
func limitPhrase(w *wording, negated bool) bool {
	if w.word("avg") {
		w.load("limit")
		return !negated && w.value("--limit") && (!w.word("burst") || w.value("--limit-burst"))
	}
	option := "--hashlimit-upto"
	if w.word("above") {
		option = "--hashlimit-above"
	} else if !w.word("up", "to") {
		return false
	}
	w.load("hashlimit")
	rate, ok := w.next()
	w.emit(negated, option, rate)
	w.emit(false, "--hashlimit-name", Token{Text: "line-" + strconv.Itoa(w.row.line), Column: rate.Column})
	w.notes["hashlimit"] = "names of hashlimit tables are not listed: each rule is assumed to have its own table, named after its line"
	if w.word("burst") {
		ok = ok && w.value("--hashlimit-burst")
	}
	if w.word("mode") {
		mode, given := w.next()
		mode.Text, ok = strings.ReplaceAll(mode.Text, "-", ","), ok && given
		w.emit(false, "--hashlimit-mode", mode)
	}
	return ok && w.options("--hashlimit-", modules["hashlimit"].shapes)
}
