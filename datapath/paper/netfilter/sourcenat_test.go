package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func translated(source, original, destination, out string) *Translated {
	p := packet(protoTCP, source, destination, "veth1")
	return &Translated{Packet: p, Original: netip.MustParseAddrPort(original), Out: out}
}

// parse makes a machine of rules in one table.
func parse(t testing.TB, h *Host, lines ...string) *Machine {
	t.Helper()
	d, err := iptables.Parse(strings.NewReader(strings.Join(lines, "\n")+"\n"), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New([]*iptables.Dump{d}, nil, h, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSourceNAT(t *testing.T) {
	kind := load(t, "kind-1.29-worker1-after.rules", worker())
	flannel := load(t, "kubeadm-1.22-flannel-node1.rules", worker())
	own := parse(t, worker(), "*nat",
		"-A POSTROUTING -d 10.1.0.0/16 -p tcp -m tcp --dport 80 -j SNAT --to-source 192.0.2.5:1000-2000",
		"-A POSTROUTING -d 10.2.0.0/16 -m statistic --mode random --probability 0.5 -j MASQUERADE",
		"-A POSTROUTING -d 10.3.0.0/16 -p tcp -m conntrack --ctstate DNAT --ctorigdst 10.96.0.1 -j MASQUERADE --to-ports 5000-6000",
		"-A POSTROUTING -d 10.4.0.0/16 -m time --timestart 10:00 -j MASQUERADE",
		"-A POSTROUTING -d 10.5.0.0/16 -o eth0 -j MASQUERADE",
		"-A POSTROUTING -d 10.6.0.0/16 -j NETMAP --to 198.51.100.0/24",
		"-A POSTROUTING -d 10.7.0.0/16 -j SNAT --to-source 10.244.1.1-10.244.1.6",
		"-A POSTROUTING -d 10.8.0.0/16 -j SNAT --to-source 10.244.1.2-10.244.1.7 --random-fully",
		"-A POSTROUTING -d 10.9.0.0/16 -p tcp -j SNAT --to-source 10.244.1.2:5000-6000",
		"-A POSTROUTING -d 10.10.0.0/16 -m time --timestart 10:00 -m mark --mark 0x1 -j MASQUERADE",
		"-A POSTROUTING -d 10.11.0.0/16 -m length --length 0:100 -j MASQUERADE",
		"-A POSTROUTING -d 10.12.0.0/16 -p tcp -m tcp --tcp-option 2 -j MASQUERADE",
		"-A POSTROUTING -d 10.13.0.0/16 -m physdev ! --physdev-is-bridged -j MASQUERADE",
		"-A POSTROUTING -d 10.14.0.0/16 -p sctp -m sctp --chunk-types any INIT -j MASQUERADE",
		"COMMIT")
	association := translated("10.244.1.2:4000", "10.96.0.1:443", "10.14.0.1:80", "eth0")
	association.Protocol = protoSCTP
	for _, tt := range []struct {
		name string
		m    *Machine
		p    *Translated
		want SourceResult
		line int
	}{
		{"kind: to the API server", kind, translated("10.244.1.2:4000", "10.96.0.1:443", "172.20.0.4:6443", "eth0"), SourceResult{Masquerade: true}, 85},
		{"kind: to a pod", kind, translated("10.244.1.2:4000", "10.96.0.10:53", "10.244.0.2:53", "eth0"), SourceResult{}, 0},
		{"kind: to this host", kind, translated("10.244.1.2:4000", "10.96.0.10:53", "172.20.0.2:53", "lo"), SourceResult{}, 0},
		{"flannel: to the API server", flannel, translated("10.244.1.2:4000", "10.96.0.1:443", "192.168.100.1:6443", "ens3"), SourceResult{Masquerade: true}, 130},
		{"flannel: to a pod", flannel, translated("10.244.1.2:4000", "10.96.0.10:53", "10.244.2.21:53", "flannel.1"), SourceResult{}, 0},
		{"flannel: from elsewhere to a pod", flannel, translated("192.0.2.9:4000", "10.96.0.10:53", "10.244.2.21:53", "flannel.1"), SourceResult{Masquerade: true}, 132},
		{"SNAT with ports", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.1.0.1:80", "eth0"),
			SourceResult{Source: netip.MustParseAddr("192.0.2.5"), Ports: iptables.PortRange{First: 1000, Last: 2000}}, 2},
		{"the port is another", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.1.0.1:81", "eth0"), SourceResult{}, 0},
		{"chance", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.2.0.1:80", "eth0"), SourceResult{Unknown: true}, 3},
		{"original destination", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.3.0.1:80", "eth0"),
			SourceResult{Masquerade: true, Ports: iptables.PortRange{First: 5000, Last: 6000}}, 4},
		{"another original destination", own, translated("10.244.1.2:4000", "10.96.0.2:443", "10.3.0.1:80", "eth0"), SourceResult{}, 0},
		{"a match that is not known", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.4.0.1:80", "eth0"), SourceResult{Unknown: true}, 5},
		{"device", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.5.0.1:80", "eth0"), SourceResult{Masquerade: true}, 6},
		{"another device", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.5.0.1:80", "eth1"), SourceResult{}, 0},
		{"NETMAP", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.6.0.1:80", "eth0"), SourceResult{Source: netip.MustParseAddr("198.51.100.2")}, 7},
		{"a source within the range", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.7.0.1:80", "eth0"), SourceResult{Source: netip.MustParseAddr("10.244.1.2")}, 8},
		{"a source within the range, at random", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.8.0.1:80", "eth0"), SourceResult{Source: netip.MustParseAddr("10.244.1.3")}, 9},
		{"a port without the range", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.9.0.1:80", "eth0"),
			SourceResult{Source: netip.MustParseAddr("10.244.1.2"), Ports: iptables.PortRange{First: 5000, Last: 6000}}, 10},
		{"unknown, but another match fails", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.10.0.1:80", "eth0"), SourceResult{}, 0},
		{"length", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.11.0.1:80", "eth0"), SourceResult{Unknown: true}, 12},
		{"TCP option", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.12.0.1:80", "eth0"), SourceResult{Unknown: true}, 13},
		{"bridge", own, translated("10.244.1.2:4000", "10.96.0.1:443", "10.13.0.1:80", "eth0"), SourceResult{Unknown: true}, 14},
		{"chunks", own, association, SourceResult{Unknown: true}, 15},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var j SourceNAT
			got := j.Evaluate(tt.m, tt.p)
			line := 0
			if got.Rule != nil {
				line = got.Rule.Line
			}
			got.Rule = nil
			if got != tt.want || line != tt.line {
				t.Errorf("%+v by line %d, want %+v by line %d", got, line, tt.want, tt.line)
			}
			if n := testing.AllocsPerRun(100, func() { j.Evaluate(tt.m, tt.p) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// BenchmarkSourceNAT is what a translated flow costs more, on nodes of kind and of flannel.
func BenchmarkSourceNAT(b *testing.B) {
	for _, name := range []string{"kind-1.29-worker1-after.rules", "kubeadm-1.22-flannel-node1.rules"} {
		b.Run(name, func(b *testing.B) {
			m := load(b, name, worker())
			p := translated("10.244.1.2:4000", "10.96.0.1:443", "172.20.0.4:6443", "eth0")
			var j SourceNAT
			b.ReportAllocs()
			for b.Loop() {
				if j.Evaluate(m, p).Rule == nil {
					b.Fatal("no rule")
				}
			}
		})
	}
}
