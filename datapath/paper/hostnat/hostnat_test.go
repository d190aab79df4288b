package hostnat

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

func table(t *testing.T, name string, rules ...string) Table {
	t.Helper()
	d, err := iptables.Parse(strings.NewReader("*nat\n"+strings.Join(rules, "\n")+"\nCOMMIT\n"), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return Table{name, d}
}

func host() *netfilter.Host {
	h := &netfilter.Host{}
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.3/16"))
	return h
}

func translate(r *Rules, from string) hostnat.Result {
	return r.Translate(&decision.Packet{
		Protocol: decision.TCP, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort("10.96.0.1:443"),
	}, netip.MustParseAddrPort("172.20.0.4:6443"))
}

// TestOrder: tables are evaluated in their order; ACCEPT ends only its own, and the first
// that translates is the last one.
func TestOrder(t *testing.T) {
	rules, err := Compile([]Table{
		table(t, "first", "-A POSTROUTING -s 10.1.0.0/16 -j ACCEPT", "-A POSTROUTING -s 10.2.0.0/16 -j SNAT --to-source 172.20.0.2", "-A POSTROUTING -s 10.4.0.0/16 -m time --timestart 10:00 -j MASQUERADE"),
		table(t, "idle", "-A POSTROUTING -s 10.1.0.0/16 -j ACCEPT"),
		table(t, "second", "-A POSTROUTING -s 10.0.0.0/8 -j SNAT --to-source 172.20.0.3"),
	}, host())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ from, source, table string }{
		{"10.1.0.1:1", "172.20.0.3", "second"}, {"10.2.0.1:1", "172.20.0.2", "first"}, {"10.3.0.1:1", "172.20.0.3", "second"},
	} {
		if a := translate(rules, tt.from); a.Source.String() != tt.source || a.Table != tt.table || a.Unknown != "" {
			t.Errorf("%s: %+v, want %s of %s", tt.from, a, tt.source, tt.table)
		}
	}
	// An unknown result ends it: the table behind might be evaluated, or not.
	if a := translate(rules, "10.4.0.1:1"); a.Unknown == "" || a.Table != "first" || a.Source.IsValid() {
		t.Errorf("%+v, want no answer", a)
	}
	if a := translate(rules, "192.0.2.1:1"); a.Rule != nil {
		t.Errorf("%+v, want no rule", a)
	}
}

// TestCompile: tables that translate nothing are not evaluated at all, and one that is broken
// leaves the others.
func TestCompile(t *testing.T) {
	rules, err := Compile([]Table{table(t, "idle", "-A POSTROUTING -j ACCEPT", "-A PREROUTING -j DNAT --to-destination 10.0.0.1")}, host())
	if err != nil || rules.Any(decision.IPv4) || rules.Any(decision.IPv6) {
		t.Errorf("any %v, error %v", rules.Any(decision.IPv4), err)
	}
	loop := table(t, "loop", ":A - [0:0]", "-A POSTROUTING -j A", "-A A -j A")
	rules, err = Compile([]Table{loop, table(t, "good", "-A POSTROUTING -j MASQUERADE")}, host())
	if err == nil || !strings.Contains(err.Error(), "loop: line ") || !rules.Any(decision.IPv4) || rules.Any(decision.IPv6) {
		t.Errorf("any %v, error %v", rules.Any(decision.IPv4), err)
	}
	if (*Rules)(nil).Any(decision.IPv4) {
		t.Error("no rules are some")
	}
}
