//go:build linux

package netfilter

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// enoughRulesets is how many rulesets bring everything up: 40 packets each.
const enoughRulesets = 520

var nftSets = flag.Uint64("kernel.nft-sets", uint64(netnstest.Cases(enoughRulesets, 50)), "how many rulesets TestKernelAgreesAboutNftables makes, from -kernel.seed on")

// nftVariants are the hosts of the rulesets. The kernels of the tests have no queue for nftables.
var nftVariants = []variant{{}, {routeLocalnet: true}, {noDefault: true}, {noForwarding: true, differs: "veth1"}, {differs: "eth0", filters: true}}

// TestKernelAgreesAboutNftables makes up rulesets of nftables, has the kernel load them, and reads what nft lists. It sends
// packets and compares the results with the simulator. A disagreement is found again by -kernel.seed with its number and
// -kernel.nft-sets 1.
func TestKernelAgreesAboutNftables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	lacks := lackingForms(t)
	seen := make(tally)
	nodes := make(map[int]*kernelNode)
	for seed := *firstSeed; seed < *firstSeed+*nftSets; seed++ {
		v, is4 := int([]uint64{0, 1, 0, 2, 1, 0, 3}[seed/4%7]), seed/2%2 == 0
		if nodes[v] == nil {
			nodes[v] = newKernelNode(t, newHost(nftVariants[v]))
		}
		n := nodes[v]
		w := newWorld(n.host, is4)
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			text := w.ruleset(seed, lacks)
			tr := n.loadNative(t, text, seed%2 == 1, is4, seen)
			n.send(t, tr, seed, packetsPerSet, &w.traffic)
		})
		if !ok && *keepGoing <= 0 {
			return
		}
		if !ok {
			*keepGoing--
		}
	}
	seen.log(t)
	if seen["rules refused"] > seen["rules"]/20 {
		t.Errorf("nft refuses %d of %d rules", seen["rules refused"], seen["rules"])
	}
	if *nftSets >= enoughRulesets && !t.Failed() {
		seen.requireShapes(t, lacks)
	}
}

// loadNative has the kernel load a ruleset, and a machine what nft lists then.
func (n *kernelNode) loadNative(t testing.TB, text string, asJSON, is4 bool, y tally) *trial {
	t.Helper()
	check(t, n.unload())
	n.loadAccepted(t, text, y)
	return n.listed(t, &besideNative{}, asJSON && !strings.Contains(text, "jump {"), is4, y) // nft 1.0.6 writes the rules of such chains as one string
}

// besideNative are rules of iptables-nft for IPv4, and ipsets, beside rules of nftables.
type besideNative struct {
	dump *iptables.Dump
	last bool // they were loaded behind the others
	sets map[string]*iptables.Set
}

// listed is a machine of what nft lists, as text or as JSON. The connection table is empty then.
func (n *kernelNode) listed(t testing.TB, beside *besideNative, asJSON, is4 bool, y tally) *trial {
	t.Helper()
	check(t, n.entries.Flush())
	listed, err := n.listing(asJSON)
	check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("IPv4 %v, the rules:\n%s", is4, numbered(listed))
		}
	})
	ruleset, err := nftables.Read("listing", strings.NewReader(listed))
	check(t, err)
	ruleset.Tables = slices.DeleteFunc(ruleset.Tables, func(t *nftables.Table) bool { return t.Name == watchTable })
	for _, table := range ruleset.Tables {
		n.tables = append(n.tables, string(table.Family)+" "+table.Name)
	}
	family := iptables.IPv6
	if is4 {
		family = iptables.IPv4
	}
	d, notes := nftrules.Compile(ruleset, family)
	for _, note := range notes {
		t.Logf("not simulated: %v", note)
	}
	dumps := []*iptables.Dump{d}
	if beside.dump != nil && is4 {
		d = nftrules.WithoutIPTables(d, []*iptables.Dump{beside.dump})
		dumps = []*iptables.Dump{beside.dump, d}
		if beside.last {
			slices.Reverse(dumps)
		}
	}
	m, err := New(dumps, beside.sets, n.host, Options{AllRules: true, FreshCounters: true})
	check(t, err)
	tr := newTrial(n, m, d, y)
	check(t, tr.nameNative(d))
	if len(dumps) > 1 {
		check(t, tr.nameBeside(beside.dump))
	}
	return tr
}

