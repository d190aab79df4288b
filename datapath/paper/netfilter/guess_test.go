package netfilter

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// TestGuessHost has rules as people write them, and what they show of their hosts: the
// devices that the packet comes in and goes out by, its source in the end, and sentences
// that have to be among the guesses.
func TestGuessHost(t *testing.T) {
	router := []string{
		"*filter", "-A FORWARD -i eth1 -o eth0 -j ACCEPT", "COMMIT",
		"*nat", "-A PREROUTING -i eth0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.168.1.20", "-A POSTROUTING -o eth0 -j MASQUERADE", "COMMIT",
	}
	for _, c := range []struct {
		name, from, to   string
		in               string // as given; or "made here"
		rules            []string
		wantIn, out, src string // out is empty: delivered
		guesses          []string
	}{
		{"a network by the jump to its chain", "192.168.1.50:1", "1.1.1.1:53", "", []string{
			"*nat", ":lan - [0:0]", ":wan - [0:0]", "-A PREROUTING -i br-lan -j lan", "-A POSTROUTING -o pppoe-wan -j wan",
			"-A lan -s 192.168.1.0/24 -d 203.0.113.5/32 -j DNAT --to-destination 192.168.1.20", "-A wan -j MASQUERADE", "COMMIT",
		}, "br-lan", "pppoe-wan", "203.0.113.5", []string{"br-lan has the address 192.168.1.1 and leads to 192.168.1.0/24: see line 6", "203.0.113.5 is an address of this host: see line 6"}},
		{"a chain that several devices lead to shows none", "192.168.1.50:1", "192.168.1.1:53", "", []string{
			"*nat", ":both - [0:0]", "-A PREROUTING -i eth1 -j both", "-A PREROUTING -i eth2 -j both", "-A both -s 192.168.1.0/24 -j ACCEPT", "COMMIT",
		}, "eth1", "", "192.168.1.50", []string{"192.168.1.1 is an address of this host, or a packet from 192.168.1.50 would not arrive here"}},
		{"a device that others are dropped for", "100.90.1.2:1", "192.0.2.9:53", "", []string{
			"*filter", "-A INPUT -s 100.101.102.103/32 -i lo -j ACCEPT", "-A INPUT -s 100.64.0.0/10 ! -i tailscale0 -j DROP", "COMMIT",
		}, "tailscale0", "eth0", "100.90.1.2", []string{"tailscale0 has the address 100.101.102.103 and leads to 100.64.0.0/10: see line 3"}},
		{"a forged source shows no network", "10.1.2.3:1", "10.9.9.9:53", "eth0", []string{
			"*filter", "-A FORWARD -s 10.0.0.0/8 -i eth0 -j DROP", "COMMIT",
		}, "eth0", "", "10.1.2.3", []string{"10.9.9.9 is an address of this host, or a packet from 10.1.2.3 would not arrive here"}},
		{"the inner device of a router", "192.168.1.50:1", "1.1.1.1:53", "", router,
			"eth1", "eth0", "192.0.2.1", []string{"192.168.1.0/24 is behind eth1, the only other device that the rules name", "all other addresses are behind eth0"}},
		{"a server behind a router", "198.51.100.9:1", "192.168.1.20:53", "", router, "eth0", "eth1", "198.51.100.9", nil},
		{"a router's own address", "192.168.1.50:1", "192.168.1.254:53", "", router, "eth1", "", "192.168.1.50", []string{"192.168.1.254 is the host's own address there"}},
		{"a router queries a server", "0.0.0.0:1", "192.168.5.77:53", "made here", router, "", "eth1", "192.168.5.1", nil},
		{"to the world from a device that no rule names", "10.0.45.101:1", "1.1.1.1:53", "", []string{
			"*nat", "-A POSTROUTING ! -d 10.0.0.0/16 -j SNAT --to-source 10.0.31.7", "COMMIT",
		}, "eth0", "eth0", "10.0.31.7", []string{"10.0.31.7 is an address of this host: see line 2"}},
		{"a network that is hidden, its device unknown", "192.168.7.7:1", "1.1.1.1:53", "", []string{
			"*nat", "-A POSTROUTING -s 192.168.7.0/24 -o eth0 -j SNAT --to-source 203.0.113.30", "COMMIT",
		}, "lan", "eth0", "203.0.113.30", []string{"192.168.7.0/24 is behind a device named lan here, because line 2 hides it behind eth0", "203.0.113.30 is an address of this host: see line 2"}},
		{"an address that only the host's own packets have", "10.5.0.9:1", "169.254.20.10:53", "", []string{
			"*filter", "-A INPUT -s 10.5.0.0/24 -i br0 -j ACCEPT", "-A INPUT -d 169.254.20.10/32 -j ACCEPT", "COMMIT",
		}, "br0", "", "10.5.0.9", []string{"169.254.20.10 is an address of this host: see line 3"}},
		{"a port that the host publishes, requested by a container", "172.17.0.2:1", "192.168.1.10:8080", "", []string{
			"*nat", ":DOCKER - [0:0]", "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			"-A DOCKER ! -i docker0 -p udp -m udp --dport 8080 -j DNAT --to-destination 172.17.0.3:80", "COMMIT",
		}, "docker0", "", "172.17.0.2", []string{"192.168.1.10 is an address of this host, because line 5 matches its port 8080"}},
		{"another port, requested by a container", "172.17.0.2:1", "192.168.1.10:80", "", []string{
			"*nat", ":DOCKER - [0:0]", "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			"-A DOCKER ! -i docker0 -p udp -m udp --dport 8080 -j DNAT --to-destination 172.17.0.3:80", "COMMIT",
		}, "docker0", "eth0", "192.0.2.1", nil},
		{"a node port, requested by a pod", "10.244.1.9:1", "172.20.0.2:30053", "", []string{
			"*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-NODEPORTS - [0:0]", ":KUBE-MARK-MASQ - [0:0]", "-A PREROUTING -j KUBE-SERVICES",
			"-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -j KUBE-MARK-MASQ", "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
			"-A KUBE-NODEPORTS -p udp -m udp --dport 30053 -j DNAT --to-destination 10.244.2.2:53", "COMMIT",
		}, "cni0", "cni0", "10.244.1.9", []string{"172.20.0.2 is an address of this host, because line 8 matches its port 30053"}},
		{"the device that is given", "10.0.1.77:1", "1.1.1.1:53", "lxc123", []string{
			"*nat", "-A POSTROUTING -s 10.0.1.0/24 ! -o cilium_+ -j MASQUERADE",
			"-A POSTROUTING ! -s 10.0.1.0/24 -o cilium_host -j SNAT --to-source 10.0.1.33", "-A POSTROUTING -o cilium_net -m mark --mark 0x1 -j MASQUERADE", "COMMIT",
		}, "lxc123", "eth0", "192.0.2.1", []string{"10.0.1.77 is behind lxc123, because the packet arrives on it"}},
		{"others behind a tunnel", "10.8.0.2:1", "10.8.0.3:53", "", []string{
			"*nat", "-A POSTROUTING -s 10.8.0.0/24 -o enp1s0 -j MASQUERADE", "COMMIT", "*filter", "-A FORWARD -i wg0 -j ACCEPT", "COMMIT",
		}, "wg0", "wg0", "10.8.0.2", []string{"10.8.0.0/24 is behind wg0, because line 2 hides it behind enp1s0"}},
		{"from a tunnel, not from the inner device", "10.8.0.5:1", "1.1.1.1:53", "wg0", []string{
			"*filter", "-A FORWARD -i wg0 -o eth1 -j REJECT", "-A FORWARD -i eth1 -o wg0 -j REJECT", "COMMIT", "*nat", "-A POSTROUTING -o eth0 -j MASQUERADE", "COMMIT",
		}, "wg0", "eth0", "192.0.2.1", []string{"10.8.0.5 is behind wg0, because the packet arrives on it"}},
		{"a hidden network, by the device that the packet arrives on", "10.8.0.5:1", "1.1.1.1:53", "wg0", []string{
			"*nat", "-A POSTROUTING -s 10.8.0.0/24 -o eth0 -j MASQUERADE", "COMMIT",
		}, "wg0", "eth0", "192.0.2.1", []string{"10.8.0.0/24 is behind wg0, because line 2 hides it behind eth0"}},
		{"a pod's own device does not lead to others", "10.70.16.13:1", "1.1.1.1:53", "eni1b2c3d", []string{
			"*mangle", "-A PREROUTING -i ens5 -j ACCEPT", "-A PREROUTING -i eni+ -j ACCEPT", "COMMIT",
		}, "eni1b2c3d", "ens5", "10.70.16.13", []string{"10.70.16.13 is behind eni1b2c3d, because the packet arrives on it", "all other addresses are behind ens5"}},
		{"pods of another host, by the device that they come in by", "10.244.2.9:1", "10.244.3.9:53", "eth0", []string{
			"*nat", "-A POSTROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN", "-A POSTROUTING ! -s 10.244.0.0/16 -d 10.244.1.0/24 -j RETURN",
			"-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -j KUBE-MARK-MASQ", ":KUBE-SERVICES - [0:0]", ":KUBE-MARK-MASQ - [0:0]", "-A PREROUTING -j KUBE-SERVICES", "COMMIT",
		}, "eth0", "eth0", "10.244.2.9", []string{"cni0 leads to the pods of this host, 10.244.1.0/24 (see line 3), and eth0 to those of others"}},
		{"the usual network of a device that is named", "192.168.1.3:1", "10.32.0.9:53", "", []string{
			"*filter", "-A FORWARD -i weave ! -o weave -j ACCEPT", "-A FORWARD -o weave -j ACCEPT", "COMMIT",
		}, "eth0", "weave", "192.168.1.3", []string{"weave has the address 10.32.0.1 and leads to 10.32.0.0/12, as usual: line 2 names the device"}},
		{"a device that was made up leads to nothing else", "192.168.7.7:1", "10.80.3.4:53", "", []string{
			"*filter", "-A FORWARD -s 10.80.0.0/16 -j ACCEPT", "-A FORWARD -d 10.80.0.0/16 -j ACCEPT", "COMMIT", "*nat", "-A POSTROUTING -s 10.80.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE", "COMMIT",
		}, "eth0", "lan", "192.168.7.7", []string{"the packet arrives on eth0, which leads to 192.168.7.7"}},
		{"pods of which one has a policy", "10.244.1.3:1", "10.244.1.7:53", "", []string{
			"*filter", "-A FORWARD -i kube-bridge -j ACCEPT", ":POD - [0:0]", "-A FORWARD -d 10.244.1.7/32 -j POD", "COMMIT",
			"*nat", "-A POSTROUTING -m mark --mark 0x1 -j MASQUERADE", "COMMIT",
		}, "kube-bridge", "kube-bridge", "10.244.1.3", []string{"10.244.1.7 is behind kube-bridge: line 4 of FORWARD names it"}},
		{"pods of which no rule names a network", "10.65.0.2:1", "10.65.0.3:53", "", []string{
			"*filter", "-A FORWARD -i cali+ -j ACCEPT", "-A FORWARD -o cali+ -j ACCEPT", "COMMIT",
		}, "cali1", "cali1", "10.65.0.2", []string{"10.65.0.2 and 10.65.0.3 are pods behind cali1: rules name such a device"}},
		{"a pod to the internet", "10.65.0.2:1", "1.1.1.1:53", "", []string{
			"*filter", "-A FORWARD -i cali+ -j ACCEPT", "-A FORWARD -o cali+ -j ACCEPT", "COMMIT",
		}, "cali1", "eth0", "10.65.0.2", nil},
		{"a network that is masqueraded by every device", "10.0.1.5:1", "1.1.1.1:53", "", []string{
			"*nat", "-A POSTROUTING -s 10.0.1.0/24 ! -d 10.0.0.0/16 ! -o cilium_+ -j MASQUERADE", "COMMIT", "*filter", "-A FORWARD -i lxc+ -j ACCEPT", "COMMIT",
		}, "lxc1", "eth0", "192.0.2.1", []string{"the network 10.0.1.0/24 is behind a device called lxc1 here: line 2 masquerades it"}},
		{"a device to other nodes is not one of clients", "10.42.0.5:1", "1.1.1.1:53", "", []string{
			"*filter", "-A FORWARD -o vxlan.calico -j ACCEPT", "-A FORWARD -i cilium_host -j ACCEPT", "COMMIT",
		}, "eth0", "", "10.42.0.5", nil},
		{"a router with two inner devices", "10.9.0.6:1", "169.254.169.254:53", "", []string{
			"*nat", "-A PREROUTING -i qr-+ -d 169.254.169.254/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 9697", "-A POSTROUTING -o qg-1 -j SNAT --to-source 203.0.113.2", "COMMIT",
			"*filter", "-A FORWARD -o qr-2 -j ACCEPT", "-A FORWARD -o qr-3 -j ACCEPT", "COMMIT",
		}, "qr-2", "", "10.9.0.6", []string{"10.9.0.6 is behind qr-2", "qr-2 has the address 10.9.0.1, as the gateway of 10.9.0.6"}},
		{"a server behind a router with two inner devices", "198.51.100.7:1", "203.0.113.20:53", "", []string{
			"*nat", "-A PREROUTING -d 203.0.113.20/32 -j DNAT --to-destination 10.9.0.5", "-A POSTROUTING -m conntrack ! --ctstate DNAT -o qg-1 -j SNAT --to-source 203.0.113.2", "COMMIT",
			"*filter", "-A FORWARD -o qr-2 -j ACCEPT", "-A FORWARD -o qr-3 -j ACCEPT", "COMMIT",
		}, "qg-1", "qr-2", "198.51.100.7", []string{"10.9.0.5 is behind qr-2"}},
		{"a host whose address rules show", "10.50.7.1:1", "10.50.3.55:53", "", []string{
			"*nat", "-A POSTROUTING ! -d 10.50.0.0/16 -j SNAT --to-source 10.50.3.10", "COMMIT",
		}, "eth0", "eth0", "10.50.7.1", []string{"10.50.3.55 is behind this host, like the destinations of other packets from 10.50.7.1"}},
		{"a transparent proxy", "10.0.1.77:1", "1.1.1.1:53", "", []string{
			"*mangle", "-A PREROUTING -p udp -j TPROXY --on-port 10812 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff", "COMMIT",
		}, "eth0", "", "10.0.1.77", []string{"a program listens at 127.0.0.1:10812, and packets with the mark 0x200 are routed to this host, as TPROXY requires: see line 2"}},
		{"broadcast", "192.168.1.9:68", "255.255.255.255:67", "", nil, "eth0", "", "192.168.1.9", nil},
		{"DHCP's first question", "0.0.0.0:68", "255.255.255.255:67", "eth1", []string{
			"*nat", "-A POSTROUTING -s 10.0.0.0/24 -o eth0 -j MASQUERADE", "COMMIT",
		}, "eth1", "", "0.0.0.0", []string{"all other addresses are behind eth0"}},
		{"a group", "192.168.1.9:1", "224.0.0.251:5353", "", nil, "eth0", "", "192.168.1.9", []string{"a program on this host has joined the group 224.0.0.251"}},
	} {
		d, err := iptables.Parse(strings.NewReader(strings.Join(c.rules, "\n")+"\n"), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := iptables.Packet{Protocol: protoUDP, Source: netip.MustParseAddrPort(c.from), Destination: netip.MustParseAddrPort(c.to), InInterface: c.in, TTL: 64}
		if c.in == "made here" {
			p.Local, p.InInterface = true, ""
		}
		host, guesses := GuessHost([]*iptables.Dump{d}, &Host{}, &p)
		m, err := New([]*iptables.Dump{d}, nil, host, Options{})
		if err != nil {
			t.Fatal(err)
		}
		r := m.Send(p, &State{}, nil)
		if p.InInterface != c.wantIn || r.Out != c.out || (r.Verdict == Delivered) != (c.out == "") || r.Packet.Source.Addr().String() != c.src {
			t.Errorf("%s: in by %s, %s by %s: %s %s; want in by %s, out by %q, from %s", c.name, p.InInterface, r.Verdict, r.Out, &r.Packet, r.Why, c.wantIn, c.out, c.src)
		}
		text := ""
		for _, g := range guesses {
			text += g.Text + "\n"
		}
		if strings.Contains(text, "255.255.255.255 is an address of this host") {
			t.Errorf("%s: guessed that the broadcast address is the host's", c.name)
		}
		for _, want := range c.guesses {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("%s: not guessed: %s; but\n%s", c.name, want, text)
			}
		}
	}
}

