package iptables

import (
	"fmt"
	"strings"
)

// ECN is "-m ecn": explicit congestion notification (RFC 3168) in the IP and the TCP header
// (xt_ecn.c).
type ECN struct {
	Echo    Condition[bool]  // the TCP flag ECE
	Reduced Condition[bool]  // the TCP flag CWR
	IP      Condition[uint8] // the lower two bits of the type of service
}

const (
	ecnEcho, ecnReduced, ecnIP = "--ecn-tcp-ece", "--ecn-tcp-cwr", "--ecn-ip-ect"
)

var _ = addMatch(&module{
	name:   "ecn",
	shapes: map[string]shape{ecnEcho: notFlag, ecnReduced: notFlag, ecnIP: notOne},
	build: func(s *section) Match {
		m := ECN{
			Echo: flagCondition(s, ecnEcho), Reduced: flagCondition(s, ecnReduced),
			IP: condition(s, ecnIP, kind[uint8]{"an ECN codepoint", "0 to 3", func(t string) (uint8, bool) {
				n, ok := number[uint8](t)
				return n, ok && n < 4
			}}),
		}
		switch {
		case m.Echo.Given || m.Reduced.Given: // ecn_mt_check4
			s.needs(s.name, "a TCP flag of -m ecn", protoTCP)
		case !m.IP.Given:
			s.miss(strings.Join([]string{ecnEcho, ecnReduced, ecnIP}, " or "))
		}
		return m
	},
	phrases: map[string]phrase{"ECN": func(w *wording, negated bool) bool { // "ECN match !ECE CWR !ECT=1"
		w.load("ecn")
		ok := w.word("match")
		for ok && w.at < len(w.words) {
			not, t := cutNot(w.words[w.at])
			codepoint, isIP := strings.CutPrefix(t.Text, "ECT=")
			switch {
			case t.Text == "ECE":
				w.emit(not, ecnEcho)
			case t.Text == "CWR":
				w.emit(not, ecnReduced)
			case isIP:
				w.emit(not, ecnIP, Token{Text: codepoint, Column: t.Column})
			default:
				return !negated
			}
			w.at++
		}
		return ok && !negated
	}},
})

func (ECN) module() string { return "ecn" }
func (m ECN) write(w *words) {
	writeFlag(w, ecnEcho, m.Echo)
	writeFlag(w, ecnReduced, m.Reduced)
	writeCondition(w, ecnIP, m.IP, decimal)
}

func (m ECN) reads() Facts {
	if m.IP.Given {
		return FactTOS
	}
	return 0
}

// test is ecn_mt4 and ecn_mt6.
func (m ECN) test(c *Context) Truth {
	p := &c.Packet
	return truthOf(!m.IP.fails(p.TOS&3 == m.IP.Value) &&
		(!m.Echo.Given && !m.Reduced.Given || p.Protocol == protoTCP && !m.Echo.fails(p.Flags&ECE != 0) && !m.Reduced.fails(p.Flags&CWR != 0)))
}

func (m ECN) whyNot(c *Context) string {
	p := &c.Packet
	if m.IP.fails(p.TOS&3 == m.IP.Value) {
		return isNot(fmt.Sprintf("the ECN codepoint is %d", p.TOS&3), decimal(m.IP.Value), m.IP.Negated)
	}
	for _, f := range []struct {
		name string
		Condition[bool]
		set bool
	}{{"ECE", m.Echo, p.Flags&ECE != 0}, {"CWR", m.Reduced, p.Flags&CWR != 0}} {
		switch {
		case f.fails(f.set) && f.set:
			return fmt.Sprintf("the TCP flag %s is set", f.name)
		case f.fails(f.set):
			return fmt.Sprintf("the TCP flag %s is not set", f.name)
		}
	}
	return ""
}
