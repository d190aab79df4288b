package lab

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/derivation"
	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// roundTrip sends a line or a DNS query from a host and returns who answers.
func roundTrip(ctx context.Context, l *Lab, from, network string, to netip.AddrPort) (Answer, error) {
	ns, err := l.Namespace(from)
	if err != nil {
		return Answer{}, err
	}
	c, err := ns.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	protocol, err := decision.ParseProtocol(network)
	if err != nil {
		return Answer{}, err
	}
	if l.serverAt(to, protocol) == labapi.DNSServer {
		var a Answer
		line, err := dns.Identify(ctx, c, demoQuery)
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		return a, err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return Answer{}, err
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	if err != nil {
		return Answer{}, err
	}
	a, _, err := ParseAnswer(b[:n])
	return a, err
}

// place is a server of a lab.
type place struct {
	who      string
	pod      bool
	at       netip.AddrPort
	protocol decision.Protocol
}

func places(s *Spec) (all []place) {
	for _, m := range machinesOf(s) {
		for _, a := range m.addresses {
			for _, p := range m.ports {
				all = append(all, place{m.Who(), m.Pod != "", netip.AddrPortFrom(a, p.Port), p.Protocol})
			}
		}
	}
	return all
}

// Every pod and node reaches every server as itself, without any proxy; clients
// reach nodes and other clients, and pods only with routes.
func TestTopology(t *testing.T) {
	specs := make(map[string]*Spec)
	for _, name := range []string{"pods-in-the-nodes-network", "single-addresses-ipv6", "rules"} {
		f, err := FromObjects([]string{"testdata/" + name + ".yaml"}, "", derivation.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.Spec.Objects = nil // only the hosts matter
		specs[name] = f.Spec
	}
	for _, name := range labs.Names() {
		f, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.Spec.Nodes {
			f.Spec.Nodes[i].Firewall, f.Spec.Nodes[i].Proxy = "", "" // rules drop and reject packets by intent
		}
		specs[name] = f.Spec
	}
	for name, s := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // an ICMP error that finds the socket busy costs a second
			l, err := upWith(t, "kind", "", func(into *Spec, _ *Options) { *into = *s })
			if err != nil {
				t.Fatal(err)
			}
			check := func(from string, addresses []netip.Addr, node *Node) {
				for _, p := range places(s) {
					source, ok := decision.AddressOf(addresses, decision.FamilyOf(p.at.Addr()))
					if !ok || from == p.who {
						continue
					}
					// A node's source to its own pods is their gateway.
					if node != nil {
						if g, err := gatewayOf(node, p.at.Addr()); err == nil {
							source = g
						}
					}
					a, err := roundTrip(t.Context(), l, from, p.protocol.Lower(), p.at)
					if err != nil {
						t.Errorf("%s to %s %s/%s: %v", from, p.who, p.at, p.protocol, err)
						continue
					}
					client := netip.MustParseAddrPort(a.Client)
					if a.Who() != p.who || a.Local != p.at.String() || (client.Addr() != source && decision.FamilyOf(source) == decision.IPv4) {
						t.Errorf("%s to %s %s/%s: %+v, want the client %s", from, p.who, p.at, p.protocol, a, source)
					}
				}
			}
			for i := range s.Pods {
				check(s.Pods[i].FullName(), s.Pods[i].Addresses, nil)
			}
			for i := range s.Nodes {
				check(s.Nodes[i].Name, s.Nodes[i].Addresses, &s.Nodes[i])
			}
			for i := range s.Clients {
				c := &s.Clients[i]
				if c.RoutesToPods {
					check(c.Name, c.Addresses, nil)
					continue
				}
				for _, p := range places(s) {
					if _, ok := decision.AddressOf(c.Addresses, decision.FamilyOf(p.at.Addr())); !ok || p.who == c.Name || p.protocol != decision.TCP {
						continue
					}
					_, err := roundTrip(t.Context(), l, c.Name, "tcp", p.at)
					if p.pod && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
						t.Errorf("%s to pod %s: %v, want unreachable", c.Name, p.at, err)
					}
					if !p.pod && err != nil {
						t.Errorf("%s to %s: %v", c.Name, p.at, err)
					}
				}
			}
			// There is no route to service addresses, and the error comes at once.
			service := netip.MustParseAddrPort("10.96.0.1:443")
			for _, from := range s.Hosts() {
				if _, err := roundTrip(t.Context(), l, from, "tcp", service); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
					t.Errorf("%s to %s: %v, want unreachable", from, service, err)
				}
			}
		})
	}
}

// What is refused is refused every time, and at once.
func TestRefusal(t *testing.T) {
	l := mustUp(t, "kind", "")
	for range 50 {
		if _, err := roundTrip(t.Context(), l, "shell", "tcp", netip.MustParseAddrPort("10.244.2.2:81")); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("%v, want connection refused", err)
		}
		if _, err := roundTrip(t.Context(), l, "shell", "udp", netip.MustParseAddrPort("10.244.0.2:54")); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("%v, want connection refused", err)
		}
	}
}

func TestResolve(t *testing.T) {
	f, err := Load("kind")
	if err != nil {
		t.Fatal(err)
	}
	s := f.Spec
	for name, want := range map[string]string{
		"kind-worker": "kind-worker", "shell": "default/shell", "default/shell": "default/shell", "coredns-1": "kube-system/coredns-1",
		"outside": "outside", "router": "router", "nobody": "", "kube-system/shell": "", "": "",
	} {
		got, err := s.Resolve(name)
		var unknown *labfile.UnknownHostError
		if got != want || (want == "") != errors.As(err, &unknown) {
			t.Errorf("Resolve(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	s.Pods = append(s.Pods, Pod{Name: "shell", Namespace: "other"})
	if got, err := s.Resolve("shell"); err == nil {
		t.Errorf("an ambiguous name is %q", got)
	}
}

func TestDeviceNames(t *testing.T) {
	d := devices{"eth0": true}
	for _, tc := range []struct{ host, want string }{
		{"web", "web"}, {"web", "web-1"}, {"web", "web-2"}, {"eth0", "eth0-1"}, {"eth1", "eth1-1"}, {"lo", "lo-1"},
		{"a-very-long-pod-name", "a-very-long-p-1"}, {"a-very-long-pod-other", "a-very-long-p-2"}, {"exactly-fifteen", "exactly-fifteen"},
	} {
		if got := d.name(tc.host); got != tc.want || len(got) > maxDevice {
			t.Errorf("device of %s: %s, want %s", tc.host, got, tc.want)
		}
	}
}
