package resolve

import (
	"math/rand/v2"

	"github.com/nfqproxy/nfqproxy/control/explain"

	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// cluster is that of package flow's stories.
func cluster(t testing.TB) *manifest.Objects {
	t.Helper()
	objects, err := manifest.Load([]string{"../../datapath/flow/testdata/cluster.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func names(t testing.TB) *Names {
	t.Helper()
	objects := cluster(t)
	table, _ := servicetable.Table(&objects.Objects, servicetable.NodeConfig{})
	n := NamesOf(table, objects.Pods)
	for _, node := range objects.Nodes {
		n.AddNode(node.Name, servicetable.NodeAddresses(node))
	}
	return n
}

func TestPacket(t *testing.T) {
	a := names(t)
	tests := []struct {
		name     string
		question flow.Question
		source   string // want
		to       string // want
		err      string // want, if not empty
	}{
		{"addresses", flow.Question{Protocol: "tcp", Source: "10.244.1.9:77", Destination: "10.96.0.20:80"}, "10.244.1.9:77", "10.96.0.20:80", ""},
		{"no source port", flow.Question{Protocol: "UDP", Source: "10.244.1.9", Destination: "10.96.0.20:53"}, "10.244.1.9:40000", "10.96.0.20:53", ""},
		{"IPv6", flow.Question{Protocol: "sctp", Source: "fd00::1", Destination: "[fd00::2]:80"}, "[fd00::1]:40000", "[fd00::2]:80", ""},
		{"IPv6 in brackets", flow.Question{Protocol: "tcp", Source: "[fd00::1]", Destination: "[fd00::2]:80"}, "[fd00::1]:40000", "[fd00::2]:80", ""},
		{"mapped IPv4", flow.Question{Protocol: "tcp", Source: "::ffff:10.0.0.1", Destination: "[::ffff:10.0.0.2]:80"}, "10.0.0.1:40000", "10.0.0.2:80", ""},
		{"pods", flow.Question{Protocol: "tcp", Source: "pod/default/shell", Destination: "pod/default/web-1:8080"}, "10.244.1.9:40000", "10.244.1.2:8080", ""},
		{"pod with port", flow.Question{Protocol: "tcp", Source: "pod/default/shell:5", Destination: "10.96.0.20:80"}, "10.244.1.9:5", "10.96.0.20:80", ""},
		{"the pod's other family", flow.Question{Protocol: "tcp", Source: "pod/default/shell", Destination: "[fd00:10:96::20]:80"}, "[fd00:10:244:1::9]:40000", "[fd00:10:96::20]:80", ""},
		{"the service's other family", flow.Question{Protocol: "tcp", Source: "fd00::1", Destination: "service/default/web:http"}, "[fd00::1]:40000", "[fd00:10:96::20]:80", ""},
		{"service by number", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/web:80"}, "10.0.0.1:40000", "10.96.0.20:80", ""},
		{"service by its only port", flow.Question{Protocol: "udp", Source: "10.0.0.1", Destination: "svc/default/web"}, "10.0.0.1:40000", "10.96.0.20:53", ""},
		{"service without port name", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/shop"}, "10.0.0.1:40000", "10.96.0.30:80", ""},

		{"no protocol", flow.Question{Source: "10.0.0.1", Destination: "10.0.0.2:80"}, "", "", "protocol is missing: tcp, udp or sctp"},
		{"icmp", flow.Question{Protocol: "icmp", Source: "10.0.0.1", Destination: "10.0.0.2:80"}, "", "", `protocol "icmp": want TCP, UDP or SCTP`},
		{"no source", flow.Question{Protocol: "tcp", Destination: "10.0.0.2:80"}, "", "", "source is missing"},
		{"no destination", flow.Question{Protocol: "tcp", Source: "10.0.0.2:80"}, "", "", "destination is missing"},
		{"no port", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "fd00::2"}, "", "", `destination "fd00::2": a port is missing`},
		{"port 0", flow.Question{Protocol: "tcp", Source: "10.0.0.1:0", Destination: "10.0.0.2:80"}, "", "", `source "10.0.0.1:0": port "0": want a number from 1 to 65535`},
		{"port too large", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.0.0.2:65536"}, "", "", `port "65536"`},
		{"port with a sign", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.0.0.2:+80"}, "", "", `port "+80"`},
		{"IPv6 and port without brackets", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "1:2:3:4:5:6:7:8:80"}, "", "", `"1:2:3:4:5:6:7:8:80"`},
		{"a host name", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "example.org:80"}, "", "", `"example.org" is not an address`},
		{"an unclosed bracket", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "[fd00::1:80"}, "", "", "address"},
		{"a zone", flow.Question{Protocol: "tcp", Source: "fe80::1%eth0", Destination: "[fd00::2]:80"}, "", "", "zone"},
		{"pod without its kind", flow.Question{Protocol: "tcp", Source: "default/shell", Destination: "default/web-1:80"}, "10.244.1.9:40000", "10.244.1.2:80", ""},
		{"service without its kind", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "default/web:http"}, "", "", "there is no Pod of this name, but a Service: write service/default/web:http"},
		{"another kind", flow.Question{Protocol: "tcp", Source: "host/a/b", Destination: "10.0.0.2:80"}, "", "", "want an address, pod/NAMESPACE/NAME, service/NAMESPACE/NAME or node/NAME"},
		{"node", flow.Question{Protocol: "tcp", Source: "node/node-a", Destination: "node/node-b:80"}, "172.20.0.2:40000", "172.20.0.3:80", ""},
		{"no such node", flow.Question{Protocol: "tcp", Source: "node/node-c", Destination: "10.0.0.2:80"}, "", "", "there is no such Node among the objects"},
		{"node with a bad port", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "node/node-a:x"}, "", "", `port "x"`},
		{"pod without namespace", flow.Question{Protocol: "tcp", Source: "pod/shell", Destination: "10.0.0.2:80"}, "", "", "there are default/shell, default/web-1, default/web-2, default/web-3"},
		{"pod with a bad port", flow.Question{Protocol: "tcp", Source: "pod/default/shell:x", Destination: "10.0.0.2:80"}, "", "", `port "x"`},
		{"no such service", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/none:80"}, "", "", "there is no such Service"},
		{"no such port", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/web:dns"}, "", "", "it has no TCP port dns; there are http/80/TCP, dns/53/UDP"},
		{"no port of the protocol", flow.Question{Protocol: "sctp", Source: "10.0.0.1", Destination: "service/default/web"}, "", "", "it has no SCTP port; there are"},
		{"two families", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "[fd00::2]:80"}, "", "", `source "10.0.0.1" is IPv4 and destination "[fd00::2]:80" is IPv6`},
		{"service without the pod's family", flow.Question{Protocol: "tcp", Source: "fd00::1", Destination: "service/default/shop"}, "", "", "a packet has one address family"},
		{"local by an interface", flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.0.0.2:80", Local: true, InInterface: "eth0"}, "", "", "no input interface, but eth0 is given"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := a.Packet(tt.question)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || p.Source.String() != tt.source || p.Destination.String() != tt.to {
				t.Errorf("%+v, %v, want %s -> %s", p, err, tt.source, tt.to)
			}
		})
	}
}

