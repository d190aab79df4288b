package kubeaddr

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	utilnet "k8s.io/utils/net"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.1":              "10.96.0.1",
		"172.30.0.041":           "172.30.0.41",
		"010.000.000.099":        "10.0.0.99", // decimal, not octal
		"::ffff:10.96.0.1":       "10.96.0.1",
		"::ffff:0a60:0001":       "10.96.0.1",
		"::ffff:010.096.000.001": "10.96.0.1",
		"fd00::1":                "fd00::1",
		"FD00:0000::0001":        "fd00::1",
		"64:ff9b::010.0.0.1":     "64:ff9b::a00:1",
		"":                       "", "10.96.0": "", "10.96.0.256": "", "fe80::1%eth0": "", " 10.0.0.1": "", "None": "",
	} {
		a, err := Parse(text)
		if err == nil && a.String() != want || err != nil && want != "" {
			t.Errorf("Parse(%q) = %v, %v; want %q", text, a, err, want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.244.0.0/16":             "10.244.0.0/16",
		"203.0.113.000/025":         "203.0.113.0/25",
		"203.0.113.129/25":          "203.0.113.128/25",
		"::ffff:10.0.0.0/104":       "10.0.0.0/8",
		"::ffff:010.000.000.000/96": "0.0.0.0/0",
		"::ffff:10.0.0.0/80":        "::/80",
		"fd00::/64":                 "fd00::/64",
		"":                          "", "10.0.0.0": "", "10.0.0.0/33": "", "10.0.0.0/-1": "", "/8": "",
	} {
		p, err := ParsePrefix(text)
		if err == nil && p.String() != want || err != nil && want != "" {
			t.Errorf("ParsePrefix(%q) = %v, %v; want %q", text, p, err, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "", "fd00::1": "", "FD00::0001": "", "10.0.0.0/8": "", "10.0.0.1/8": "", "nonsense": "", "": "",
		"10.0.0.01": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "10.0.0.0/08": "10.0.0.0/8", "::ffff:10.0.0.0/104": "10.0.0.0/8",
	} {
		if got := Plain(text); got != want {
			t.Errorf("Plain(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestWarning(t *testing.T) {
	var r Respelled
	r.See("10.0.0.1", "spec.clusterIP")
	if w := r.Warning("service a/b"); w != "" {
		t.Errorf("a plain spelling: %q", w)
	}
	for range 5 {
		r.See("10.0.0.01", "spec.externalIPs[%d]", 0)
	}
	w := r.Warning("service a/b")
	for _, want := range []string{"service a/b: ", `spec.externalIPs[0] "10.0.0.01" is read as 10.0.0.1`, "and 2 more"} {
		if !strings.Contains(w, want) {
			t.Errorf("%q does not contain %q", w, want)
		}
	}
}

// FuzzAsKubeProxy compares with what kube-proxy calls. Go's own parser also reads texts
// that net.ParseIP does not, but no such text without a zone.
func FuzzAsKubeProxy(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.0.0.1/08", "::ffff:1.2.3.4", "::ffff:1.2.3.4/100", "fd00::/8", "1::2::3", "::1.2.3.4/128", "fe80::1%a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse(s)
		if want := utilnet.ParseIPSloppy(s); (err == nil) != (want != nil) || err == nil && a.String() != want.String() {
			t.Errorf("Parse(%q) = %v, %v; kube-proxy has %v", s, a, err, want)
		}
		p, err := ParsePrefix(s)
		_, want, wantErr := utilnet.ParseCIDRSloppy(s)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("ParsePrefix(%q): %v; kube-proxy: %v", s, err, wantErr)
		}
		if err == nil && !sameNet(p, want) {
			t.Errorf("ParsePrefix(%q) = %v; kube-proxy has %v", s, p, want)
		}
	})
}

// sameNet compares the strings, by which kube-proxy writes rules.
func sameNet(p netip.Prefix, n *net.IPNet) bool {
	q, err := netip.ParsePrefix(n.String())
	return err == nil && p == q
}

func TestCanBeHost(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.1": true, "fd00::1": true, "0.0.0.0": false, "127.0.0.1": false, "::1": false, "224.0.0.1": false, "169.254.1.1": false, "fe80::1": false,
	} {
		if got := CanBeHost(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if CanBeHost(netip.Addr{}) {
		t.Error("the zero address")
	}
}
