package hostrules

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// rawExtension is a struct xt_entry_match or xt_entry_target.
func rawExtension(x xtables.Extension) []byte {
	const header = 32
	raw := make([]byte, header+(len(x.Data)+7)&^7)
	binary.NativeEndian.PutUint16(raw, uint16(len(raw)))
	copy(raw[2:], x.Name)
	raw[31] = x.Revision
	copy(raw[header:], x.Data)
	return raw
}

// rawEntry is a rule with matches and a target, as struct ipt_entry or ip6t_entry.
func rawEntry(f decision.Family, target xtables.Extension, matches ...xtables.Extension) []byte {
	header, targetOffset := 112, 88
	if f == decision.IPv6 {
		header, targetOffset = 168, 140
	}
	e := make([]byte, header)
	for _, x := range matches {
		e = append(e, rawExtension(x)...)
	}
	binary.NativeEndian.PutUint16(e[targetOffset:], uint16(len(e)))
	e = append(e, rawExtension(target)...)
	binary.NativeEndian.PutUint16(e[targetOffset+2:], uint16(len(e)))
	return e
}

func rawVerdict(v int32) xtables.Extension {
	return xtables.Extension{Name: xtables.StandardTarget, Data: binary.NativeEndian.AppendUint32(nil, uint32(v))}
}

func rawHead(name string) xtables.Extension {
	return xtables.Extension{Name: xtables.ErrorTarget, Data: append([]byte(name), make([]byte, 30-len(name))...)}
}

// FuzzRules: whatever the kernel gives, nothing panics, and no rule is lost.
func FuzzRules(f *testing.F) {
	// sample is of one base chain, POSTROUTING, with one rule, and of one chain with none.
	sample := func(family decision.Family, target xtables.Extension, matches ...xtables.Extension) {
		first := rawEntry(family, target, matches...)
		f.Add(slices.Concat(first, rawEntry(family, rawVerdict(xtables.Accept)),
			rawEntry(family, rawHead("inner")), rawEntry(family, rawVerdict(xtables.Return)), rawEntry(family, rawHead("ERROR"))),
			family == decision.IPv6, uint32(0), uint32(len(first)))
	}
	for _, family := range families {
		sample(family, rawVerdict(xtables.Accept), xtables.Comment("a comment"), xtables.Mark(1, 3))
		sample(family, rawVerdict(xtables.Drop), xtables.States(xtables.Related), xtables.Extension{Name: "set", Revision: 4, Data: make([]byte, 44)})
		sample(family, rawVerdict(int32(len(rawEntry(family, rawVerdict(0))))))
		sample(family, xtables.Extension{Name: "MASQUERADE", Data: make([]byte, 24)}, xtables.DestinationPort(80))
		sample(family, xtables.Extension{Name: "SNAT", Revision: 2, Data: make([]byte, 48)}, xtables.Extension{Name: "unknown"})
	}
	f.Fuzz(func(t *testing.T, data []byte, six bool, first, last uint32) {
		table := &xtables.Table{Family: decision.IPv4, Name: natTable, ValidHooks: 1 << 4}
		if six {
			table.Family = decision.IPv6
		}
		table.HookEntry[4], table.Underflow[4] = first, last
		if table.ParseEntries(data) != nil {
			return
		}
		chains, err := table.Chains()
		if err != nil {
			return
		}
		rules := 0
		for _, c := range chains {
			rules += len(c.Rules)
		}
		for _, set := range []setName{nil, func(uint16) (string, bool) { return "set", true }} {
			out, err := legacyChains(table.Family, chains, set)
			read := 0
			for _, c := range out {
				read += len(c.Rules)
			}
			if err == nil && read != rules {
				t.Errorf("%d rules, want %d", read, rules)
			}
			evaluate(table.Family, out)
		}
	})
}

// evaluate sends a packet through each chain, and prints the rules: whatever they are, nothing panics.
func evaluate(f decision.Family, chains []*rules.Chain) {
	p := hostnat.Packet{
		Packet:   decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("10.244.0.2:1000"), Destination: netip.MustParseAddrPort("10.96.0.1:80")},
		Endpoint: netip.MustParseAddrPort("10.244.0.3:8080"), Out: "eth0",
	}
	if f == decision.IPv6 {
		p.Source, p.Destination, p.Endpoint = netip.MustParseAddrPort("[fd00::2]:1000"), netip.MustParseAddrPort("[fd00::1:1]:80"), netip.MustParseAddrPort("[fd00::3]:8080")
	}
	host := new(hostnat.Host)
	for _, c := range chains {
		table := &hostnat.Table{Base: c}
		_ = c.Translates()
		set := &hostnat.Ruleset{Host: host, Tables: map[decision.Family][]*hostnat.Table{f: {table}}}
		_ = new(hostnat.Evaluator).Evaluate(set, p)
		for _, r := range c.Rules {
			_, _ = r.String(), r.MarkUse()
		}
	}
}

// TestOwnExtensions: what the constructors of xtables write means what their names mean.
func TestOwnExtensions(t *testing.T) {
	for _, c := range []struct {
		x    xtables.Extension
		want string
	}{
		{xtables.Comment("a comment"), `-m comment --comment "a comment"`},
		{xtables.Mark(0x10, 0x30), "-m mark --mark 0x10/0x30"},
		{xtables.States(xtables.Related | xtables.Established), "-m conntrack --ctstate RELATED,ESTABLISHED"},
		{xtables.DestinationPort(31000), "-m tcp --dport 31000"},
	} {
		for _, f := range families {
			r := rules.Rule{Chain: "x", Steps: []rules.Step{matchOf(f, c.x, nil)}}
			if got := r.String(); got != "-A x "+c.want {
				t.Errorf("%s: %s, want %s", f, got, c.want)
			}
		}
	}
}
