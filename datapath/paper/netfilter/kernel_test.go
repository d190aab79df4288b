//go:build linux

package netfilter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func addrs(texts ...string) (a []netip.Addr) {
	for _, s := range texts {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

// site is a node that a dump is of, with what is sent there.
type site struct {
	file string
	host *Host
	traffic
}

var loopback = Interface{Name: loopbackName, Addresses: []Address{
	{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Narrow: true}, {Prefix: netip.MustParsePrefix("::1/128"), Narrow: true},
}}

func networkDevice(name string, addresses ...string) Interface {
	i := Interface{Name: name, MAC: iptables.MACAddress(nodeMAC)}
	for _, a := range addresses {
		i.Addresses = append(i.Addresses, Address{Prefix: netip.MustParsePrefix(a)})
	}
	return i
}

func via(destination, device, gateway string) Route {
	r := Route{Destination: netip.MustParsePrefix(destination), Interface: device}
	if gateway != "" {
		r.Via = netip.MustParseAddr(gateway)
	}
	return r
}

// sites are the five published nodes.
func sites() []site {
	kind := func(file, own, other string) site {
		return site{file, &Host{
			Interfaces: []Interface{loopback, networkDevice("eth0", "172.20.0."+own+"/16"), networkDevice("veth1", "10.244."+other+".1/32")},
			Routes: []Route{
				via("10.244."+other+".2/32", "veth1", ""), via("10.244.0.0/24", "eth0", "172.20.0.4"),
				via("10.244."+map[string]string{"1": "2", "2": "1"}[other]+".0/24", "eth0", "172.20.0.9"), via("0.0.0.0/0", "eth0", "172.20.0.1"),
			},
			RouteLocalnet: true, NoQueueListeners: true,
		}, traffic{
			sources:      map[string][]netip.Addr{"eth0": addrs("192.0.2.10", "10.244.0.7", "172.20.0.4"), "veth1": addrs("10.244." + other + ".2")},
			own:          addrs("172.20.0."+own, "10.244."+other+".1", "127.0.0.1"),
			destinations: addrs("10.96.0.1", "10.96.0.10", "10.96.118.136", "172.20.0."+own, "172.20.0.1", "127.0.0.1", "10.244."+other+".2", "10.244.0.7", "192.0.2.20"),
			ports:        []uint16{53, 80, 443, 9153, 30080},
			services: []service{
				{protoTCP, "10.96.0.1:443"}, {protoUDP, "10.96.0.10:53"}, {protoTCP, "10.96.0.10:53"}, {protoTCP, "10.96.0.10:9153"},
				{protoTCP, "10.96.118.136:80"}, {protoTCP, "172.20.0." + own + ":30080"}, {protoUDP, "172.20.0.1:53"}, {protoTCP, "172.20.0.1:53"},
			},
		}}
	}
	return []site{
		kind("kind-1.29-worker1-before", "2", "1"), kind("kind-1.29-worker1-after", "2", "1"),
		kind("kind-1.29-worker2-before", "3", "2"), kind("kind-1.29-worker2-after", "3", "2"),
		{"kubeadm-1.22-flannel-node1", &Host{
			Interfaces: []Interface{
				loopback, networkDevice("eth0", "10.210.40.172/24", "10.210.52.212/24"), networkDevice("eth1", "172.25.11.254/24"),
				networkDevice("docker0", "172.17.0.1/16"), networkDevice("virbr0", "192.168.122.1/24"), networkDevice("cni0", "10.244.0.1/24"),
				networkDevice("flannel.1", "10.244.0.0/32"),
			},
			Routes: []Route{
				via("10.244.2.0/24", "flannel.1", "10.244.2.0"), via("10.244.3.0/24", "flannel.1", "10.244.3.0"),
				via("192.168.100.0/24", "eth1", ""), via("0.0.0.0/0", "eth0", "10.210.40.1"),
			},
			RouteLocalnet: true, NoQueueListeners: true,
		}, traffic{
			sources: map[string][]netip.Addr{
				"eth0": addrs("192.0.2.10", "10.210.40.9"), "eth1": addrs("172.25.11.3"), "docker0": addrs("172.17.0.2"), "virbr0": addrs("192.168.122.5"),
				"cni0": addrs("10.244.0.5", "10.244.0.6"), "flannel.1": addrs("10.244.3.38", "10.244.2.21"),
			},
			own: addrs("10.210.40.172", "127.0.0.1", "10.244.0.1"),
			destinations: addrs("10.96.0.1", "10.96.0.10", "10.98.69.149", "10.210.40.172", "10.210.52.212", "127.0.0.1", "127.0.0.5", "172.17.0.2",
				"192.168.122.5", "192.168.122.1", "10.244.0.5", "192.0.2.20", "172.25.11.3"),
			ports: []uint16{53, 80, 443, 9153, 3000, 2201, 2205, 22, 67},
			services: []service{
				{protoTCP, "10.96.0.1:443"}, {protoUDP, "10.96.0.10:53"}, {protoTCP, "10.96.0.10:53"}, {protoTCP, "10.96.0.10:9153"},
				{protoTCP, "10.98.69.149:3000"}, {protoTCP, "10.210.52.212:2203"},
			},
		}},
	}
}

// TestKernelAgreesAboutDumps has the kernel send real packets through the rules of real
// nodes, and compares the results with the simulator.
func TestKernelAgreesAboutDumps(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for _, b := range backends {
		netnstest.RequireTool(t, program(b, true))
	}
	seen := make(tally)
	for _, s := range sites() {
		for _, b := range backends {
			t.Run(s.file+" "+b, func(t *testing.T) {
				f, err := os.Open("../iptables/testdata/" + s.file + ".rules")
				check(t, err)
				defer f.Close()
				d, err := iptables.Parse(f, iptables.Options{})
				check(t, err)
				n := newKernelNode(t, s.host)
				s.is4 = true
				s.traffic.host = s.host
				n.experiment(t, b, d, *firstSeed+1, 300, &s.traffic, seen)
			})
		}
	}
	seen.log(t)
}

var (
	firstSeed = flag.Uint64("kernel.seed", 0, "the first set of rules of TestKernelAgreesAboutGeneratedRules, and the packets of TestKernelAgreesAboutDumps")
	keepGoing = flag.Int("kernel.keep-going", 0, "after how many disagreements more TestKernelAgreesAboutGeneratedRules ends")
	sets      = flag.Uint64("kernel.sets", uint64(netnstest.Cases(enoughSets, enoughSets/2)), "how many sets of rules TestKernelAgreesAboutGeneratedRules makes")
)

// enoughSets is how many sets of rules bring everything up.
const enoughSets = 320

// packetsPerSet is how many packets go through a set of rules.
const packetsPerSet = 40

var variants = []variant{{}, {routeLocalnet: true}, {noDefault: true, filters: true}, {noForwarding: true, differs: "veth1"}, {differs: "eth0", filters: true}, {queue: true}}

// TestKernelAgreesAboutGeneratedRules does the same with rules that are made up. A
// disagreement is found again by -kernel.seed with its number and -kernel.sets 1.
func TestKernelAgreesAboutGeneratedRules(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for _, b := range backends {
		netnstest.RequireTool(t, program(b, true))
	}
	seen := make(tally)
	nodes := make(map[uint64]*kernelNode)
	for seed := *firstSeed; seed < *firstSeed+*sets; seed++ {
		// The seed determines everything: variant, back end, family.
		v := variants[[]int{0, 5, 1, 2, 1, 0, 4, 3}[seed/4%8]]
		b, is4 := backends[seed%2], seed/2%2 == 0
		// A node for each back end, as they do not go together.
		key := seed/4%8*2 + seed%2
		n := nodes[key]
		if n == nil {
			n = newKernelNode(t, newHost(v))
			nodes[key] = n
		}
		w := newWorld(n.host, is4)
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := w.generated(t, b, seed)
			defer func() {
				if t.Failed() {
					t.Logf("%s, %+v, IPv4 %v, the rules:\n%s", b, v, is4, numbered(d.String()))
				}
			}()
			n.experiment(t, b, d, seed, packetsPerSet, &w.traffic, seen)
		})
		if !ok && *keepGoing <= 0 {
			return
		}
		if !ok {
			*keepGoing--
		}
	}
	seen.log(t)
	t.Logf("what is not compared:\n%s", strings.Join(notCompared, "\n"))
	if *sets >= enoughSets && !t.Failed() {
		seen.require(t)
	}
}

// experiment loads rules and sends packets.
func (n *kernelNode) experiment(t testing.TB, backend string, d *iptables.Dump, seed uint64, packets int, g *traffic, seen tally) {
	t.Helper()
	n.send(t, n.load(t, backend, d, seen), seed, packets, g)
}

// send sends packets through the rules of a trial.
func (n *kernelNode) send(t testing.TB, tr *trial, seed uint64, packets int, g *traffic) {
	t.Helper()
	g.Rand, g.sent = rand.New(rand.NewPCG(seed, 1)), nil
	check(t, netns.OnOneCPU(func() error {
		for i := range packets {
			p := g.next()
			if p.Protocol == protoSCTP && !tr.isAnswer(&p) {
				p = g.link(withChunk(p, sctpInit)) // the tag of an INIT ACK would be wrong
			}
			w, err := tr.try(&p)
			if err != nil {
				return fmt.Errorf("packet %d: %w", i, err)
			}
			g.note(p, w)
		}
		return nil
	}))
	check(t, tr.compareTable())
}