func TestWhichPort(t *testing.T) {
	objects := cluster(t)
	for _, s := range objects.Services {
		if s.Name == "web" {
			s.Spec.Ports[1].Protocol = s.Spec.Ports[0].Protocol
		}
	}
	table, _ := servicetable.Table(&objects.Objects, servicetable.NodeConfig{})
	_, err := NamesOf(table, nil).Packet(flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/web"})
	if want := "it has several ports: write service/default/web:PORT; there are http/80/TCP, dns/53/TCP"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	_, err = NamesOf(decision.NewTable(1, time.Time{}, decision.Node{}, nil), nil).Packet(flow.Question{Protocol: "tcp", Source: "pod/a/b", Destination: "10.0.0.1:80"})
	if err == nil || !strings.HasSuffix(err.Error(), "; there are no pods") {
		t.Errorf("error %v", err)
	}
	for _, p := range objects.Pods {
		p.Status.PodIP, p.Status.PodIPs = "", nil
	}
	_, err = NamesOf(table, objects.Pods).Packet(flow.Question{Protocol: "tcp", Source: "pod/default/shell", Destination: "10.0.0.1:80"})
	if err == nil || !strings.Contains(err.Error(), "no address yet") {
		t.Errorf("error %v", err)
	}
}

// TestPodsBehindServices: endpoints name pods, too.
func TestPodsBehindServices(t *testing.T) {
	objects := cluster(t)
	table, _ := servicetable.Table(&objects.Objects, servicetable.NodeConfig{})
	n := NamesOf(table, nil)
	p, err := n.Packet(flow.Question{Protocol: "tcp", Source: "pod/default/web-1", Destination: "10.0.0.1:80"})
	if err != nil || p.Source.String() != "10.244.1.2:40000" {
		t.Errorf("%+v, %v", p, err)
	}
	p, err = n.Packet(flow.Question{Protocol: "tcp", Source: "default/web-1:7", Destination: "[fd00::1]:80"})
	if err != nil || p.Source.String() != "[fd00:10:244:1::2]:7" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestUnservedServices(t *testing.T) {
	n := NamesOf(decision.NewTable(1, time.Time{}, decision.Node{}, nil), nil)
	n.AddUnserved("default/db", "it is headless")
	_, err := n.Packet(flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/db:80"})
	if err == nil || err.Error() != `destination "service/default/db:80": it is headless` {
		t.Errorf("error %v", err)
	}
}

// FuzzPacket: every question gives a packet that can be decided, or an error.
func FuzzPacket(f *testing.F) {
	a := names(f)
	table, _ := servicetable.Table(&cluster(f).Objects, servicetable.NodeConfig{Name: "node-a"})
	simulator := explain.New(table, rand.New(rand.NewPCG(0, 0)), nil)
	for _, s := range []string{"10.244.1.9", "[fd00::1]:80", "pod/default/shell:1", "service/default/web:http", "%", "[:", "pod/", "10.0.0.1:"} {
		f.Add("tcp", s, "10.96.0.20:80")
		f.Add("udp", "10.244.1.9:1", s)
	}
	f.Fuzz(func(t *testing.T, protocol, source, destination string) {
		p, err := a.Packet(flow.Question{Protocol: protocol, Source: source, Destination: destination})
		if err != nil {
			return
		}
		if decision.FamilyOf(p.Source.Addr()) != decision.FamilyOf(p.Destination.Addr()) || p.Source.Port() == 0 || p.Destination.Port() == 0 {
			t.Fatalf("packet %+v", p)
		}
		simulator.Decide(&p)
	})
}
