package hostmasq

import (
	"net/netip"
	"strings"
	"testing"
)

// TestSourceTranslation: the translation of the source 10.244.1.9:1000 of a pod's flow.
func TestSourceTranslation(t *testing.T) {
	for _, tt := range []struct {
		name, rules string
		masquerade  bool
		source      string // empty: stays
		unknown     string // part of the reason
	}{
		{name: "masquerade", rules: masquerades, masquerade: true},
		{name: "an address of the host", rules: "-A POSTROUTING -j SNAT --to-source 172.20.0.2", source: "172.20.0.2"},
		{name: "another's address", rules: "-A POSTROUTING -j SNAT --to-source 203.0.113.1", unknown: "203.0.113.1 is no address of this host"},
		{name: "within the range already", rules: "-A POSTROUTING -j SNAT --to-source 10.244.1.1-10.244.1.20"},
		{name: "within the ports already", rules: "-A POSTROUTING -p tcp -j SNAT --to-source 10.244.1.9:900-1100"},
		{name: "not within the ports", rules: "-A POSTROUTING -p tcp -j SNAT --to-source 10.244.1.9:5000-6000", unknown: "10.244.1.9 is no address of this host"},
		{name: "nothing", rules: nothing},
		{name: "stopped", rules: "-A POSTROUTING -p tcp -j DROP\n" + masquerades, unknown: "drops or rejects the packet"},
		{name: "not known", rules: "-A POSTROUTING -m set --match-set pods src -j MASQUERADE", unknown: "not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, log := newFollower(&fakeSource{t: t, rules: tt.rules, address: "172.20.0.2/16"})
			a := answer(f)
			var source netip.Addr
			if tt.source != "" {
				source = netip.MustParseAddr(tt.source)
			}
			translated := a.Rule != nil && a.Unknown == ""
			if a.Masquerade != tt.masquerade || a.Source != source || (a.Unknown == "") != (tt.unknown == "") || !strings.Contains(a.Unknown, tt.unknown) {
				t.Errorf("%+v; log:\n%s", a, log)
			}
			if translated != (tt.masquerade || tt.source != "") {
				t.Errorf("answer by rule %v", a.Rule)
			}
		})
	}
}
