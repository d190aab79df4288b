package ipvs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var virtual = netip.MustParseAddrPort("10.96.0.1:80")

func client(n uint32) Client {
	return Client{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), uint16(40000+n%20000)), virtual}
}

// server makes a virtual server with real servers "weight/active/inactive", in the order of the kernel: not sorted.
func server(format Format, scheduler string, real ...string) *VirtualServer {
	v := &VirtualServer{Address: virtual, Protocol: protoTCP, Scheduler: scheduler, ClientBits: 32, format: format}
	for i, text := range real {
		r := RealServer{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 - i)}), 8080)}
		if _, err := fmt.Sscanf(text, "%d/%d/%d", &r.Weight, &r.Active, &r.Inactive); err != nil {
			panic(err)
		}
		v.Real = append(v.Real, r)
	}
	return v
}

func (v *VirtualServer) inOrder() *VirtualServer {
	slices.SortFunc(v.Real, func(a, b RealServer) int { return a.Address.Compare(b.Address) })
	return v
}

// shares is a choice as text: "200:0.50 199:0.50 refused:0.00".
func shares(c Choice) string {
	var words []string
	for _, s := range c.Shares {
		words = append(words, fmt.Sprintf("%d:%.2f", s.Server.Address.Addr().As4()[3], s.Probability))
	}
	if c.Refused > 0 {
		words = append(words, fmt.Sprintf("refused:%.2f", c.Refused))
	}
	return strings.Join(words, " ")
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		v       *VirtualServer
		want    string
		assumed bool
	}{
		{server(Save, "rr"), "refused:1.00", false},
		{server(Save, "rr", "1/0/0", "1/0/0", "0/0/0", "9/0/0"), "200:0.33 199:0.33 197:0.33", false},
		{server(Save, "rr", "0/0/0", "0/0/0"), "refused:1.00", false},
		{server(Save, "wrr", "3/0/0", "1/0/0", "0/0/0"), "200:0.75 199:0.25", false},
		{server(Save, "lc", "1/0/0", "1/0/0"), "200:0.50 199:0.50", true},
		{server(Save, "lc", "1/0/0", "0/0/0"), "200:1.00", false},
		{server(List, "lc", "1/5/0", "1/4/255", "0/0/0"), "199:1.00", false},
		{server(List, "lc", "1/5/0", "1/4/256"), "200:1.00", false}, // equal: the first
		{server(List, "lc", "1/5/0", "1/4/256").inOrder(), "199:0.50 200:0.50", true},
		{server(List, "wlc", "4/8/0", "1/1/0"), "199:1.00", false},
		{server(List, "sed", "4/7/0", "1/1/0"), "200:1.00", false}, // of equal loads, the first
		{server(List, "nq", "9/1/0", "1/0/900"), "199:1.00", false},
		{server(List, "nq", "9/1/0", "1/1/0"), "200:1.00", false},
		{server(Save, "fo", "1/0/0", "5/0/0", "3/0/0"), "199:1.00", false},
		{server(List, "ovf", "5/6/0", "3/3/0", "2/0/0"), "199:1.00", false},
		{server(List, "ovf", "5/6/0", "3/4/0"), "refused:1.00", false},
		{server(Save, "lblc", "1/0/0", "1/0/0"), "200:0.50 199:0.50", true},
		{server(List, "twos", "1/0/0", "1/9/0"), "200:0.89 199:0.11", false}, // 1-(1/3)^2
		{server(Save, "dh", "1/0/0", "1/0/0").inOrder(), "199:0.50 200:0.50", true},
		{server(Save, "dh", "1/0/0", "0/0/0").inOrder(), "200:0.50 refused:0.50", true},
		{server(Stats, "", "0/0/0", "0/0/0"), "200:0.50 199:0.50", true},
		{server(Save, "custom", "1/0/0", "1/0/0"), "200:0.50 199:0.50", true},
	} {
		got := c.v.Choose(client(7))
		if shares(got) != c.want || (got.Assumed != "") != c.assumed {
			t.Errorf("%s %v: %s (%s; %s), want %s", c.v.Scheduler, c.v.Real, shares(got), got.Basis, got.Assumed, c.want)
		}
	}
}

// TestChoicesAreDistributions: whatever the scheduler, weights and counts, the probabilities are positive and add up to 1,
// and no real server with weight 0 gets a connection.
func TestChoicesAreDistributions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		v := &VirtualServer{Address: virtual, Protocol: protoTCP, format: []Format{Save, List}[r.IntN(2)]}
		v.Scheduler = []string{"rr", "wrr", "lc", "wlc", "sed", "nq", "fo", "ovf", "sh", "dh", "mh", "lblc", "lblcr", "twos", "?"}[r.IntN(15)]
		v.Flags = [][]string{nil, {"sh-fallback"}, {"sh-port"}, {"flag-1", "flag-2"}}[r.IntN(4)]
		for i := range r.IntN(9) {
			v.Real = append(v.Real, RealServer{
				Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(2)), byte(i)}), 80),
				Weight:  []int{0, 1, 1, 2, 7, 300}[r.IntN(6)], Active: uint32(r.IntN(5)), Inactive: uint32(r.IntN(300)),
			})
		}
		checkChoice(t, v, client(r.Uint32()))
	}
}

