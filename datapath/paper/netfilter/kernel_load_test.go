//go:build linux

package netfilter

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// backends are the two implementations of iptables.
var backends = []string{"nft", "legacy"}

// program is the name of one: iptables-nft-restore, for example.
func program(backend string, is4 bool) string {
	if is4 {
		return "iptables-" + backend + "-restore"
	}
	return "ip6tables-" + backend + "-restore"
}

func run(n *netns.Namespace, input, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, errs.String())
	}
	return out.String(), nil
}

// load has the kernel and a machine load a dump. The connection table is empty then.
func (n *kernelNode) load(t testing.TB, backend string, d *iptables.Dump, y tally) *trial {
	t.Helper()
	is4 := d.Family != iptables.IPv6
	m, err := New([]*iptables.Dump{d}, nil, n.host, Options{AllRules: true, FreshCounters: true})
	check(t, err)
	if _, err := run(n.node, d.String(), program(backend, is4), "-w"); err != nil {
		t.Fatalf("%v\n%s", err, numbered(d.String()))
	}
	check(t, n.entries.Flush())
	tr := newTrial(n, m, d, y)
	family := uint8(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	handles, err := n.handles(family)
	check(t, err)
	for _, table := range d.Tables {
		for chain, rules := range table.ByChain() {
			have := handles[[2]string{table.Name, chain}]
			if backend == "nft" && len(have) != len(rules) {
				t.Fatalf("chain %s of table %s: the kernel has %d rules, want %d", chain, table.Name, len(have), len(rules))
			}
			for i, r := range rules {
				handle := uint64(i + 1)
				if backend == "nft" {
					handle = have[i]
				}
				tr.rules[ruleKey{table.Name, chain, handle}] = r
			}
		}
	}
	return tr
}

// newTrial is a trial of rules that the kernel has loaded. Its map of rules by what the trace calls them is empty.
func newTrial(n *kernelNode, m *Machine, d *iptables.Dump, y tally) *trial {
	tr := &trial{node: n, machine: m, state: &State{}, rules: make(map[ruleKey]*iptables.Rule), byLine: make(map[int]*iptables.Rule), tally: y}
	for _, table := range d.Tables {
		for _, r := range table.Rules {
			tr.byLine[r.Line] = r
		}
	}
	return tr
}

func numbered(text string) string {
	var b strings.Builder
	i := 0
	for line := range strings.Lines(text) {
		i++
		fmt.Fprintf(&b, "%4d %s", i, line)
	}
	return b.String()
}
