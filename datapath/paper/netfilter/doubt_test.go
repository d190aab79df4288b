package netfilter

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// machineOf makes a machine that follows doubts, of the filter rules of OUTPUT and others.
func machineOf(t *testing.T, o Options, text string) *Machine {
	t.Helper()
	d, err := iptables.Parse(strings.NewReader(text), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	h, _ := GuessHost([]*iptables.Dump{d}, &Host{}, nil)
	m, err := New([]*iptables.Dump{d}, nil, h, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func fromHost(port uint16) iptables.Packet {
	return iptables.Packet{
		Protocol: protoTCP, Source: netip.MustParseAddrPort("0.0.0.0:40000"), Destination: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), port),
		Local: true, Owner: new(iptables.SocketOwner), Flags: iptables.SYN, Length: 60, TTL: 64,
	}
}

// TestDoubts: a rule that may match or not is one fork, unless something certain decides or it makes no difference.
func TestDoubts(t *testing.T) {
	for _, c := range []struct{ name, rules, want string }{
		{"certain", "-A OUTPUT -p tcp -m tcp --dport 80 -j DROP", "dropped filter/OUTPUT"},
		{"a limit", "-A OUTPUT -m limit --limit 5/min -j DROP", "dropped filter/OUTPUT, passing line 5 true; sent, passing line 5 false"},
		{"a limit before what is certain", "-A OUTPUT -m limit --limit 5/min -p tcp -m tcp --dport 443 -j DROP", "sent"},
		{"a limit of logging", "-A OUTPUT -m limit --limit 5/min -j LOG", "sent"},
		{"chance", "-A OUTPUT -m statistic --mode random --probability 0.1 -j REJECT", "rejected filter/OUTPUT, passing line 5 true; sent, passing line 5 false"},
		{"a list", "-A OUTPUT -m recent --set --name a --rsource\n-A OUTPUT -m recent --rcheck --hitcount 3 --name a --rsource -j DROP", "dropped filter/OUTPUT, passing line 6 true; sent, passing line 6 false"},
		{"a set", "-A OUTPUT -m set --match-set a dst -j DROP", "dropped filter/OUTPUT, unknown line 5 true; sent, unknown line 5 false"},
		{"two doubts are one fork", "-A OUTPUT -m set --match-set a dst -m limit --limit 1/sec -j DROP", "dropped filter/OUTPUT, unknown line 5 true; sent, unknown line 5 false"},
		{"text that a later packet may have", `-A OUTPUT -p tcp -m string --string "GET /admin" --algo bm --to 65535 -j DROP`, "dropped filter/OUTPUT, unknown line 5 true; sent, unknown line 5 false"},
		{"text that a later packet may not have", `-A OUTPUT -p tcp -m string ! --string "GET /admin" --algo bm --to 65535 -j ACCEPT`, "sent"},
		{"a port of a bridge, without a bridge", "-A OUTPUT -m physdev --physdev-in vnet1 -j DROP", "sent"},
		{"the policy", ":OUTPUT DROP [0:0]\n-A OUTPUT -m limit --limit 1/sec -j ACCEPT", "sent, passing line 6 true; dropped filter/OUTPUT, passing line 6 false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n#\n" + c.rules + "\nCOMMIT\n"
			m := machineOf(t, Options{Doubts: true}, text)
			ways, rest := m.Explore(fromHost(80), nil, 10)
			var got []string
			for _, w := range ways {
				text := w.Verdict.String()
				if w.Chain != "" {
					text += " " + w.Table + "/" + w.Chain
				}
				for _, d := range w.Doubts {
					kind := "unknown"
					if d.Passing() {
						kind = "passing"
					}
					text += fmt.Sprintf(", %s line %d %v", kind, d.Rule.Line, d.Matched)
				}
				if len(w.Steps) > 0 {
					t.Errorf("%d steps", len(w.Steps))
				}
				got = append(got, text)
			}
			if text := strings.Join(got, "; "); text != c.want || rest != 0 {
				t.Errorf("%s, %v left out, want %s", text, rest, c.want)
			}
		})
	}
}

// TestDoubtsOfBridges: whether a packet passes a port of a bridge is not known where its device is a bridge.
func TestDoubtsOfBridges(t *testing.T) {
	for match, out := range map[string]string{"--physdev-in vnet1": "virbr0", "--physdev-is-bridged": "cni0", "! --physdev-is-bridged": "br-0a1b2c3d4e5f"} {
		for device, want := range map[string]int{out: 2, "eth1": 1} {
			m := machineOf(t, Options{Doubts: true}, "*filter\n-A FORWARD -o "+device+" -m physdev "+match+" -j DROP\n-A FORWARD -d 198.51.100.0/24 -o "+device+" -j ACCEPT\nCOMMIT\n")
			h := &Host{Routes: []Route{{Destination: netip.MustParsePrefix("198.51.100.0/24"), Interface: device}, {Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"}}}
			h.AddAddress(device, netip.MustParsePrefix("203.0.113.1/32"))
			m = m.On(h)
			ways, _ := m.Explore(packet(protoTCP, "192.0.2.7:40000", "198.51.100.7:80", "eth0"), nil, 10)
			if len(ways) != want {
				t.Errorf("%s by %s: %d ways, want %d", match, device, len(ways), want)
			}
		}
	}
}

// TestIndex: walks with the index of long chains end as those that evaluate each rule.
func TestIndex(t *testing.T) {
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n")
	for i := range 40 {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&b, "-A OUTPUT -d 203.0.113.%d/32 -p tcp -m tcp --dport %d -j DROP\n", i%10, 80+i)
		case 1:
			fmt.Fprintf(&b, "-A OUTPUT -p tcp -m comment --comment x -m tcp --dport %d -j REJECT\n", 80+i)
		case 2:
			fmt.Fprintf(&b, "-A OUTPUT -s 192.0.2.%d/32 -p tcp -m tcp --dport 80:%d -j DROP\n", (i+4)%10, 80+i)
		case 3:
			fmt.Fprintf(&b, "-A OUTPUT ! -d 203.0.113.7/32 -p tcp -m tcp --dport %d -j ACCEPT\n", 80+i)
		case 4:
			fmt.Fprintf(&b, "-A OUTPUT -p tcp -m tcp --dport %d:%d -j DROP\n", 100+i, 101+i)
		}
	}
	b.WriteString("COMMIT\n")
	fast, slow := machineOf(t, Options{Doubts: true}, b.String()), machineOf(t, Options{}, b.String())
	if fast.backends[0].chains["filter"]["OUTPUT"].index == nil {
		t.Fatal("no index")
	}
	ends := make(map[string]int)
	for port := uint16(70); port < 160; port++ {
		for host := range 10 {
			p := fromHost(port)
			p.Destination = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(host)}), port)
			a, b := fast.Send(p, new(State), nil), slow.Send(p, new(State), nil)
			if a.Verdict != b.Verdict || (a.By == nil) != (b.By == nil) || a.By != nil && a.By.Line != b.By.Line {
				t.Fatalf("%s: %s by %v with the index, %s by %v without", p.Destination, a.Verdict, a.By, b.Verdict, b.By)
			}
			ends[fmt.Sprint(b.Verdict)]++
		}
	}
	if len(ends) < 3 {
		t.Errorf("only %v", ends)
	}
}
