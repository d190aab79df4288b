package netfilter

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// ipvsNode is a node of kube-proxy in IPVS mode: testdata/ipvs of package iptables. more are further lines of ipvsadm -Sn.
func ipvsNode(t testing.TB, more ...string) *Machine {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join("../iptables/testdata/ipvs", name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	d, err := iptables.Parse(open("node.rules"), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sets, err := iptables.ParseSets(open("node.sets"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../iptables/testdata/ipvs/node.ipvs")
	if err != nil {
		t.Fatal(err)
	}
	servers, err := ipvs.Read(strings.NewReader(string(text) + strings.Join(more, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{RouteLocalnet: true}
	for _, name := range []string{"addr.json", "route.json"} {
		if err := h.Read(open(name)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := New([]*iptables.Dump{d}, sets, h, Options{IPVS: servers})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// waysOf are the ways of a packet and of its reply: "0.5 sent cni0 A -> B; reply sent eth0 B -> A".
func waysOf(m *Machine, p iptables.Packet) []string {
	var all []string
	ways, _ := m.Explore(p, nil, 100)
	sum := 0.0
	for _, w := range ways {
		sum += w.Probability
		text := fmt.Sprintf("%.2g %s", w.Probability, endOf(w.Result))
		if answer, ok := w.Answer(); ok {
			text += "; reply " + endOf(m.Send(answer, w.State, nil))
		}
		all = append(all, text)
	}
	if math.Abs(sum-1) > 1e-9 {
		all = append(all, fmt.Sprintf("the sum is %v", sum))
	}
	return all
}

func endOf(r *Result) string {
	text := fmt.Sprintf("%s %s %s -> %s", r.Verdict, r.Out, r.Packet.SourceText(), r.Packet.DestinationText())
	if r.With != "" {
		text += " " + string(r.With)
	}
	return strings.ReplaceAll(text, "  ", " ")
}

func TestIPVS(t *testing.T) {
	m := ipvsNode(t,
		"-A -t 172.20.0.2:9001 -s wrr", "-a -t 172.20.0.2:9001 -r 10.244.1.2:80 -m -w 3", "-a -t 172.20.0.2:9001 -r 10.244.2.2:80 -m -w 1",
		"-A -t 172.20.0.2:9002 -s dh", "-a -t 172.20.0.2:9002 -r 10.244.1.2:80 -m -w 0", "-a -t 172.20.0.2:9002 -r 10.244.2.2:80 -m -w 1",
		"-A -t 172.20.0.2:9003 -s rr", "-a -t 172.20.0.2:9003 -r 10.244.2.2:80 -i -w 1",
		"-A -f 7 -s rr", "-a -f 7 -r 10.244.2.7:0 -m -w 1",
		"-A -t 127.0.0.1:30080 -s rr", "-a -t 127.0.0.1:30080 -r 10.244.2.2:8080 -m -w 1",
		"-A -t 10.96.0.40:80 -s rr", "-a -t 10.96.0.40:80 -r 10.244.1.2:80 -m -w 3")
	for _, c := range []struct {
		name, from, to, in string // without in, the host sends it
		protocol           uint8
		mark               uint32
		want               []string
	}{
		{"a pod to a cluster IP", "10.244.1.9:40000", "10.96.0.20:80", "cni0", protoTCP, 0, []string{
			"0.5 sent cni0 10.244.1.9:40000 -> 10.244.1.2:8080; reply sent cni0 10.96.0.20:80 -> 10.244.1.9:40000",
			"0.5 sent eth0 10.244.1.9:40000 -> 10.244.2.2:8080; reply sent cni0 10.96.0.20:80 -> 10.244.1.9:40000",
		}},
		{"a pod to itself, by KUBE-LOOP-BACK", "10.244.1.2:40000", "10.96.0.20:80", "cni0", protoTCP, 0, []string{
			"0.5 sent cni0 10.244.1.1:40000 -> 10.244.1.2:8080; reply sent cni0 10.96.0.20:80 -> 10.244.1.2:40000",
			"0.5 sent eth0 10.244.1.2:40000 -> 10.244.2.2:8080; reply sent cni0 10.96.0.20:80 -> 10.244.1.2:40000",
		}},
		{"from outside to a node port", "192.0.2.10:40000", "172.20.0.2:30080", "eth0", protoTCP, 0, []string{
			"0.5 sent cni0 10.244.1.1:40000 -> 10.244.1.2:8080; reply sent eth0 172.20.0.2:30080 -> 192.0.2.10:40000",
			"0.5 sent eth0 172.20.0.2:40000 -> 10.244.2.2:8080; reply sent eth0 172.20.0.2:30080 -> 192.0.2.10:40000",
		}},
		{"the host to a cluster IP", "0.0.0.0:40000", "10.96.0.20:80", "", protoTCP, 0, []string{
			"0.5 sent cni0 10.244.1.1:40000 -> 10.244.1.2:8080; reply delivered 10.96.0.20:80 -> 10.96.0.20:40000",
			"0.5 sent eth0 172.20.0.2:40000 -> 10.244.2.2:8080; reply delivered 10.96.0.20:80 -> 10.96.0.20:40000",
		}},
		{"to a real server on this host", "10.244.1.9:40000", "10.96.0.1:443", "cni0", protoTCP, 0, []string{
			"1 delivered 10.244.1.9:40000 -> 172.20.0.2:6443; reply sent cni0 10.96.0.1:443 -> 10.244.1.9:40000",
		}},
		{"the host to itself", "0.0.0.0:40000", "10.96.0.1:443", "", protoTCP, 0, []string{
			"1 delivered 172.20.0.2:40000 -> 172.20.0.2:6443; reply delivered 10.96.0.1:443 -> 10.96.0.1:40000",
		}},
		{"no real server", "10.244.1.9:40000", "10.96.0.30:443", "cni0", protoTCP, 0, []string{"1 rejected 10.244.1.9:40000 -> 10.96.0.30:443 icmp-port-unreachable"}},
		{"weights", "10.244.1.9:40000", "172.20.0.2:9001", "cni0", protoTCP, 0, []string{
			"0.75 sent cni0 10.244.1.9:40000 -> 10.244.1.2:80; reply sent cni0 172.20.0.2:9001 -> 10.244.1.9:40000",
			"0.25 sent eth0 10.244.1.9:40000 -> 10.244.2.2:80; reply sent cni0 172.20.0.2:9001 -> 10.244.1.9:40000",
		}},
		{"a share that is refused", "10.244.1.9:40000", "172.20.0.2:9002", "cni0", protoTCP, 0, []string{
			"0.5 sent eth0 10.244.1.9:40000 -> 10.244.2.2:80; reply sent cni0 172.20.0.2:9002 -> 10.244.1.9:40000",
			"0.5 rejected 10.244.1.9:40000 -> 172.20.0.2:9002 icmp-port-unreachable",
		}},
		{"a tunnel", "10.244.1.9:40000", "172.20.0.2:9003", "cni0", protoTCP, 0, []string{"1 unknown 10.244.1.9:40000 -> 172.20.0.2:9003"}},
		{"no address of the host's", "10.244.1.9:40000", "10.96.0.40:80", "cni0", protoTCP, 0, []string{
			"1 sent eth0 10.244.1.9:40000 -> 10.96.0.40:80; reply sent cni0 10.96.0.40:80 -> 10.244.1.9:40000",
		}},
		{"UDP, and weight 0", "10.244.1.9:40000", "10.96.0.10:53", "cni0", protoUDP, 0, []string{
			"1 sent eth0 10.244.1.9:40000 -> 10.244.0.3:53; reply sent cni0 10.96.0.10:53 -> 10.244.1.9:40000",
		}},
		{"a port without a virtual server", "10.244.1.9:40000", "10.96.0.20:81", "cni0", protoTCP, 0, []string{"1 rejected 10.244.1.9:40000 -> 10.96.0.20:81 icmp-port-unreachable"}},
		{"by mark, the port stays", "10.244.1.9:40000", "172.20.0.2:7000", "cni0", protoTCP, 7, []string{
			"1 sent eth0 10.244.1.9:40000 -> 10.244.2.7:7000; reply sent cni0 172.20.0.2:7000 -> 10.244.1.9:40000",
		}},
		{"from 127.0.0.1 to another host", "127.0.0.1:40000", "127.0.0.1:30080", "", protoTCP, 0, []string{"1 dropped 127.0.0.1:40000 -> 127.0.0.1:30080"}},
	} {
		p := packet(c.protocol, c.from, c.to, c.in)
		p.Mark = c.mark
		if c.in != "" {
			p.Local, p.Owner = false, nil
		}
		got := waysOf(m, p)
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestIPVSLaterPackets: a connection stays with its real server, and packets that begin none are the host's own.
func TestIPVSLaterPackets(t *testing.T) {
	m := ipvsNode(t)
	s := &State{}
	p := packet(protoTCP, "192.0.2.10:40000", "172.20.0.2:30080", "eth0")
	p.Local, p.Owner = false, nil
	first := m.Send(p, s, fixed(0.9))
	if got := endOf(first); got != "sent eth0 172.20.0.2:40000 -> 10.244.2.2:8080" {
		t.Fatal(got)
	}
	answer, _ := first.Answer()
	if got := endOf(m.Send(answer, s, nil)); got != "sent eth0 172.20.0.2:30080 -> 192.0.2.10:40000" {
		t.Error(got)
	}
	p.Flags = iptables.ACK
	if got := endOf(m.Send(p, s, fixed(0.1))); got != "sent eth0 172.20.0.2:40000 -> 10.244.2.2:8080" {
		t.Error(got)
	}
	if got := endOf(m.Send(p, &State{}, fixed(0.1))); got != "delivered 192.0.2.10:40000 -> 172.20.0.2:30080" {
		t.Error(got)
	}
}

type fixed float64

func (f fixed) Float64() float64 { return float64(f) }

// TestIPVSWithoutAddresses: kube-ipvs0's addresses are assumed, unless the host's are known.
func TestIPVSWithoutAddresses(t *testing.T) {
	s, err := ipvs.Read(strings.NewReader("-A -t 10.96.0.1:443 -s rr\n-A -t [fd00::1]:443 -s rr\n-A -t 172.20.0.2:30080 -s rr\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{}
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	if g := h.AddVirtualServers(s, iptables.IPv4); len(g) != 1 {
		t.Errorf("%v", g)
	}
	d := h.device(IPVSDevice)
	if d == nil || len(d.Addresses) != 1 || d.Addresses[0].Prefix.String() != "10.96.0.1/32" {
		t.Errorf("%+v", d)
	}
	known := &Host{allAddresses: true}
	if g := known.AddVirtualServers(s, iptables.IPv4); g != nil || len(known.Interfaces) > 0 {
		t.Errorf("%v, %v", g, known.Interfaces)
	}
}