// TestGuessHostAnyRules: for any packet and any host there is an answer, and what
// was guessed holds: the packet comes in by a device of the host, unless it was given.
func TestGuessHostAnyRules(t *testing.T) {
	files, err := filepath.Glob("../iptables/testdata/*.rules")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := filepath.Glob("../iptables/testdata/hosts/*.rules")
	if err != nil || len(files) < 5 || len(hosts) < 10 {
		t.Fatal("where are the dumps?", err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range append(files, hosts...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := iptables.Parse(bytes.NewReader(text), iptables.Options{})
		if err != nil {
			t.Fatal(name, err)
		}
		addresses := []string{"10.244.1.2", "192.168.1.50", "192.168.122.7", "172.17.0.2", "1.1.1.1", "203.0.113.5", "100.90.1.2", "127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.251"}
		if d.Family == iptables.IPv6 {
			addresses = []string{"fd00:10:244:1::2", "2001:db8::5", "fe80::1", "::1", "::", "ff02::1", "ff05::2"}
		}
		any := func() netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(addresses[r.IntN(len(addresses))]), []uint16{53, 80, 443, 8080, 30080}[r.IntN(5)])
		}
		for range 200 {
			p := packet([]uint8{protoTCP, protoUDP}[r.IntN(2)], any().String(), any().String(), []string{"", "eth0", "cali1"}[r.IntN(3)])
			p.Local = r.IntN(4) == 0
			if p.Local {
				p.InInterface = ""
			}
			given := p.InInterface != ""
			known := &Host{}
			if r.IntN(3) == 0 {
				known.AddAddress("eth0", netip.MustParsePrefix("192.168.1.10/24"))
			}
			if r.IntN(3) == 0 {
				known.Routes = []Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"}}
			}
			if r.IntN(10) == 0 {
				GuessHost([]*iptables.Dump{d}, known, nil)
			}
			host, _ := GuessHost([]*iptables.Dump{d}, known, &p)
			if !p.Local && !given && len(known.Routes) == 0 && host.device(p.InInterface) == nil {
				t.Errorf("%s: %s comes in by %q, which the host does not have", name, &p, p.InInterface)
			}
			m, err := New([]*iptables.Dump{d}, nil, host, Options{Assume: Assumption(r.IntN(3))})
			if err != nil {
				t.Fatal(name, err)
			}
			ways, rest := m.Explore(p, nil, 50)
			sum := rest
			for _, w := range ways {
				sum += w.Probability
			}
			if sum < 0.999 || sum > 1.001 {
				t.Errorf("%s: %s: the ways have the probability %v", name, &p, sum)
			}
		}
	}
}

