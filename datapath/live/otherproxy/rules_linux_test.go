package otherproxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestRules: what the programs of both modes of kube-proxy write is a change if a chain gets its first rules or loses all,
// and not if they are replaced.
func TestRules(t *testing.T) {
	netnstest.Require(t)
	for _, tool := range []string{"nft", "iptables-nft-restore", "ip6tables-nft-restore"} {
		netnstest.RequireTool(t, tool)
	}
	n, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	var rules *Rules
	if err := n.Do(func() (err error) { rules, err = OpenRules(); return err }); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	changes, ended := make(chan []RuleChange), make(chan error)
	go func() {
		ended <- rules.Run(ctx, func(list []RuleChange) { changes <- list }, func() { t.Error("missed") })
	}()
	const chain, v6 = "endpoint-SVLGPL42-default/web/tcp/http__10.244.1.2/8080", "endpoint-AAAAAAAA-default/web/tcp/http__fd00..1/8080"
	sep := func(rules ...string) string {
		return "*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\n-A KUBE-SVC-AAAAAAAAAAAAAAAA -p tcp -j RETURN\n" + strings.Join(rules, "\n") + "\nCOMMIT\n"
	}
	const dnat = "-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination "
	began := time.Now()
	for _, tt := range []struct{ tool, input, want string }{
		{"nft -f -", "add table ip kube-proxy\nadd chain ip kube-proxy " + chain + "\nadd rule ip kube-proxy " + chain + " meta l4proto tcp dnat to 10.244.1.2:8080", chain + " true"},
		{"nft -f -", "add chain ip kube-proxy service-x\nadd rule ip kube-proxy service-x accept\nflush chain ip kube-proxy " + chain + "\nadd rule ip kube-proxy " + chain + " meta l4proto tcp dnat to 10.244.1.2:8080", ""},
		{"nft -f -", "flush chain ip kube-proxy " + chain, chain + " false"},
		{"nft -f -", "delete chain ip kube-proxy " + chain, ""},
		{"nft -f -", "add table ip6 kube-proxy\nadd chain ip6 kube-proxy " + v6 + "\nadd rule ip6 kube-proxy " + v6 + " meta l4proto tcp dnat to [fd00::1]:8080", v6 + " true"},
		{"iptables-nft-restore --noflush", sep(dnat + "10.244.1.2:8080"), "KUBE-SEP-AAAAAAAAAAAAAAAA true"},
		{"iptables-nft-restore --noflush", sep(dnat + "10.244.1.2:8080"), ""},
		{"iptables-nft-restore --noflush", sep("-X KUBE-SEP-AAAAAAAAAAAAAAAA"), "KUBE-SEP-AAAAAAAAAAAAAAAA false"},
		{"ip6tables-nft-restore --noflush", sep(dnat + "[fd00::1]:8080"), "KUBE-SEP-AAAAAAAAAAAAAAAA true"},
		// Another program's, whose end shows that there was nothing before.
		{"nft -f -", "add table ip nat2; add chain ip nat2 KUBE-SEP-B; add rule ip nat2 KUBE-SEP-B accept; flush chain ip6 kube-proxy " + v6, v6 + " false"},
	} {
		tool := strings.Fields(tt.tool)
		if _, err := n.Run(tt.input, tool[0], tool[1:]...); err != nil {
			t.Fatal(err)
		}
		if tt.want == "" {
			continue // or the next one gets it
		}
		var got []string
		for _, c := range <-changes {
			got = append(got, fmt.Sprint(c.Chain, " ", c.Filled))
			if c.At.Before(began) || c.At.After(time.Now()) {
				t.Errorf("at %s", c.At)
			}
		}
		if !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%s %q: got %q, want %q", tt.tool, tt.input, got, tt.want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPartialTransaction: what was dropped of a transaction makes the rest worthless, and not that of the next one.
func TestPartialTransaction(t *testing.T) {
	message := func(kind int) netlink.Message {
		e := netlink.NewAttributeEncoder()
		e.String(unix.NFTA_RULE_TABLE, "kube-proxy")
		e.String(unix.NFTA_RULE_CHAIN, "endpoint-a")
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}, Data: append(make([]byte, nfgenmsgLength), data...)}
	}
	tr, now := transaction{partial: true}, time.Now()
	for i, want := range []int{0, 1} {
		tr.take(message(unix.NFT_MSG_NEWRULE), now)
		if list := tr.take(message(unix.NFT_MSG_NEWGEN), now); len(list) != want {
			t.Errorf("transaction %d: %v", i, list)
		}
	}
	tr.take(netlink.Message{Header: message(unix.NFT_MSG_NEWRULE).Header, Data: []byte{1}}, now)
	tr.take(netlink.Message{Header: message(unix.NFT_MSG_NEWRULE).Header, Data: make([]byte, nfgenmsgLength+3)}, now)
	if len(tr.chains) != 0 {
		t.Errorf("malformed messages: %v", tr.chains)
	}
}
