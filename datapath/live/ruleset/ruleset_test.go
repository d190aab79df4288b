package ruleset

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

var update = flag.Bool("update", false, "write testdata anew")

func spec() Spec {
	return Spec{
		FirstQueue: 100, Queues: 2, RejectMark: 0x6e667172, MasqueradeMark: 0x4000, ConnMark: 0x2000, CopyMark: 0x1000,
		LocalhostNodePorts: true, SeenTimeout: 20 * time.Second, SeenSize: 65536,
	}
}

// onlyServices is the spec that leaves all but services alone.
func onlyServices() Spec {
	s := spec()
	s.OnlyServices = true
	return s
}

func TestText(t *testing.T) {
	t.Run("all", func(t *testing.T) { testText(t, spec(), "testdata/ruleset.nft") })
	t.Run("services", func(t *testing.T) { testText(t, onlyServices(), "testdata/services.nft") })
}

func testText(t *testing.T, spec Spec, file string) {
	got := spec.String()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("ruleset differs from %s (write it anew with -update)\n%s", file, got)
	}
}

// inNamespace runs f in a new network namespace.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// install installs a ruleset as the kernel can have it.
func install(t testing.TB, s Spec) (*Ruleset, error) {
	t.Helper()
	return installFor(t, s, new(decision.Table), false)
}

// installFor is [Connection.Install] by a connection of its own, as another process does, and as the kernel can have it.
func installFor(t testing.TB, s Spec, table *decision.Table, keepQueueing bool) (*Ruleset, error) {
	t.Helper()
	var err error
	if s.Native, err = Probe(); err != nil {
		return nil, err
	}
	c, err := OpenConnection(false)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.Install(s, table, keepQueueing)
}

// installed is [inNamespace] with an installed ruleset.
func installed(t *testing.T, s Spec, f func(r *Ruleset) error) {
	t.Helper()
	inNamespace(t, func() error {
		r, err := install(t, s)
		if err != nil {
			return err
		}
		defer r.Remove() //nolint:errcheck // the namespace goes anyway
		return f(r)
	})
}

// kernelRules counts the chains and rules of our tables in the kernel.
func kernelRules(t *testing.T) (chains, rules int) {
	t.Helper()
	var c Comparison
	for _, of := range newTables(new(Spec)) {
		is, err := of.readState()
		if err != nil {
			t.Fatal(err)
		}
		c.count(is)
	}
	return c.Chains, c.Rules
}

func TestInstallAndRemove(t *testing.T) {
	t.Run("all", func(t *testing.T) { testInstallAndRemove(t, spec()) })
	t.Run("services", func(t *testing.T) { testInstallAndRemove(t, onlyServices()) })
}

func testInstallAndRemove(t *testing.T, want Spec) {
	inNamespace(t, func() error {
		wantChains, wantRules := 0, 0
		for _, table := range newTables(&want) {
			for _, c := range want.chains(table) {
				wantChains++
				wantRules += len(c.rules)
			}
		}
		first, err := install(t, want)
		if err != nil {
			return err
		}
		// A second run finds the rest of the first one and replaces it.
		r, err := install(t, want)
		if err != nil {
			return err
		}
		if c, n := kernelRules(t); c != wantChains || n != wantRules {
			t.Errorf("%d chains with %d rules, want %d with %d", c, n, wantChains, wantRules)
		}
		if err := r.StopQueueing(); err != nil {
			return err
		}
		if c, n := kernelRules(t); c != wantChains || n != wantRules-len(want.queueing(r.tables[0]).rules)-len(want.queueing(r.tables[1]).rules) {
			t.Errorf("after StopQueueing: %d chains with %d rules; only the rules that queue should be gone", c, n)
		}
		if err := r.LeaveEstablished(); err != nil {
			return err
		}
		if c, n := kernelRules(t); c != 2*len(want.established()) || n != 2 {
			t.Errorf("for established flows: %d chains with %d rules, want %d with two", c, n, 2*len(want.established()))
		}
		// The next run replaces that, too.
		if r, err = install(t, want); err != nil {
			return err
		}
		if c, n := kernelRules(t); c != wantChains || n != wantRules {
			t.Errorf("installed again: %d chains with %d rules, want %d with %d", c, n, wantChains, wantRules)
		}
		if err := r.Remove(); err != nil {
			return err
		}
		if c, _ := kernelRules(t); c != 0 {
			t.Errorf("%d chains are left", c)
		}
		if err := first.Remove(); err != nil {
			t.Errorf("removing what is gone: %v", err)
		}
		return nil
	})
}