func checkChoice(t *testing.T, v *VirtualServer, c Client) {
	t.Helper()
	got := v.Choose(c)
	sum := got.Refused
	for _, s := range got.Shares {
		sum += s.Probability
		if s.Probability <= 0 || s.Server.Weight == 0 && v.format.HasWeights() {
			t.Fatalf("%s: %s has weight %d and probability %v", v.Scheduler, s.Server.Address, s.Server.Weight, s.Probability)
		}
	}
	if math.Abs(sum-1) > 1e-9 || got.Refused < 0 || got.Basis == "" {
		t.Fatalf("%s %v: %s: the sum is %v (%s)", v.Scheduler, v.Real, shares(got), sum, got.Basis)
	}
}

// TestWeightedRound: the shares of wrr are those of a round of ip_vs_wrr_schedule.
func TestWeightedRound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		v := server(Save, "wrr")
		for i := range 1 + r.IntN(5) {
			v.Real = append(v.Real, RealServer{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: r.IntN(4) * (1 + r.IntN(3))})
		}
		step, most := 0, 0
		for i := range v.Real {
			step, most = gcd(v.Real[i].Weight, step), max(most, v.Real[i].Weight)
		}
		if most == 0 {
			continue
		}
		hits, all := make(map[*RealServer]int), 0
		for required := most - (step - 1); required > 0; required -= step {
			for i := range v.Real {
				if v.Real[i].Weight >= required {
					hits[&v.Real[i]]++
					all++
				}
			}
		}
		for _, s := range v.Choose(client(1)).Shares {
			if want := float64(hits[s.Server]) / float64(all); math.Abs(s.Probability-want) > 1e-9 {
				t.Fatalf("%v: %s has %v, want %v", v.Real, s.Server.Address, s.Probability, want)
			}
		}
	}
}

// TestHSipHash: a vector of the kernel (test_vectors_hsiphash of lib/test_siphash.c, the one of 4 bytes).
func TestHSipHash(t *testing.T) {
	if got := hsiphash(0x03020100, 0x0706050403020100, 0x0f0e0d0c0b0a0908); got != 0x88d38328 {
		t.Errorf("%#x", got)
	}
}

// TestHashesAreEven: over many clients the hash schedulers give each real server about the share of its weight, and each
// client always the same one.
func TestHashesAreEven(t *testing.T) {
	for scheduler, tolerance := range map[string]float64{"sh": 0.1, "mh": 0.05} {
		v := server(Save, scheduler, "1/0/0", "2/0/0", "1/0/0")
		hits := make(map[int]float64)
		const clients = 4000
		for n := range uint32(clients) {
			a, b := v.Choose(client(n)), v.Choose(client(n))
			if len(a.Shares) != 1 || shares(a) != shares(b) || a.Assumed != "" {
				t.Fatalf("%s: %s and %s", scheduler, shares(a), shares(b))
			}
			hits[a.Shares[0].Server.Weight]++
		}
		if share := hits[2] / clients; math.Abs(share-0.5) > tolerance {
			t.Errorf("%s: the real server with half of the weight gets %.2f", scheduler, share)
		}
	}
}

// TestSourceHashFlags: the port counts with sh-port only, and sh-fallback avoids real servers with weight 0.
func TestSourceHashFlags(t *testing.T) {
	v := server(Save, "sh", "1/0/0", "1/0/0", "0/0/0")
	refused, moved := 0, 0
	for n := range uint32(200) {
		c := client(n)
		other := c
		other.From = netip.AddrPortFrom(c.From.Addr(), c.From.Port()+1)
		v.Flags = nil
		if v.Choose(c).Refused == 1 {
			refused++
		}
		if shares(v.Choose(c)) != shares(v.Choose(other)) {
			t.Fatalf("%s: the port counts without sh-port", c.From)
		}
		v.Flags = []string{"sh-fallback", "sh-port"}
		if v.Choose(c).Refused > 0 {
			t.Fatalf("%s: refused with sh-fallback", c.From)
		}
		if shares(v.Choose(c)) != shares(v.Choose(other)) {
			moved++
		}
	}
	if refused < 40 || refused > 90 || moved == 0 {
		t.Errorf("%d of 200 refused without sh-fallback, %d moved with sh-port", refused, moved)
	}
}

// TestThresholds: a real server with as many connections as its upper threshold gets no new ones.
func TestThresholds(t *testing.T) {
	v := server(Thresholds, "", "0/60/40", "0/10/0")
	v.Real[0].Upper, v.Real[1].Upper = 100, 100
	if got := shares(v.Choose(client(1))); got != "199:1.00" {
		t.Error(got)
	}
	v.Real[1].Inactive = 90
	if got := shares(v.Choose(client(1))); got != "refused:1.00" {
		t.Error(got)
	}
}

func TestFind(t *testing.T) {
	s := read(t, "save.txt")
	for _, c := range []struct {
		protocol uint8
		to       string
		mark     uint32
		want     string
	}{
		{protoTCP, "10.96.0.10:53", 0, "TCP 10.96.0.10:53"},
		{protoUDP, "10.96.0.10:53", 0, "UDP 10.96.0.10:53"},
		{protoUDP, "10.96.0.10:54", 0, ""},
		{protoTCP, "10.96.0.10:53", 7, "FWM 7"},
		{protoTCP, "[fd00:10:96::a]:53", 7, "TCP [fd00:10:96::a]:53"},
		{protoTCP, "[fd00:10:96::a]:54", 8, "FWM 8 IPv6"},
	} {
		got := ""
		if v := s.Find(c.protocol, netip.MustParseAddrPort(c.to), c.mark); v != nil {
			got = v.String()
		}
		if got != c.want {
			t.Errorf("%d %s mark %d: %q, want %q", c.protocol, c.to, c.mark, got, c.want)
		}
	}
}
