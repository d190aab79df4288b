package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// TestNodePortsOfIPVS: the sets show ports, and not the addresses of the node: a packet to such a port may be for IPVS, unless
// it is for another host for certain.
func TestNodePortsOfIPVS(t *testing.T) {
	d, err := iptables.Parse(strings.NewReader(strings.Join([]string{
		"*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-MARK-MASQ - [0:0]", "-A PREROUTING -j KUBE-SERVICES",
		"-A KUBE-SERVICES ! -s 10.90.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ", "COMMIT", "*filter", ":FORWARD DROP [0:0]", "COMMIT", "",
	}, "\n")), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sets, err := iptables.ParseSets(strings.NewReader(strings.Join([]string{
		"create KUBE-CLUSTER-IP hash:ip,port family inet", "add KUBE-CLUSTER-IP 10.91.0.20,tcp:80",
		"create KUBE-NODE-PORT-TCP bitmap:port range 0-65535", "add KUBE-NODE-PORT-TCP 30080", "",
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to    string
		given string // an address of the host
		want  Verdict
	}{
		{"192.168.1.5:30080", "", Stopped},
		{"192.168.1.5:30081", "", Dropped},
		{"10.90.2.7:30080", "", Dropped}, // a pod
		{"192.168.1.5:30080", "192.168.1.4/24", Dropped},
		{"10.91.0.20:80", "", Stopped},
	} {
		known := &Host{}
		if c.given != "" {
			known.AddAddress("eth0", netip.MustParsePrefix(c.given))
		}
		p := packet(protoTCP, "10.90.1.9:40000", c.to, "")
		p.Local, p.Owner = false, nil
		host, _ := GuessHost([]*iptables.Dump{d}, known, &p)
		m, err := New([]*iptables.Dump{d}, sets, host, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r := m.Send(p, &State{}, nil); r.Verdict != c.want {
			t.Errorf("%s, the host has %q: %s, want %s: %s", c.to, c.given, r.Verdict, c.want, r.Why)
		}
	}
}