// services makes n service ports of each family and protocol, with node ports.
func services(n int) []*decision.ServicePort {
	var all []*decision.ServicePort
	for i := range n {
		for _, proto := range []decision.Protocol{decision.TCP, decision.UDP, decision.SCTP} {
			v4 := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
			v6 := netip.AddrFrom16([16]byte{0xfd, 0x96, 14: byte(i >> 8), 15: byte(i)})
			for _, ip := range []netip.Addr{v4, v6} {
				all = append(all, &decision.ServicePort{
					Name:     decision.ServicePortName{Namespace: "default", Name: fmt.Sprint(i)},
					Protocol: proto, Family: decision.FamilyOf(ip), ClusterIP: ip, Port: 80, NodePort: uint16(30000 + i), HasEndpoints: true,
				})
			}
		}
	}
	return all
}

// named returns a set of the table.
func (t *table) named(name string) *set {
	return t.sets[slices.IndexFunc(t.sets, func(s *set) bool { return s.name == name })]
}

// elements counts the elements of each set, by its name and 4 or 6.
func elements(t *testing.T, r *Ruleset) map[string]int {
	t.Helper()
	n := make(map[string]int)
	for _, s := range r.tables.sets() {
		e, err := s.table.readElements(s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(s.name, "copy_") || strings.HasPrefix(s.name, "decide") {
			continue
		}
		n[s.name+map[family]string{ipv4: "4", ipv6: "6"}[s.table.family]] = len(e)
	}
	return n
}

func TestSetsFollowTheTable(t *testing.T) {
	inNamespace(t, func() error {
		r, err := install(t, onlyServices())
		if err != nil {
			return err
		}
		_, before := kernelRules(t)
		node := decision.Node{Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("fd20::2")}}
		for _, n := range []int{3, 2500, 2500, 7, 0} { // more than one transaction takes, and back
			table := decision.NewTable(1, time.Time{}, node, services(n))
			if err := r.Follow(table); err != nil {
				return err
			}
			want := map[string]int{
				"seen4": 0, "seen6": 0,
				"service4": 3 * n, "service6": 3 * n, "scope4": 3 * n, "scope6": 3 * n,
				"nodeport_addr4": 2, "nodeport_addr6": 1, "local4": 2, "local6": 1,
				"nodeport4": 3 * n, "nodeport6": 3 * n, "refused_port4": 0, "refused_port6": 0,
			}
			if got := elements(t, r); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("with %d services: elements %v, want %v", n, got, want)
			}
		}
		if _, after := kernelRules(t); after != before {
			t.Errorf("%d rules, %d before: the number must not depend on the services", after, before)
		}
		return r.Remove()
	})
}

// A service port without endpoints is queued, to be refused; that of the other family, with
// the same node port, is another one.
func TestSetsOfServicesWithoutEndpoints(t *testing.T) {
	inNamespace(t, func() error {
		r, err := install(t, onlyServices())
		if err != nil {
			return err
		}
		all := services(1)
		for _, s := range all {
			s.HasEndpoints = s.Family == decision.IPv6
		}
		follow := func(services []*decision.ServicePort, want map[string]int) {
			t.Helper()
			if err := r.Follow(decision.NewTable(1, time.Time{}, decision.Node{}, services)); err != nil {
				t.Fatal(err)
			}
			got := elements(t, r)
			for name, n := range want {
				if got[name] != n {
					t.Errorf("set %s has %d elements, want %d", name, got[name], n)
				}
			}
		}
		follow(all, map[string]int{"service4": 0, "service6": 3, "nodeport4": 0, "nodeport6": 3, "refused_port4": 3, "refused_port6": 0, "scope4": 3, "scope6": 3})
		only4 := slices.DeleteFunc(slices.Clone(all), func(s *decision.ServicePort) bool { return s.Family == decision.IPv6 })
		follow(only4, map[string]int{"service6": 0, "nodeport6": 0, "refused_port4": 3, "scope4": 3, "scope6": 0})
		follow(nil, map[string]int{"refused_port4": 0, "scope4": 0, "scope6": 0})
		return r.Remove()
	})
}

