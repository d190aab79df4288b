package replay

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

// TestNewFlows: what begins a flow, and what belongs to one.
func TestNewFlows(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
		check      func(*Summary) bool
	}{
		{"a connection", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
0.1  TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK
0.2  TCP 10.244.1.9:40000 > 10.96.0.20:80 ACK`,
			[]string{"0s TCP 10.244.1.9:40000 -> 10.96.0.20:80  default/web:http  => 10.244.1.2:8080 (1 of 2, draw 0.24)  masq: -"},
			func(s *Summary) bool {
				return s.Packets == 3 && s.Flows == 1 && s.Verdicts["dnat"] == 1 && s.Services["default/web:http"] == 1
			}},
		{"the answer of the endpoint, and of one that was addressed directly", `
0    UDP 10.244.1.9:40000 > 10.96.0.20:53
0.1  UDP 10.244.1.2:5353 > 10.244.1.9:40000
0.2  UDP 10.244.1.9:5000 > 10.244.2.9:53
0.3  UDP 10.244.2.9:53 > 10.244.1.9:5000`,
			[]string{"0s UDP 10.244.1.9:40000 -> 10.96.0.20:53  default/web:dns  => 10.244.1.2:5353", "200ms UDP 10.244.1.9:5000 -> 10.244.2.9:53  not for a service"},
			nil},
		{"a SYN sent again keeps its decision", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=1
1    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=2
3    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=3
100  TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=4`,
			[]string{"0s TCP"},
			func(s *Summary) bool { return s.SentAgain == 3 && s.Duplicates == 0 }},
		{"a SYN after its entry has timed out is new", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
120  TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
240.001 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN`,
			[]string{"0s TCP", "4m0.001s TCP"}, nil},
		{"an established connection lasts", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
1    TCP 10.96.0.20:80 > 10.244.1.9:40000 SYN ACK
90000 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN`,
			[]string{"0s TCP"}, nil},
		{"a port used again after both have ended, or a reset", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
1    TCP 10.244.1.9:40000 > 10.96.0.20:80 FIN ACK
2    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
3    TCP 10.96.0.20:80 > 10.244.1.9:40000 FIN ACK
4    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
5    TCP 10.96.0.20:80 > 10.244.1.9:40000 RST
6    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
6.1  TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN`,
			[]string{"0s TCP", "4s TCP", "6s TCP"}, func(s *Summary) bool { return s.SentAgain == 2 }},
		{"no SYN, no flow", `
0    TCP 10.244.1.9:40000 > 10.96.0.20:80 ACK
1    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN ACK
2    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN FIN
3    SCTP 10.244.1.9:40000 > 10.96.0.20:99 DATA`,
			nil, func(s *Summary) bool { return s.Midway == 4 }},
		{"UDP without an answer is new after 30 seconds", `
0    UDP 10.244.1.9:40000 > 10.96.0.20:53
29   UDP 10.244.1.9:40000 > 10.96.0.20:53
59   UDP 10.244.1.9:40000 > 10.96.0.20:53
90   UDP 10.244.1.9:40000 > 10.96.0.20:53`,
			[]string{"0s UDP", "1m30s UDP"}, nil},
		{"answered for a while, after 120", `
0    UDP 10.244.1.9:40000 > 10.96.0.20:53
1    UDP 10.96.0.20:53 > 10.244.1.9:40000
3    UDP 10.244.1.9:40000 > 10.96.0.20:53
122  UDP 10.244.1.9:40000 > 10.96.0.20:53
243  UDP 10.244.1.9:40000 > 10.96.0.20:53`,
			[]string{"0s UDP", "4m3s UDP"}, nil},
		{"answered at once only, after 30", `
0    UDP 10.244.1.9:40000 > 10.96.0.20:53
1    UDP 10.96.0.20:53 > 10.244.1.9:40000
31.1 UDP 10.244.1.9:40000 > 10.96.0.20:53`,
			[]string{"0s UDP", "31.1s UDP"}, nil},
		{"SCTP", `
0    SCTP 10.244.1.9:40000 > 10.96.0.20:99 INIT
1    SCTP 10.96.0.20:99 > 10.244.1.9:40000 INIT-ACK
200  SCTP 10.244.1.9:40000 > 10.96.0.20:99 DATA
201  SCTP 10.96.0.20:99 > 10.244.1.9:40000 ABORT
202  SCTP 10.244.1.9:40000 > 10.96.0.20:99 INIT`,
			[]string{"0s SCTP 10.244.1.9:40000 -> 10.96.0.20:99  not for a service", "3m22s SCTP"}, nil},
		{"refused, dropped, made on the node", `
0    TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN
1    TCP 192.0.2.10:40000 > 172.20.0.2:30030 SYN
2    TCP 172.20.0.2:40000 > 10.96.0.20:80 SYN`,
			[]string{"0s TCP 10.244.1.9:40000 -> 10.96.0.80:80  default/nobody-home  => reject: no endpoints",
				"1s TCP 192.0.2.10:40000 -> 172.20.0.2:30030  default/shop  => drop: no local endpoints",
				"2s TCP 172.20.0.2:40000 -> 10.96.0.20:80  default/web:http  => 10.244.1.2:8080 (1 of 2, draw 0.24)  masq: (source-outside-cluster)"},
			func(s *Summary) bool { return s.Verdicts["drop"] == 1 && s.Verdicts["reject"] == 1 }},
		{"multicast, other protocols, cut packets", `
0    UDP 10.244.1.9:40000 > 224.0.0.251:5353
1    ICMP 10.244.1.9 > 10.244.2.2 about=3
2    ARP
3    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN cut=40
4    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN cut=36
5    UDP 10.244.1.9:40000 > 255.255.255.255:67
6    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN cut=30
7    TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN cut=13`,
			nil, func(s *Summary) bool { return s.Midway == 2 && s.OtherProtocols == 1 && s.NotIP == 1 && s.Cut == 4 }},
		{"captured more than once", `
0      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7 ttl=64
0.001  TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7 ttl=63
0.001  UDP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:53 payload=q ttl=64
0.002  UDP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:53 payload=q ttl=63
0.002  UDP [fd00:10:244:1::9]:40000 > [fd00:10:96::20]:53 payload=r ttl=63`,
			[]string{"0s TCP", "1ms UDP [fd00:10:244:1::9]:40000 -> [fd00:10:96::20]:53  default/web:dns  => [fd00:10:244:"},
			func(s *Summary) bool { return s.Duplicates == 2 && s.SentAgain == 0 }},
		{"captured behind another translation", `
0      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7 seq=5
0.001  TCP 10.244.1.9:40000 > 10.244.2.2:8080 SYN id=7 seq=5
0.002  TCP 172.20.0.2:31000 > 10.244.2.2:8080 SYN id=7 seq=5
0.003  TCP 10.244.1.9:41000 > 10.244.2.2:8080 SYN id=7 seq=6
0.003  UDP 10.244.1.9:40000 > 10.96.0.20:53 id=9 payload=query
0.004  UDP 10.244.1.9:40000 > 10.244.2.2:5353 id=9 payload=query
0.005  UDP 10.244.2.2:5353 > 10.244.1.9:40000 payload=answer`,
			[]string{"0s TCP", "3ms TCP 10.244.1.9:41000 -> 10.244.2.2:8080  not for a service", "3ms UDP"},
			func(s *Summary) bool { return s.Copies == 3 }},
		{"behind a translation a while later, and only by what was sent again", `
0      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=7 seq=5
1      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN id=8 seq=5
1.09   TCP 10.244.1.9:40000 > 10.244.2.2:8080 SYN id=8 seq=5
1.5    TCP 10.244.1.9:40000 > 10.244.2.2:8080 SYN id=20 seq=5
2      TCP 10.244.1.9:40001 > 10.96.0.20:80 SYN id=9 seq=6
2.11   TCP 10.244.1.9:40001 > 10.244.2.2:8080 SYN id=9 seq=6`,
			[]string{"0s TCP", "2s TCP", "2.11s TCP 10.244.1.9:40001 -> 10.244.2.2:8080  not for a service"},
			func(s *Summary) bool { return s.Copies == 1 && s.SentAgain == 1 }},
		{"masqueraded elsewhere, not for a service", `
0      TCP 10.244.1.9:40000 > 192.0.2.1:80 SYN id=7 seq=5
0.001  TCP 172.20.0.2:31000 > 192.0.2.1:80 SYN id=7 seq=5
0.002  TCP 172.20.0.2:31000 > 192.0.2.1:80 SYN id=8 seq=5`,
			[]string{"0s TCP 10.244.1.9:40000 -> 192.0.2.1:80  not for a service"}, func(s *Summary) bool { return s.Copies == 1 }},
		{"packets of one identification, but not the same", `
0      UDP 10.244.1.9:40000 > 10.96.0.20:53 id=9 payload=one
0.001  UDP 10.244.1.9:40000 > 10.244.2.2:53 id=9 payload=two
0.002  TCP 10.244.1.9:1 > 10.96.0.20:80 SYN id=9 seq=1
0.003  TCP 10.244.1.9:2 > 10.96.0.20:80 SYN id=9 seq=2`,
			[]string{"0s UDP", "1ms UDP", "2ms TCP", "3ms TCP"}, func(s *Summary) bool { return s.Copies == 0 }},
		{"a copy of a SYN behind its reset is no new SYN", `
0      TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN id=1
0.001  TCP 10.96.0.80:80 > 10.244.1.9:40000 RST ACK
0.002  TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN id=1 ttl=63
0.003  TCP 10.244.1.9:40000 > 10.96.0.80:80 SYN id=2`,
			[]string{"0s TCP", "3ms TCP"}, func(s *Summary) bool { return s.Duplicates == 1 }},
		{"the same again, later", `
0      TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN
0.006  TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN`,
			[]string{"0s TCP"}, func(s *Summary) bool { return s.Duplicates == 0 && s.SentAgain == 1 }},
		{"a resolver that queries two servers at once is no translation", `
0      UDP 10.244.1.9:40000 > 10.96.0.20:53 payload=query
0.001  UDP 10.244.1.9:40000 > 10.244.2.9:53 payload=query`,
			[]string{"0s UDP", "1ms UDP"}, func(s *Summary) bool { return s.Copies == 0 }},
		{"session affinity goes by the time of the capture", `
0    TCP 10.244.1.9:1 > 10.96.0.50:80 SYN
600  TCP 10.244.1.9:2 > 10.96.0.50:80 SYN
1200.001 TCP 10.244.1.9:3 > 10.96.0.50:80 SYN`,
			[]string{"0s TCP 10.244.1.9:1 -> 10.96.0.50:80  default/sticky  => 10.244.1.2:8080 (1 of 3, draw 0.24)",
				"10m0s TCP 10.244.1.9:2 -> 10.96.0.50:80  default/sticky  => 10.244.1.2:8080 (the only one)",
				"20m0.001s TCP 10.244.1.9:3 -> 10.96.0.50:80  default/sticky  => 10.244.2.2:8080 (2 of 3, draw 0.50)"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines, s := decided(t, strings.TrimPrefix(tt.text, "\n"))
			wantLines(t, lines, tt.want...)
			if tt.check != nil && !tt.check(s) {
				t.Errorf("summary %+v", *s)
			}
		})
	}
}

// TestLocal: from an address of the node means made there.
func TestLocal(t *testing.T) {
	d := ByTable(cluster(t, nil), draws(), true)
	for source, local := range map[string]bool{"172.20.0.2:1": true, "127.0.0.1:1": true, "172.20.0.3:1": false} {
		got, err := d.Decide(&First{Tuple: conntrack.Tuple{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort("10.96.0.20:80"), Protocol: packet.TCP}})
		if err != nil || got.Record.Local != local || len(got.Record.Steps) == 0 {
			t.Errorf("from %s: %+v, %v", source, got.Record, err)
		}
	}
}

// TestSummary: counts of zero are left out, the busiest service is first.
func TestSummary(t *testing.T) {
	_, s := decided(t, `0 TCP 10.244.1.9:1 > 10.96.0.20:80 SYN
1 TCP 10.244.1.9:2 > 10.96.0.50:80 SYN
2 TCP 10.244.1.9:3 > 10.96.0.50:80 SYN
3 TCP 10.244.1.9:4 > 10.96.0.80:80 SYN
4 ARP
5 TCP 10.244.1.9:5 > 10.244.2.2:80 SYN`)
	var b strings.Builder
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	const want = `6 packets in 5s, 5 flows decided: 3 translated, 1 refused, 1 passed unchanged
       1  not IP
       2  to default/sticky
       1  to default/nobody-home
       1  to default/web:http
`
	if b.String() != want {
		t.Errorf("have\n%s\nwant\n%s", b.String(), want)
	}
}

// TestSweep: flows that have ended do not stay in memory.
func TestSweep(t *testing.T) {
	ended := 0
	flows := newTracker()
	flows.forget = func(*trackedFlow) { ended++ }
	addSome := func(at time.Time) {
		for i := range sweepAfter {
			source := netip.AddrFrom4([4]byte{10, byte(at.Second()), byte(i >> 8), byte(i)})
			tuple := conntrack.Tuple{Source: netip.AddrPortFrom(source, 1), Destination: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: packet.TCP}
			flows.add(&trackedFlow{original: tuple, translated: tuple, begun: at, last: at})
		}
	}
	addSome(capturetest.Epoch)
	addSome(capturetest.Epoch.Add(tcpSYNTimeout + time.Second))
	if ended != sweepAfter || len(flows.flows) != 2*sweepAfter {
		t.Errorf("%d flows have ended, %d tuples are known", ended, len(flows.flows))
	}
}