// TestGuessHostKnown: what is known is neither contradicted nor changed.
func TestGuessHostKnown(t *testing.T) {
	d, err := iptables.Parse(strings.NewReader("*nat\n-A POSTROUTING -s 10.9.0.0/24 -o eth0 -j MASQUERADE\nCOMMIT\n"), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	known := &Host{}
	known.AddAddress("eth9", netip.MustParsePrefix("10.9.0.1/24"))
	known.Routes = []Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "wlan0"}}
	p := packet(protoTCP, "10.9.0.7:1", "1.1.1.1:80", "")
	p.Local = false
	host, guesses := GuessHost([]*iptables.Dump{d}, known, &p)
	m, err := New([]*iptables.Dump{d}, nil, host, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r := m.Send(p, &State{}, nil); p.InInterface != "eth9" || r.Out != "wlan0" || len(guesses) != 1 {
		t.Errorf("in by %s, out by %s, guessed %v", p.InInterface, r.Out, guesses)
	}
	if len(known.Interfaces) != 1 || len(known.Routes) != 1 {
		t.Errorf("what was known is now %+v", known)
	}
}

// TestGuessHostPlacesAddresses: an address that is given without a device is on the one with its network, or else on the
// uplink; it changes nothing about devices.
func TestGuessHostPlacesAddresses(t *testing.T) {
	d, err := iptables.Parse(strings.NewReader("*nat\n-A POSTROUTING -s 10.9.0.0/24 ! -o br0 -j MASQUERADE\n-A POSTROUTING -o ens192 -j MASQUERADE\nCOMMIT\n"), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ address, device string }{
		{"10.9.0.7/32", "br0"}, {"10.9.0.7/24", "br0"}, {"172.20.0.2/32", "ens192"}, {"172.20.0.2/16", "ens192"},
	} {
		known := &Host{}
		known.AddAddress("", netip.MustParsePrefix(c.address))
		p := packet(protoTCP, "10.9.0.5:1", "1.1.1.1:80", "")
		p.Local = false
		host, _ := GuessHost([]*iptables.Dump{d}, known, &p)
		a := netip.MustParsePrefix(c.address).Addr()
		if got := newNetwork(host, iptables.IPv4).local[a]; got != c.device || p.InInterface != "br0" || host.device("eth0") != nil || host.device("") != nil {
			t.Errorf("%s is on %q, want %s; the packet arrives on %s; %+v", c.address, got, c.device, p.InInterface, host.Interfaces)
		}
	}
}

