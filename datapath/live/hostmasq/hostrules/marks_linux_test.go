package hostrules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

var ourMarks = rules.Marks{Packet: 0x4000, Connection: 0x2000}

// markRules are rules of iptables, and what they do to our bits.
var markRules = []struct{ rule, why string }{
	{"-A PREROUTING -j MARK --set-xmark 0x4000/0x4000", "it changes the packet mark 0x4000"},
	{"-A PREROUTING -j MARK --set-xmark 0xca6c/0xffffffff", "it changes the packet mark 0x4000"},
	{"-A PREROUTING -j MARK --set-xmark 0x0/0xffff", "it changes the packet mark 0x4000"},
	{"-A PREROUTING -j MARK --set-xmark 0x4000/0x0", "it changes the packet mark 0x4000"},
	{"-A PREROUTING -j MARK --set-xmark 0x20000/0x20000", ""},
	{"-A PREROUTING -j MARK --set-xmark 0x8000/0x8000", ""},
	{"-A PREROUTING -m mark --mark 0x4000/0x4000 -j ACCEPT", "it tests the packet mark 0x4000"},
	{"-A PREROUTING -m mark ! --mark 0x1 -j ACCEPT", "it tests the packet mark 0x4000"},
	{"-A PREROUTING -m mark --mark 0x10000/0xf0000 -j ACCEPT", ""},
	{"-A PREROUTING -m connmark --mark 0x2000/0x2000 -j ACCEPT", "it tests the connection mark 0x2000"},
	{"-A PREROUTING -m connmark --mark 0x4000/0x4000 -j ACCEPT", ""},
	{"-A PREROUTING -j CONNMARK --set-xmark 0x2000/0x2000", "it changes the connection mark 0x2000"},
	{"-A PREROUTING -j CONNMARK --set-xmark 0x80/0x80", ""},
	{"-A PREROUTING -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff", "it copies the packet mark 0x4000 and changes the connection mark 0x2000"},
	{"-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff", "it copies the connection mark 0x2000 and changes the packet mark 0x4000"},
	{"-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xf0000 --ctmask 0xf0000", ""},
	{"-A PREROUTING -m mark --mark 0x4000/0x4000 -j CONNMARK --set-xmark 0x2000/0x2000", "it tests the packet mark 0x4000 and changes the connection mark 0x2000"},
	{"-A PREROUTING -p tcp -j ACCEPT", ""},
}

// TestMarkUses reads the same rules from the kernel, among those of kube-proxy and our own.
func TestMarkUses(t *testing.T) {
	forEach(t, func(n node, b xtables.Backend, f decision.Family) {
		text := "*mangle\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n"
		var want []string
		for _, r := range markRules {
			text += r.rule + "\n"
			if r.why != "" {
				want = append(want, fmt.Sprintf("iptables (%s), %s, table mangle: %q: %s", b, f, r.rule, r.why))
			}
		}
		n.Exec(text+"COMMIT\n*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n", xtablestest.Tool(b, f, "restore"))
		if got := n.markUses(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			n.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestNativeMarkUses is about nftables as such.
func TestNativeMarkUses(t *testing.T) {
	n := newNode(t)
	netnstest.RequireTool(t, "nft")
	n.Exec(`
table inet wg {
	chain premangle { type filter hook prerouting priority mangle; meta l4proto udp meta mark set ct mark; }
	chain postmangle { type filter hook postrouting priority mangle; meta l4proto udp meta mark 0x0000ca6c ct mark set meta mark; }
	chain more { meta mark set meta mark | 0x4000; ct mark & 0x2000 == 0x2000 accept; meta mark & 0x10000 == 0 accept; }
}
table ip kube-proxy { chain marked { meta mark set meta mark | 0x4000; }; }
table ip nfqproxy { chain marked { meta mark & 0x4000 != 0 accept; }; }
`, "nft", "-f", "-")
	got := n.markUses()
	if len(got) != 4 {
		t.Errorf("found %q", got)
	}
	for i, want := range []string{
		`"premangle: meta l4proto udp meta mark set ct mark": it copies the connection mark 0x2000 and changes the packet mark 0x4000`,
		`"postmangle: meta l4proto udp meta mark 0xca6c ct mark set meta mark": it tests the packet mark 0x4000 and copies the packet mark 0x4000 and changes the connection mark 0x2000`,
		`"more: meta mark set meta mark & 0xffffbfff ^ 0x4000": it changes the packet mark 0x4000`,
		`"more: ct mark & 0x2000 == 0x2000 accept": it tests the connection mark 0x2000`,
	} {
		if i < len(got) && !strings.HasPrefix(got[i], "nftables table inet wg: "+want) {
			t.Errorf("found %s, want one of %s", got[i], want)
		}
	}
}

func (n node) markUses() (lines []string) {
	n.Helper()
	if err := n.NS.Do(func() error {
		uses, err := MarkUses(ourMarks)
		for _, u := range uses {
			lines = append(lines, u.String())
		}
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return lines
}
