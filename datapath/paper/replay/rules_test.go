package replay

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// worker makes a decider of rules of IPv4 on the first worker of a kind cluster.
func worker(t *testing.T, rules string, steps bool) Decider {
	t.Helper()
	dump, err := iptables.Parse(strings.NewReader(rules), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	host := &netfilter.Host{
		Interfaces: []netfilter.Interface{
			{Name: "lo", Addresses: []netfilter.Address{{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Narrow: true}}},
			{Name: "eth0", Addresses: []netfilter.Address{{Prefix: netip.MustParsePrefix("172.20.0.2/16")}}},
		},
		Routes: []netfilter.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0", Via: netip.MustParseAddr("172.20.0.1")}},
	}
	machine, err := netfilter.New([]*iptables.Dump{dump}, nil, host, netfilter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return ByRules(Rules{Machines: map[decision.Family]*netfilter.Machine{decision.IPv4: machine}, Steps: steps}, draws())
}

func kindRules(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../iptables/testdata/kind-1.29-worker1-after.rules")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestByRules: a real node's rules decide, and translate.
func TestByRules(t *testing.T) {
	r := New(worker(t, kindRules(t), false))
	r.Translate = true
	lines, out := run(t, r, capture(t, "pcap raw", `0 UDP 10.244.1.9:40000 > 10.96.0.10:53 payload=q
1 TCP 192.0.2.10:40000 > 172.20.0.2:30080 SYN
2 TCP 172.20.0.2:40000 > 10.96.0.1:443 SYN
3 TCP 10.244.1.9:40000 > 192.0.2.1:80 SYN
4 TCP [fd00::1]:40000 > [fd00::2]:80 SYN
5 TCP 10.244.1.2:80 > 172.20.0.2:40000 SYN ACK`))
	wantLines(t, lines,
		"0s UDP 10.244.1.9:40000 -> 10.96.0.10:53  kube-system/kube-dns:dns  => 10.244.0.2:53  masq: -",
		"1s TCP 192.0.2.10:40000 -> 172.20.0.2:30080  default/my-nginx-service  => 10.244.2.2:80  masq: 172.20.0.2",
		"2s TCP 172.20.0.2:40000 -> 10.96.0.1:443  default/kubernetes:https  => 172.20.0.4:6443  masq: 172.20.0.2",
		"3s TCP 10.244.1.9:40000 -> 192.0.2.1:80  not for a service",
		"4s TCP [fd00::1]:40000 -> [fd00::2]:80  not for a service")
	blocks, err := readAll(out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range blocks[1:] {
		p, err := decoded(b.Frame)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.Tuple.Source.String()+" > "+p.Tuple.Destination.String())
	}
	for i, want := range map[int]string{0: "10.244.1.9:40000 > 10.244.0.2:53", 2: "172.20.0.2:40000 > 172.20.0.4:6443", 3: "172.20.0.2:40000 > 192.0.2.1:80"} {
		if got[i] != want {
			t.Errorf("packet %d: %s, want %s", i+1, got[i], want)
		}
	}
	if !strings.HasPrefix(got[1], "172.20.0.2:") || !strings.HasSuffix(got[1], " > 10.244.2.2:80") {
		t.Errorf("packet 2: %s", got[1])
	}
}

// TestRulesRemember: the state of the rules goes on through the capture, by its time, and
// a connection that has ended is decided anew.
func TestRulesRemember(t *testing.T) {
	const rules = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-STICKY - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-SEP-B - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.50/32 -p tcp -m comment --comment "default/sticky cluster IP" -m tcp --dport 80 -j KUBE-SVC-STICKY
-A KUBE-SVC-STICKY -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-B --mask 255.255.255.255 --rsource -j KUBE-SEP-B
-A KUBE-SVC-STICKY -m recent --rcheck --seconds 600 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j KUBE-SEP-A
-A KUBE-SVC-STICKY -d 10.96.0.50/32 -p tcp -m tcp --sport 1000:1999 -j KUBE-SEP-B
-A KUBE-SVC-STICKY -j KUBE-SEP-A
-A KUBE-SEP-A -p tcp -m recent --set --name KUBE-SEP-A --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.1.2:80
-A KUBE-SEP-B -p tcp -m recent --set --name KUBE-SEP-B --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.1.3:80
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -p tcp -m tcp --dport 23 -j DROP
-A FORWARD -p tcp -m comment --comment "default/nobody-home has no endpoints" -m tcp --dport 24 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`
	r := New(worker(t, rules, false))
	lines, _ := run(t, r, capture(t, "pcap", `0 TCP 10.244.1.9:1000 > 10.96.0.50:80 SYN
600 TCP 10.244.1.9:2000 > 10.96.0.50:80 SYN
1201 TCP 10.244.1.9:2001 > 10.96.0.50:80 SYN
1202 TCP 10.244.1.9:2000 > 10.96.0.50:80 SYN
1203 TCP 10.244.1.9:3000 > 192.0.2.1:23 SYN
1204 TCP 10.244.1.9:3000 > 192.0.2.1:24 SYN`))
	wantLines(t, lines,
		"0s TCP 10.244.1.9:1000 -> 10.96.0.50:80  default/sticky  => 10.244.1.3:80",
		"10m0s TCP 10.244.1.9:2000 -> 10.96.0.50:80  default/sticky  => 10.244.1.3:80",
		"20m1s TCP 10.244.1.9:2001 -> 10.96.0.50:80  default/sticky  => 10.244.1.2:80",
		"20m2s TCP 10.244.1.9:2000 -> 10.96.0.50:80  default/sticky  => 10.244.1.2:80",
		"20m3s TCP 10.244.1.9:3000 -> 192.0.2.1:23  => drop: rules",
		"20m4s TCP 10.244.1.9:3000 -> 192.0.2.1:24  => reject: rules")
}

// TestRuleRecord: what a dump shows is in the record.
func TestRuleRecord(t *testing.T) {
	d := worker(t, kindRules(t), true)
	got, err := d.Decide(&First{Tuple: conntrack.Tuple{Source: netip.MustParseAddrPort("192.0.2.10:40000"), Destination: netip.MustParseAddrPort("172.20.0.2:30080"), Protocol: packet.TCP}, TTL: 64, Length: 60})
	if err != nil {
		t.Fatal(err)
	}
	r := got.Record
	want := flow.Record{Verdict: "dnat", Reason: "rules", Service: "default/my-nginx-service", Entry: "node-port", Endpoint: r.Endpoint, Masquerade: true, MasqueradeAddress: "172.20.0.2"}
	if r.Verdict != want.Verdict || r.Reason != want.Reason || r.Service != want.Service || r.Entry != want.Entry || r.Masquerade != want.Masquerade || r.MasqueradeAddress != want.MasqueradeAddress || r.Endpoint == "" {
		t.Errorf("have %+v\nwant %+v", *r, want)
	}
	if len(r.Steps) < 5 || r.Candidates == nil || r.Excluded == nil {
		t.Errorf("%d steps, candidates %v, excluded %v", len(r.Steps), r.Candidates, r.Excluded)
	}
}

// TestCountersGoOn: a counter of -m statistic goes on from flow to flow, so that of every two
// flows one is dropped, whatever is drawn; and rules see the packet's own options and frame.
func TestCountersGoOn(t *testing.T) {
	const rules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -p tcp -m tcp --dport 23 -m statistic --mode nth --every 2 --packet 0 -j DROP
COMMIT
`
	for range 20 {
		d := worker(t, rules, false)
		var dropped []bool
		for i := range 8 {
			got, err := d.Decide(&First{
				Tuple: conntrack.Tuple{Source: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), uint16(40000+i)), Destination: netip.MustParseAddrPort("192.0.2.99:23"), Protocol: packet.TCP}, TTL: 64, Length: 40,
			})
			if err != nil {
				t.Fatal(err)
			}
			dropped = append(dropped, got.Record.Verdict == "drop")
		}
		for i := 2; i < len(dropped); i++ {
			if dropped[i] == dropped[i-1] {
				t.Fatalf("dropped %v, want every second one", dropped)
			}
		}
	}
}

// TestRulesSeeThePacket: its frame, options, contents and time.
func TestRulesSeeThePacket(t *testing.T) {
	at := time.Date(2026, 1, 31, 10, 30, 0, 0, time.UTC) // a Saturday
	data := []byte{
		0x45, 0, 0, 44, 0, 1, 0, 0, 64, 6, 0, 0, 192, 0, 2, 10, 192, 0, 2, 99, // IPv4
		0x9c, 0x40, 0, 23, 0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 0, 0x60, 0xc2, 0x7f, 0xff, 0, 0, 0, 0, 2, 4, 0x05, 0x14, // TCP, ECN, a segment size of 1300
	}
	first := func() *First {
		return &First{
			Tuple: conntrack.Tuple{Source: netip.MustParseAddrPort("192.0.2.10:40000"), Destination: netip.MustParseAddrPort("192.0.2.99:23"), Protocol: packet.TCP}, Time: at, TTL: 64, Length: 44, Data: data,
			Sender: &[6]byte{2, 0, 0, 0, 0, 1},
		}
	}
	for rule, want := range map[string]string{
		"-m mac --mac-source 02:00:00:00:00:01":                                          "drop",
		"-m mac --mac-source 02:00:00:00:00:02":                                          "accept",
		"-p tcp -m tcpmss --mss 1300":                                                    "drop",
		"-p tcp -m tcpmss --mss 1301:1400":                                               "accept",
		"-p tcp -m tcp --tcp-option 2":                                                   "drop",
		"-m time --weekdays Sat --timestart 10:00:00":                                    "drop",
		"-m time --weekdays Sun":                                                         "accept",
		`-m string --hex-string "|cafebabe|" --algo bm`:                                  "drop",
		`-m string ! --hex-string "|cafebabe|" --algo bm`:                                "accept",
		`-m u32 --u32 "0>>22&0x3C@4=0xcafebabe&&8>>24=0x3f"`:                             "drop",
		"-m ttl --ttl-eq 64":                                                             "accept", // 63, as it is forwarded
		"-p tcp -m ecn --ecn-tcp-ece":                                                    "drop",
		"-p tcp -m ecn ! --ecn-tcp-cwr":                                                  "accept",
		"-p tcp -m osf --genre Linux":                                                    "unknown",
		"-m connbytes --connbytes 2 --connbytes-mode packets --connbytes-dir both":       "accept",
		"-m connbytes --connbytes 1:1 --connbytes-mode packets --connbytes-dir original": "drop",
		"-m ttl --ttl-eq 63 -m string --string Ab --algo kmp":                            "accept",
		"-m policy --dir in --pol none -m helper ! --helper x":                           "drop",
	} {
		got, err := worker(t, "*filter\n-A FORWARD "+rule+" -j DROP\nCOMMIT\n", false).Decide(first())
		if err != nil {
			t.Fatal(err)
		}
		if got.Record.Verdict != want {
			t.Errorf("%s: %s, want %s", rule, got.Record.Verdict, want)
		}
	}
	unknown := first()
	unknown.Sender = nil
	got, err := worker(t, "*filter\n-A FORWARD -m mac --mac-source 02:00:00:00:00:01 -j DROP\nCOMMIT\n", false).Decide(unknown)
	if err != nil || got.Record.Verdict != "unknown" {
		t.Errorf("without a frame: %s, %v", got.Record.Verdict, err)
	}
}
