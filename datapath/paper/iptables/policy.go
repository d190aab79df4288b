package iptables

import (
	"strconv"
	"strings"
)

// IPsec is "-m policy": whether IPsec is applied to the packet, or was on arrival (xt_policy.c).
type IPsec struct {
	Out      bool // --dir out: it will be; else it was
	None     bool // --pol none: there is no policy
	Strict   bool // Elements are all of the policy's, in this order; else one of them must match
	Elements []IPsecElement
}

// IPsecElement is the conditions on one transformation.
type IPsecElement struct {
	RequestID, SPI Condition[uint32]
	Protocol       Condition[uint8] // esp, ah or ipcomp
	Tunnel         Condition[bool]  // --mode tunnel; false: transport
	// The ends of the tunnel.
	Destination, Source Condition[Network]
}

var ipsecProtocols = kind[uint8]{"a protocol of IPsec", "esp, ah or ipcomp", func(t string) (uint8, bool) {
	n, ok := ParseProtocol(t)
	return n, ok && (n == 50 || n == 51 || n == 108)
}}

var _ = addMatch(&module{
	name: "policy",
	shapes: map[string]shape{
		"--dir": one, "--pol": one, "--strict": flag, "--next": repeated,
		"--reqid": notOne.again(), "--spi": notOne.again(), "--proto": notOne.again(), "--mode": notOne.again(),
		"--tunnel-dst": notOne.again(), "--tunnel-src": notOne.again(),
	},
	phrases: map[string]phrase{"policy": policyPhrase},
	build: func(s *section) Match {
		m := IPsec{Strict: s.has("--strict"), Out: first(s, s.oneOf("--dir"), oneName[uint8]("a direction", []string{"in", "out"})) == 1}
		m.None = optional(s, "--pol", oneName[uint8]("a policy", []string{"ipsec", "none"}), 0) == 1
		current := &section{family: s.family}
		finish := func() {
			m.Elements = append(m.Elements, current.ipsecElement())
			if s.err == nil {
				s.err = current.err
			}
			current = &section{family: s.family}
		}
		for _, o := range s.options {
			switch o.name.Text {
			case "--dir", "--pol", "--strict":
				continue
			case "--next":
				if !m.Strict {
					s.fail(o.name, "--next without --strict", "--strict")
				}
				finish()
				continue
			}
			if current.has(o.name.Text) {
				s.fail(o.name, o.name.Text+" is given a second time", "--next in front of it")
			}
			current.options = append(current.options, o)
		}
		without := len(current.options) == 0 && len(m.Elements) == 0
		if !m.None || !without {
			finish() // without options, one that every transformation matches
		}
		const most = 4 // XT_POLICY_MAX_ELEM
		switch {
		case m.None && m.Strict:
			s.fail(s.name, "--pol none with --strict", "--pol ipsec")
		case m.None:
			m.Elements = nil // the kernel compares none
		case m.Strict && without:
			s.fail(s.name, "--strict without an element", "--reqid, --spi, --proto or --mode")
		case len(m.Elements) > most:
			s.fail(s.name, "too many elements of a policy", "at most 4")
		}
		return m
	},
})

func (s *section) ipsecElement() IPsecElement {
	return IPsecElement{
		RequestID: condition(s, "--reqid", anyUint32), SPI: condition(s, "--spi", anyUint32),
		Protocol: condition(s, "--proto", ipsecProtocols),
		Tunnel: condition(s, "--mode", kind[bool]{"a mode", "transport or tunnel", func(t string) (bool, bool) {
			return t == "tunnel", t == "tunnel" || t == "transport"
		}}),
		Destination: condition(s, "--tunnel-dst", s.moduleNetwork()), Source: condition(s, "--tunnel-src", s.moduleNetwork()),
	}
}

func (IPsec) module() string { return "policy" }
func (m IPsec) write(w *words) {
	pick := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	w.bare("--dir", pick(m.Out, "out", "in"), "--pol", pick(m.None, "none", "ipsec"))
	w.flag(m.Strict, "--strict")
	for i, e := range m.Elements {
		w.flag(i > 0, "--next")
		writeCondition(w, "--reqid", e.RequestID, decimal)
		writeCondition(w, "--spi", e.SPI, func(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) })
		writeCondition(w, "--proto", e.Protocol, protocolName)
		writeCondition(w, "--mode", e.Tunnel, func(b bool) string { return pick(b, "tunnel", "transport") })
		writeCondition(w, "--tunnel-dst", e.Destination, Network.hostText)
		writeCondition(w, "--tunnel-src", e.Source, Network.hostText)
	}
}

func (IPsec) reads() Facts { return FactKernel }

// test is match_policy_in and match_policy_out (xt_policy.c) for a packet without IPsec.
func (m IPsec) test(c *Context) Truth {
	c.assume("that IPsec is not applied to the packet")
	return truthOf(m.None)
}

func (IPsec) whyNot(*Context) string { return "IPsec is not applied to it" }

// policyPhrase reads "policy match dir in pol ipsec strict [0] reqid 5 proto esp [1] ! spi 0x1".
func policyPhrase(w *wording, negated bool) bool {
	w.load("policy")
	if negated || !w.word("match", "dir") || !w.value("--dir") || !w.word("pol") || !w.value("--pol") {
		return false
	}
	if w.word("strict") {
		w.emit(false, "--strict")
	}
	for {
		if text := w.peek(); strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			if w.at++; text != "[0]" {
				w.emit(false, "--next")
			}
			continue
		}
		at := w.at
		if !w.options("--", policyElementWords) {
			return false
		}
		if w.at == at {
			return true
		}
	}
}

var policyElementWords = map[string]shape{
	"--reqid": notOne, "--spi": notOne, "--proto": notOne, "--mode": notOne, "--tunnel-dst": notOne, "--tunnel-src": notOne,
}