// loadAccepted has the kernel load the rules of a file that nft and the kernel accept: not all conditions go together.
func (n *kernelNode) loadAccepted(t testing.TB, text string, y tally) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for {
		_, err := run(n.node, strings.Join(lines, "\n"), "nft", "-f", "-")
		if err == nil {
			break
		}
		faulty := faultyLine.FindStringSubmatch(err.Error())
		if faulty == nil {
			t.Fatalf("%v\n%s", err, numbered(text))
		}
		line, _ := strconv.Atoi(faulty[1])
		if !strings.HasPrefix(lines[line-1], "\t\t") { // not a rule
			t.Fatalf("%v\n%s", err, numbered(text))
		}
		t.Logf("refused: %s: %s", strings.TrimSpace(lines[line-1]), faulty[2])
		lines[line-1] = ""
		y["rules refused"]++
	}
	y["rules"] += strings.Count(text, " comment ")
}

// unload deletes the tables that were loaded before.
func (n *kernelNode) unload() error {
	var commands strings.Builder
	for _, table := range n.tables {
		fmt.Fprintf(&commands, "delete table %s\n", table)
	}
	n.tables = nil
	_, err := run(n.node, commands.String(), "nft", "-f", "-")
	return err
}

// listing is what nft lists, with handles; a line of JSON has one thing.
func (n *kernelNode) listing(asJSON bool) (string, error) {
	if !asJSON {
		return run(n.node, "", "nft", "-a", "list", "ruleset")
	}
	text, err := run(n.node, "", "nft", "-j", "list", "ruleset")
	if err != nil {
		return "", err
	}
	var lines bytes.Buffer
	err = json.Indent(&lines, []byte(text), "", " ")
	return lines.String(), err
}