// nfts are the programs that list the rules: the installed nft and Debian's newest.
func nfts(t *testing.T) map[string]string {
	t.Helper()
	netnstest.RequireTool(t, "nft")
	programs := map[string]string{"installed": "nft"}
	newest, err := filepath.Abs("../../../bench/peers/bin/newest-nft/nft")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(newest); err != nil {
		t.Run("newest", func(t *testing.T) { netnstest.Missing(t, "bench/peers/bin/newest-nft (make peers, on Debian)") })
	} else {
		programs["newest"] = newest
	}
	return programs
}

// TestNftReadsIt has nft, which does not share our encoder, list the ruleset.
func TestNftReadsIt(t *testing.T) {
	programs := nfts(t)
	all := spec()
	all.Alive = Alive{Mark: 0x6e667170, Timeout: time.Minute}
	for name, spec := range map[string]Spec{"services": onlyServices(), "all": all} {
		for which, program := range programs {
			t.Run(name+", "+which, func(t *testing.T) { listedBy(t, program, spec) })
		}
	}
}

func listedBy(t *testing.T, program string, spec Spec) {
	inNamespace(t, func() error {
		native, err := Probe()
		if err != nil {
			return err
		}
		spec.Native = native
		c, err := OpenConnection(true)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // the namespace goes anyway
		all := services(1)
		for i, s := range all {
			s.AffinitySeconds = uint32(60 * (i % 2))
			s.LoadBalancerIPs = []netip.Addr{s.ClusterIP.Next()}
			s.SourceRanges = []netip.Prefix{netip.PrefixFrom(s.ClusterIP, 16).Masked()}
			s.Endpoints = []decision.Endpoint{{AddrPort: netip.AddrPortFrom(s.ClusterIP, 8080)}}
			s.Usable[decision.Cluster] = []uint32{0}
		}
		r, err := c.Install(spec, decision.NewTable(1, time.Time{}, decision.Node{}, all), false)
		if err != nil {
			return err
		}
		cmd := exec.Command(program, "list", "ruleset")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("nft: %v, %s", err, &stderr)
		}
		// nft takes every table of ip and ip6 with a target of xtables for one of iptables.
		for line := range strings.Lines(stderr.String()) {
			if !strings.Contains(line, "is managed by iptables-nft") || r.spec.Native {
				t.Errorf("nft reports %q", line)
			}
		}
		want := []string{
			"10.96.0.0 . tcp . 80", "fd96:: . sctp . 80", "udp . 30000",
			"meta mark 0x6e667172", "ct state untracked accept",
			"ip saddr . ip daddr . udp sport . udp dport @seen update @seen",
			"reject with tcp reset", "type nat hook postrouting", "@copy_endpoint", "10.96.0.0 . tcp . 80 . 0x00000000 : 10.96.0.0 . 8080",
		}
		if spec.OnlyServices {
			want = append(want, "ip daddr . meta l4proto . th dport @scope jump new_flows")
		}
		for _, want := range want {
			if !strings.Contains(string(out), want) {
				t.Errorf("nft does not show %q", want)
			}
		}
		// What nft does not know it shows as a number in brackets or by the name of the expression.
		if i := strings.IndexAny(string(out), "\x00\ufffd"); i >= 0 || strings.Contains(string(out), "unknown") || strings.Contains(string(out), "[invalid") {
			t.Error("nft shows what it does not know")
		}
		if t.Failed() || testing.Verbose() {
			t.Logf("%s", out)
		}
		return r.Remove()
	})
}

// TestQueueTargetBytes: xtables' target is the one thing the text does not show.
func TestQueueTargetBytes(t *testing.T) {
	e, ok := queue(0x1234, 0x0203, false).exprs[0].(*expr.Target)
	if !ok {
		t.Fatal("no xtables target")
	}
	info, ok := e.Info.(*xt.Unknown)
	// struct xt_NFQ_info_v3: queue, how many, NFQ_FLAG_BYPASS | NFQ_FLAG_CPU_FANOUT.
	want := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 0x1234), 0x0203), 3)
	if e.Name != "NFQUEUE" || e.Rev != 3 || !ok || !bytes.Equal(*info, want) {
		t.Errorf("target %s revision %d, info %x; want %x", e.Name, e.Rev, *info, want)
	}
}
