package iptables

import "strings"

// Verdict is a target that needs no module.
type Verdict uint8

// The verdicts.
const (
	Accept Verdict = iota // NF_ACCEPT: skips the other rules of the table
	Drop                  // NF_DROP
	Return                // XT_RETURN: continues after the rule that jumped here, or with the policy
)

func (v Verdict) name() string { return nameOf([]string{"ACCEPT", "DROP", "RETURN"}, v) }

// String is the name.
func (v Verdict) String() string { return v.name() }
func (Verdict) write(*words)     {}

func (v Verdict) effect(c *Context) string {
	if v == Accept && c.Rule != nil && c.Rule.Native { // it ends the base chain only (nft_do_chain)
		return "accepted by this chain; the next ones see it, too"
	}
	return [...]string{"accepted; the other rules of this table are skipped", "dropped", "back"}[v]
}

var _ = []*target{verdictTarget(Accept), verdictTarget(Drop), verdictTarget(Return)}

func verdictTarget(v Verdict) *target {
	return addTarget(&target{name: v.name(), build: func(*section) Target { return v }})
}

// Jump is "-j chain": evaluates the chain's rules, and then those after this one.
type Jump struct{ Chain string }

// Goto is "-g chain": as Jump, but at its end continues after the rule that jumped to this one's
// chain.
type Goto struct{ Chain string }

func (t Jump) name() string { return t.Chain }
func (Jump) write(*words)   {}

func (t Goto) name() string { return t.Chain }
func (Goto) write(*words)   {}

func (t Jump) effect(*Context) string { return "to " + t.Chain }
func (t Goto) effect(*Context) string { return "to " + t.Chain }

var (
	chainTarget = &target{build: func(s *section) Target { return Jump{s.name.Text} }}
	gotoTarget  = &target{build: func(s *section) Target { return Goto{s.name.Text} }}
)

// Trace is "-j TRACE": the kernel logs every rule that the packet matches from here on.
type Trace struct{}

var _ = addTarget(&target{
	name:  "TRACE",
	build: func(*section) Target { return Trace{} },
})

func (Trace) name() string { return "TRACE" }
func (Trace) write(*words) {}

func (Trace) inert()                 {}
func (Trace) effect(*Context) string { return isLogged }

// Tarpit is "-j TARPIT" of xtables-addons, which are not part of the kernel: the module itself
// replies to TCP, and the packet is dropped (xt_TARPIT.c, tarpit_tg4).
type Tarpit struct {
	Mode string // tarpit, honeypot or reset
}

var _ = addTarget(&target{
	name: "TARPIT", shapes: map[string]shape{"--tarpit": flag, "--honeypot": flag, "--reset": flag},
	phrases: map[string]phrase{"TARPIT": tarpitPhrase},
	build: func(s *section) Target {
		s.needs(s.name, "TARPIT", protoTCP)
		if o, ok := s.atMostOne("--tarpit", "--honeypot", "--reset"); ok {
			return Tarpit{strings.TrimPrefix(o.name.Text, "--")}
		}
		return Tarpit{"tarpit"}
	},
})

func (Tarpit) name() string     { return "TARPIT" }
func (t Tarpit) write(w *words) { w.bare("--" + t.Mode) }

func (Tarpit) effect(*Context) string { return "dropped; TARPIT itself replies" }

// Reject is "-j REJECT".
type Reject struct{ With RejectWith }

// RejectWith is the reply to a rejected packet, by the name that iptables-save prints: those that
// begin with "icmp-" are for IPv4, those with "icmp6-" for IPv6.
type RejectWith string

// TCPReset replies with a TCP segment (ipt_reject.h, IPT_TCP_RESET).
const TCPReset RejectWith = "tcp-reset"

// UnknownUnreachable is an ICMP error whose code the rules do not show.
const UnknownUnreachable RejectWith = "an ICMP error whose code nft does not list"

// rejectNames are the answers, each before its short name, in the order of iptables (libipt_REJECT.c
// and libip6t_REJECT.c, reject_table).
var rejectNames = map[Family][]string{
	IPv4: {
		"icmp-net-unreachable", "net-unreach", "icmp-host-unreachable", "host-unreach",
		"icmp-proto-unreachable", "proto-unreach", "icmp-port-unreachable", "port-unreach",
		"icmp-net-prohibited", "net-prohib", "icmp-host-prohibited", "host-prohib",
		"tcp-reset", "tcp-rst", "icmp-admin-prohibited", "admin-prohib",
	},
	IPv6: {
		"icmp6-no-route", "no-route", "icmp6-adm-prohibited", "adm-prohibited",
		"icmp6-addr-unreachable", "addr-unreach", "icmp6-port-unreachable", "port-unreach",
		"tcp-reset", "tcp-reset", "icmp6-policy-fail", "policy-fail", "icmp6-reject-route", "reject-route",
	},
}

// rejectNamed reads an answer's name, or its beginning: the first answer that begins so is meant.
func rejectNamed(f Family, text string) (RejectWith, bool) {
	for i, name := range rejectNames[f] {
		if begins(name, text) {
			return RejectWith(rejectNames[f][i&^1]), true
		}
	}
	return "", false
}

var _ = addTarget(&target{
	name: "REJECT", table: "filter",
	shapes:  map[string]shape{"--reject-with": one},
	phrases: map[string]phrase{"REJECT": targetPhrase("--reject-with", "reject-with")},
	build: func(s *section) Target {
		otherwise := RejectWith("icmp-port-unreachable")
		want := "icmp-port-unreachable, icmp-host-prohibited, ..., tcp-reset"
		if s.family == IPv6 {
			otherwise = "icmp6-port-unreachable"
			want = "icmp6-port-unreachable, icmp6-adm-prohibited, ..., tcp-reset"
		}
		t := Reject{optional(s, "--reject-with", kind[RejectWith]{"an answer of " + s.family.String(), want, func(text string) (RejectWith, bool) {
			return rejectNamed(s.family, text)
		}}, otherwise)}
		if o, ok := s.find("--reject-with"); ok && t.With == TCPReset {
			s.needs(o.values[0], "tcp-reset", protoTCP)
		}
		return t
	},
})

func (Reject) name() string     { return "REJECT" }
func (t Reject) write(w *words) { w.bare("--reject-with", string(t.With)) }

func (t Reject) effect(*Context) string { return "refused with " + string(t.With) }

// tarpitPhrase reads "-j TARPIT --tarpit" (libxt_TARPIT.c).
func tarpitPhrase(w *wording, _ bool) bool {
	mode := Token{}
	ok := w.word("-j", "TARPIT")
	if ok {
		mode, ok = w.next()
	}
	w.emit(false, mode.Text)
	return ok
}