// nameNative names the rules as the trace does. Those of chains without a name are listed without handles: the kernel's chains
// are in the order of their numbers.
func (t *trial) nameNative(d *iptables.Dump) error {
	t.native = true
	for family, name := range familyNames {
		handles, err := t.node.handles(family)
		if err != nil {
			return err
		}
		for _, table := range d.Tables {
			if of, plain, _ := strings.Cut(table.Name, " "); of == name {
				if err := t.nameTable(table, plain, handles); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// nameBeside names rules of iptables-nft for IPv4.
func (t *trial) nameBeside(d *iptables.Dump) error {
	handles, err := t.node.handles(unix.NFPROTO_IPV4)
	if err != nil {
		return err
	}
	for _, table := range d.Tables {
		for chain, rules := range table.ByChain() {
			have := handles[[2]string{table.Name, chain}]
			if len(have) != len(rules) {
				return fmt.Errorf("chain %s of table %s: the kernel has %d rules, want %d", chain, table.Name, len(have), len(rules))
			}
			for i, r := range rules {
				t.rules[ruleKey{"ip " + table.Name, chain, have[i]}] = r
			}
		}
	}
	return nil
}

func (t *trial) nameTable(table *iptables.Table, plain string, handles map[[2]string][]uint64) error {
	var blocks []string // in the kernel
	for k := range handles {
		if k[0] == plain && strings.HasPrefix(k[1], "__chain") {
			blocks = append(blocks, k[1])
		}
	}
	slices.SortFunc(blocks, func(a, b string) int { return len(a) - len(b) + boolInt(len(a) == len(b))*strings.Compare(a, b) })
	for chain, rules := range table.ByChain() {
		if number, ok := strings.CutPrefix(chain, "{"); ok {
			i, err := strconv.Atoi(strings.TrimSuffix(number, "}"))
			if err != nil || i > len(blocks) {
				return fmt.Errorf("the kernel has %d chains without a name in table %s: %s", len(blocks), table.Name, chain)
			}
			chain = blocks[i-1]
		}
		have := handles[[2]string{plain, chain}]
		if len(have) != len(rules) {
			return fmt.Errorf("chain %s of table %s: the kernel has %d rules, want %d", chain, table.Name, len(have), len(rules))
		}
		for i, r := range rules {
			if r.Handle != 0 && r.Handle != have[i] {
				return fmt.Errorf("chain %s of table %s: the kernel has handle %d, want %d", chain, table.Name, have[i], r.Handle)
			}
			t.rules[ruleKey{table.Name, chain, have[i]}] = r
		}
	}
	return nil
}

// familyNames are the families of tables.
var familyNames = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

// kindsOf are what a rule of a made-up ruleset has, from its comment: conditions, and statements.
func kindsOf(r *iptables.Rule) (conditions, statements []string) {
	for _, m := range r.Matches {
		if c, ok := m.(iptables.Comment); ok {
			a, b, _ := strings.Cut(c.Text, "|")
			return split(a), split(b)
		}
	}
	return nil, nil
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// addNative counts a rule that matched or not.
func (y tally) addNative(r *iptables.Rule, passed bool) {
	conditions, statements := kindsOf(r)
	switch {
	case !passed:
		for _, k := range conditions {
			y["if "+k+" yes"]++
		}
		for _, k := range statements {
			y["do "+k]++
		}
	case len(conditions) == 1:
		y["if "+conditions[0]+" no"]++
	}
}

// requireShapes requires that all conditions and statements came up that the kernel has, conditions agreeing and not.
func (y tally) requireShapes(t testing.TB, lacks map[string]bool) {
	t.Helper()
	y.atLeast(t, 10000, "packets")
	for _, s := range slices.Concat(conditions, lonely) {
		if len(s.without(lacks)) == 0 {
			continue
		}
		if s.always {
			if y["if "+s.kind+" yes"]+y["if "+s.kind+" no"] < 2 {
				t.Errorf("condition %q did not come up", s.kind)
			}
			continue
		}
		if s.kind != "ct helper" { // of the connection that expected this one: that is not simulated
			y.atLeast(t, 2, "if "+s.kind+" yes")
		}
		y.atLeast(t, 2, "if "+s.kind+" no")
	}
	for _, s := range slices.Concat(statements, verdicts, translations) {
		if len(s.without(lacks)) > 0 {
			y.atLeast(t, 2, "do "+s.kind)
		}
	}
}

// without are the forms that the kernel has.
func (s *shape) without(lacks map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(s.forms), func(form string) bool { return lacks[form] })
}

// faultyLine is where nft finds a fault.
var faultyLine = regexp.MustCompile(`/dev/stdin:(\d+):[^ ]* (.*)`)

// lackingForms are the forms of conditions and statements that this nft or this kernel does not have.
func lackingForms(t testing.TB) map[string]bool {
	t.Helper()
	n := newKernelNode(t, newHost(variant{}))
	shapes := slices.Concat(conditions, lonely, statements, verdicts, translations)
	lacks := make(map[string]bool)
	for {
		text, lines := newWorld(n.host, true).samples(shapes, lacks)
		_, err := run(n.node, text, "nft", "-f", "-")
		if err == nil {
			break
		}
		before := len(lacks)
		for _, found := range faultyLine.FindAllStringSubmatch(err.Error(), -1) {
			line, _ := strconv.Atoi(found[1])
			if form := lines[line]; form != "" && !lacks[form] {
				lacks[form] = true
				t.Logf("left out, as nft or the kernel does not have it: %s: %s", form, found[2])
			}
		}
		if len(lacks) == before {
			t.Fatalf("%v\n%s", err, numbered(text))
		}
	}
	if len(lacks) > 20 {
		t.Fatalf("the kernel refuses %d conditions and statements", len(lacks))
	}
	return lacks
}