// TestGuessHostGivenAsGuessed: the default route, given as it was guessed, changes nothing else.
func TestGuessHostGivenAsGuessed(t *testing.T) {
	hosts, err := filepath.Glob("../iptables/testdata/hosts/*.rules")
	if err != nil || len(hosts) < 10 {
		t.Fatal("where are the dumps?", err)
	}
	more, err := filepath.Glob("../iptables/testdata/*.rules")
	if err != nil {
		t.Fatal(err)
	}
	addresses := []string{"10.244.1.2", "10.244.2.7", "10.42.0.9", "192.168.1.50", "192.168.122.7", "172.17.0.2", "10.0.1.9", "100.90.1.2", "203.0.113.5"}
	for _, name := range append(hosts, more...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d, err := iptables.Parse(bytes.NewReader(text), iptables.Options{})
		if err != nil {
			t.Fatal(name, err)
		}
		if d.Family == iptables.IPv6 {
			continue
		}
		end := func(known *Host, from, to string) (string, *Host) {
			p := packet(protoTCP, from+":40000", to+":30080", "")
			p.Local, p.Owner = false, nil
			host, _ := GuessHost([]*iptables.Dump{d}, known, &p)
			m, err := New([]*iptables.Dump{d}, nil, host, Options{})
			if err != nil {
				t.Fatal(name, err)
			}
			ways, _ := m.Explore(p, nil, 5)
			return fmt.Sprintf("in by %s, %s by %s, %s", p.InInterface, ways[0].Verdict, ways[0].Out, &ways[0].Packet), host
		}
		for _, from := range addresses {
			for _, to := range addresses {
				if from == to {
					continue
				}
				guessed, host := end(&Host{}, from, to)
				known := &Host{}
				for _, r := range host.Routes {
					if r.Destination.Bits() == 0 {
						known.Routes = []Route{r}
					}
				}
				if given, _ := end(known, from, to); given != guessed {
					t.Errorf("%s: %s to %s: with %v: %s; guessed: %s", name, from, to, known.Routes, given, guessed)
				}
			}
		}
	}
}

// TestRuleAt: a rule of text has a line, and one of JSON a handle, if that was not taken away.
func TestRuleAt(t *testing.T) {
	for want, h := range map[string]*hint{
		"line 7":                  {Rule: &iptables.Rule{Line: 7, Handle: 3}},
		"the rule with handle 3":  {Rule: &iptables.Rule{Handle: 3}},
		"a rule without a handle": {Rule: &iptables.Rule{}},
	} {
		if got := h.at().String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
