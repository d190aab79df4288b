package netfilter_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

func TestOnlyDefault(t *testing.T) {
	dump, err := iptables.Parse(strings.NewReader("*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	const (
		addresses = `[{"ifname":"eth0","flags":["UP"],"addr_info":[{"family":"inet","local":"172.20.0.2","prefixlen":16}]}]`
		base      = `{"dst":"default","gateway":"172.20.0.1","dev":"eth0"},{"dst":"172.20.0.0/16","dev":"eth0"},{"dst":"10.244.1.0/24","dev":"cni0"}`
		neighbour = `,{"dst":"10.244.0.0/24","gateway":"172.20.0.4","dev":"eth0"}`
	)
	for _, c := range []struct {
		name, routes string
		to           string
		addresses    string
		want         bool
	}{
		{"a neighbour has a route", base + neighbour, "10.244.2.2", addresses, true},
		{"no neighbour has one: the gateway knows all Pods", base, "10.244.2.2", addresses, false},
		{"it has a route itself", base + neighbour + `,{"dst":"10.244.2.0/24","gateway":"172.20.0.3","dev":"eth0"}`, "10.244.2.2", addresses, false},
		{"the neighbour's route is by the default gateway, too", base + `,{"dst":"10.244.0.0/24","gateway":"172.20.0.1","dev":"eth0"}`, "10.244.2.2", addresses, false},
		{"one address has a route", base + `,{"dst":"10.244.0.7","gateway":"172.20.0.4","dev":"eth0"}`, "10.244.2.2", addresses, false},
		{"networks of an office", strings.Replace(base, "cni0", "eth1", 1) + neighbour, "10.244.2.2", addresses, false},
		{"a tunnel leads to the neighbour", `{"dst":"default","gateway":"172.20.0.1","dev":"eth0"},{"dst":"10.244.0.0/24","gateway":"10.244.0.0","dev":"flannel.1"}`, "10.244.2.2", addresses, true},
		{"a block of Calico", `{"dst":"default","gateway":"172.20.0.1","dev":"eth0"},{"type":"blackhole","dst":"10.244.1.64/26"},{"dst":"10.244.0.0/26","gateway":"172.20.0.4","dev":"eth0"}`, "10.244.2.2", addresses, true},
		{"another network", base + neighbour, "192.0.2.7", addresses, false},
		{"on the link", base + neighbour, "172.20.0.9", addresses, false},
		{"the addresses are not known", base + neighbour, "10.244.2.2", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := new(netfilter.Host)
			for _, text := range []string{c.addresses, "[" + c.routes + "]"} {
				if text == "" {
					continue
				}
				if err := h.Read(strings.NewReader(text)); err != nil {
					t.Fatal(err)
				}
			}
			m, err := netfilter.New([]*iptables.Dump{dump}, nil, h, netfilter.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, is := m.OnlyDefault(netip.MustParseAddr(c.to)); is != c.want {
				t.Errorf("%v, want %v", is, c.want)
			}
		})
	}
}

func TestUnanswered(t *testing.T) {
	dump, err := iptables.Parse(strings.NewReader("*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"), iptables.Options{Family: iptables.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	h := new(netfilter.Host)
	if err := h.Read(strings.NewReader(`[{"ifname":"eth0","addr_info":[{"local":"172.20.0.2","prefixlen":16}]}]
[{"dst":"default","gateway":"172.20.0.1","dev":"eth0"},{"dst":"10.244.2.0/24","gateway":"172.20.0.3","dev":"eth0"},{"type":"blackhole","dst":"10.245.0.0/16"}]
[{"dst":"172.20.0.1","dev":"eth0","lladdr":"02:42:ac:14:00:01","state":["REACHABLE"]},{"dst":"172.20.0.3","dev":"eth0","state":["FAILED"]},
{"dst":"172.20.0.4","dev":"eth1","state":["FAILED"]},{"dst":"172.20.0.5","dev":"eth0","state":["INCOMPLETE"]},{"dst":"10.245.0.1","dev":"","state":["FAILED"]}]`)); err != nil {
		t.Fatal(err)
	}
	m, err := netfilter.New([]*iptables.Dump{dump}, nil, h, netfilter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{
		"10.244.2.7": "172.20.0.3 FAILED",
		"192.0.2.7":  "", // by the gateway, which answered
		"172.20.0.3": "172.20.0.3 FAILED",
		"172.20.0.4": "", // another device's
		"172.20.0.5": "172.20.0.5 INCOMPLETE",
		"10.245.0.1": "", // a black hole asks nobody
		"172.20.0.2": "", // the host itself
	} {
		got := ""
		if n, is := m.Unanswered(netip.MustParseAddr(to)); is {
			got = n.Addr.String() + " " + n.Unanswered
		}
		if got != want {
			t.Errorf("to %s: %q, want %q", to, got, want)
		}
	}
	if err := h.Read(strings.NewReader(`[{"dst":"gateway","dev":"eth0","state":["FAILED"]}]`)); err == nil || !strings.Contains(err.Error(), `neighbour "gateway"`) {
		t.Errorf("a name instead of an address: %v", err)
	}
}
