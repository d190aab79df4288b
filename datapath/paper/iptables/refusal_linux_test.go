package iptables

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestKernelRefuses gives each example of a refusal to iptables-restore of both back ends. A rule that either loads
// has to be read. "--test" loads nothing: the kernel itself refuses some of the rules that pass it.
func TestKernelRefuses(t *testing.T) {
	netnstest.Require(t)
	for _, backend := range []string{"legacy", "nft"} {
		t.Run(backend, func(t *testing.T) {
			netnstest.RequireTool(t, "iptables-"+backend+"-restore")
			n, err := netns.New("iptables")
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			for _, e := range examples {
				program := restoreProgram(backend, e.family)
				if _, err := n.Run(e.text(), program, "--test"); err != nil {
					continue
				}
				if _, err := n.Run(e.text(), program); err == nil && e.loads == "" {
					t.Errorf("%s loads %q, which is refused: %v", program, e.rule, e.parse())
				}
			}
		})
	}
}

func restoreProgram(backend string, f Family) string {
	if f == IPv6 {
		return "ip6tables-" + backend + "-restore"
	}
	return "iptables-" + backend + "-restore"
}

// TestKernelLoadsTheSame loads the table accepted with both back ends: what iptables-save prints means what is read
// of the rule.
func TestKernelLoadsTheSame(t *testing.T) {
	netnstest.Require(t)
	for _, backend := range []string{"legacy", "nft"} {
		t.Run(backend, func(t *testing.T) {
			netnstest.RequireTool(t, "iptables-"+backend+"-restore")
			n, err := netns.New("iptables")
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			for _, c := range accepted {
				if _, err := n.Run(restoreText(c.table, c.rule), restoreProgram(backend, IPv4)); err != nil {
					t.Errorf("%s: %v", c.rule, err)
					continue
				}
				text, err := n.Run("", "iptables-"+backend+"-save", "-t", c.table)
				if err != nil {
					t.Fatal(err)
				}
				saved, err := Parse(strings.NewReader(text), Options{})
				if err != nil || typedText(saved) != c.saved {
					t.Errorf("%s: %v, saved as\n%s\nwant %s", c.rule, err, typedText(saved), c.saved)
				}
			}
		})
	}
}
