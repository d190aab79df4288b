//go:build linux

package kubechains

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// backend is one of the two implementations of iptables: nft or legacy.
type backend string

// backends are those that are installed and that the kernel supports; at least one,
// or the test ends.
func backends(t *testing.T) []backend {
	t.Helper()
	netnstest.Require(t)
	netnstest.RequireTool(t, "iptables-restore")
	ns := namespace(t, "probe")
	var usable []backend
	for _, b := range []backend{"nft", "legacy"} {
		if _, err := exec.LookPath(b.tool(decision.IPv4, "restore")); err != nil {
			t.Logf("without the %s back end: %v", b, err)
			continue
		}
		works := true
		for _, f := range families {
			if _, err := run(ns, "*nat\nCOMMIT\n", b.tool(f, "restore"), "-w"); err != nil {
				t.Logf("without the %s back end: %v", b, err)
				works = false
			}
		}
		if works {
			usable = append(usable, b)
		}
	}
	if len(usable) == 0 {
		t.Fatal("iptables-restore is there, but neither back end works")
	}
	return usable
}

var families = []decision.Family{decision.IPv4, decision.IPv6}

// tool is the name of a program: iptables-nft-save, for example.
func (b backend) tool(f decision.Family, what string) string {
	name := "iptables"
	if f == decision.IPv6 {
		name = "ip6tables"
	}
	return fmt.Sprintf("%s-%s-%s", name, b, what)
}

func namespace(t *testing.T, name string) *netns.Namespace {
	t.Helper()
	n, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// run runs a program in the namespace and gives what it prints.
func run(n *netns.Namespace, input string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func mustRun(t *testing.T, n *netns.Namespace, input string, name string, args ...string) string {
	t.Helper()
	out, err := run(n, input, name, args...)
	if err != nil {
		t.Fatalf("%v\n%.3000s", err, input)
	}
	return out
}

// Render is kubesave.Render, which a test inside this package cannot import.
var Render func(io.Writer, []Rule) error

func rendered(t *testing.T, table *decision.Table, f decision.Family) string {
	t.Helper()
	var b bytes.Buffer
	if err := Render(&b, Rules(table, f, Kernel{})); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// saved is the output of iptables-save: the rules of each chain of each table, and the
// policy of the chain in front.
type saved map[string][]string

var counters = regexp.MustCompile(` \[\d+:\d+\]$`)

func parseSaved(text string) saved {
	s, table := make(saved), ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			chain, _, _ := strings.Cut(line[1:], " ")
			s[table+" "+chain] = []string{counters.ReplaceAllString(line, "")}
		case strings.HasPrefix(line, "-A "):
			key := table + " " + strings.Fields(line)[1]
			s[key] = append(s[key], line)
		}
	}
	return s
}

// TestSaveIsRender loads what Render writes and has iptables-save print it: the same
// rules, word for word, and with the nft back end the same order of chains.
func TestSaveIsRender(t *testing.T) {
	t.Parallel()
	worlds := uint64(netnstest.Cases(12, 3))
	for _, b := range backends(t) {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", b, f), func(t *testing.T) {
				rules := 0
				tables := []*decision.Table{spellings(f), largeTable(f)}
				for seed := range worlds {
					tables = append(tables, newWorld(seed, f).table)
				}
				for _, table := range tables {
					ns := namespace(t, "node")
					text := rendered(t, table, f)
					mustRun(t, ns, text, b.tool(f, "restore"), "-w", "--test")
					mustRun(t, ns, text, b.tool(f, "restore"), "-w")
					want, got := parseSaved(text), parseSaved(mustRun(t, ns, "", b.tool(f, "save")))
					for chain, lines := range want {
						rules += len(lines) - 1
						compareChain(t, chain, got[chain], lines)
					}
					for chain, lines := range got {
						if want[chain] == nil && len(lines) > 1 {
							t.Errorf("iptables-save prints rules that Render does not:\n%s", strings.Join(lines, "\n"))
						}
					}
					if t.Failed() {
						return
					}
				}
				if rules < 100*len(tables)/2 {
					t.Errorf("only %d rules were compared", rules)
				}
			})
		}
	}
}

func compareChain(t *testing.T, chain string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		line := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(none)"
		}
		if g, w := line(got), line(want); g != w {
			t.Errorf("chain %s, line %d:\n iptables-save %s\n Render        %s", chain, i, g, w)
			return
		}
	}
}

// TestNFTSavesInTheOrderOfRender: as text, too, all is the same, counters and comments
// aside. The legacy back end prints the tables in another order (nat before filter).
func TestNFTSavesInTheOrderOfRender(t *testing.T) {
	netnstest.RequireTool(t, "iptables-nft-restore")
	for _, f := range families {
		ns := namespace(t, "node")
		text := rendered(t, newWorld(1, f).table, f)
		mustRun(t, ns, text, backend("nft").tool(f, "restore"))
		var got []string
		for line := range strings.Lines(mustRun(t, ns, "", backend("nft").tool(f, "save"))) {
			if !strings.HasPrefix(line, "#") {
				got = append(got, regexp.MustCompile(` \[\d+:\d+\]\n$`).ReplaceAllString(line, " [0:0]\n"))
			}
		}
		compareChain(t, "(the whole text)", got, slices.Collect(strings.Lines(text)))
	}
}

// spellings is a table with what newWorld does not bring up: names worth quoting, a
// health check port, another mark.
func spellings(f decision.Family) *decision.Table {
	w := newWorld(0, f)
	node := *w.table.Node()
	node.MasqueradeMark = 1 << 5
	node.NodePortAddresses, node.LocalhostNodePorts, node.MasqueradeAll = nil, true, false
	node.Detector = decision.Detector{CIDRs: []netip.Prefix{w.prefix(netPod, 0)}}
	var services []*decision.ServicePort
	for i, name := range []decision.ServicePortName{{Namespace: "a", Name: "b"}, {Namespace: "a-b", Name: "c-d", Port: "e-f"}, {Namespace: "kube-system", Name: "kube-dns", Port: "dns-tcp"}} {
		s := w.service(i)
		s.Name, s.HealthCheckNodePort = name, uint16(31000+i)
		s.SourceRanges = []netip.Prefix{w.prefix(netOutside, 3), netip.PrefixFrom(w.addr(0, 0), 0)}
		services = append(services, s)
	}
	t := decision.NewTable(1, time.Time{}, node, services)
	return t
}

// largeTable has so many endpoints that kube-proxy leaves comments out, and every
// probability from 1/2 to 1/45. Not all endpoints are used: in an ordinary user's
// namespace the nft back end cannot load that many rules, for a socket's buffer is
// limited there.
func largeTable(f decision.Family) *decision.Table {
	w := newWorld(0, f)
	var services []*decision.ServicePort
	for i := range 3 {
		s := w.service(i)
		s.AffinitySeconds, s.InternalPolicy, s.ExternalPolicy = uint32(i)*10, decision.Cluster, decision.Cluster
		s.Endpoints, s.Usable, s.HasEndpoints = nil, [2][]uint32{}, true
		for k := range 400 {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(w.addr(netPod, k), 8080)})
			if k < 15*(i+1) {
				s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
			}
		}
		services = append(services, s)
	}
	t := decision.NewTable(1, time.Time{}, *w.table.Node(), services)
	return t
}
