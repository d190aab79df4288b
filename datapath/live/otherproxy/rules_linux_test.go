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

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// notes receive changes as text.
type notes func(string, time.Time)

func (n notes) RuleChanged(chain, endpoint string, leads bool, at time.Time) {
	n(fmt.Sprint(chain, " ", endpoint, " ", leads), at)
}

func (n notes) RulesReplaced(chain string, f decision.Family, endpoints []string, at time.Time) {
	slices.Sort(endpoints)
	n(fmt.Sprint(chain, " ", f, " ", endpoints), at)
}

func (n notes) RulesMissed() { n("missed", time.Now()) }

// TestRules: what the programs of both modes of kube-proxy write is a change if the chain of a service port leads to an
// endpoint that it did not lead to before, or the other way round, and not if rules are replaced.
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
	const chain, other, affinity = "service-AAAAAAAA-default/web/tcp/http", "local-BBBBBBBB-default/web/tcp/dns", "service-CCCCCCCC-default/old/tcp/http"
	rule := func(family, chain, endpoints string) string {
		return fmt.Sprintf("add rule %s kube-proxy %s meta l4proto tcp dnat %[1]s addr . port to numgen random mod 2 map { %[3]s }\n", family, chain, endpoints)
	}
	// Where rules in force before lead is not read.
	input := "add table ip kube-proxy\nadd table ip6 kube-proxy\nadd chain ip kube-proxy " + chain + "\nadd chain ip6 kube-proxy " + chain + "\n" + rule("ip", chain, "0 : 10.244.1.2 . 8080, 1 : 10.244.1.3 . 8080")
	if _, err := n.Run(input, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	var rules *Rules
	if err := n.Do(func() (err error) { rules, err = OpenRules(); return err }); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	changes, ended := make(chan string), make(chan error)
	began := time.Now()
	go func() {
		ended <- rules.Run(ctx, notes(func(change string, at time.Time) {
			if at.Before(began) || at.After(time.Now()) {
				t.Errorf("at %s", at)
			}
			changes <- change
		}))
	}()
	const svc = "KUBE-SVC-AAAAAAAAAAAAAAAA"
	restore := func(rules ...string) string {
		return "*nat\n:" + svc + " - [0:0]\n:KUBE-SEP-A - [0:0]\n:KUBE-SEP-B - [0:0]\n-A KUBE-SEP-A -p tcp -j RETURN\n" + strings.Join(rules, "\n") + "\nCOMMIT\n"
	}
	const half, rest = "-A " + svc + " -m comment --comment half -m statistic --mode random --probability 0.5 -j KUBE-SEP-A", "-A " + svc + " -m comment --comment rest -j KUBE-SEP-B"
	for _, tt := range []struct {
		tool, input string
		want        []string
	}{
		{"nft -f -", "flush chain ip kube-proxy " + chain + "\n" + rule("ip", chain, "0 : 10.244.1.3 . 8080, 1 : 10.244.1.2 . 8080") + rule("ip6", chain, "0 : fd00::2 . 8080"),
			[]string{chain + " IPv4 [10.244.1.2/8080 10.244.1.3/8080]", chain + " fd00..2/8080 true"}},
		{"nft -f -", "flush chain ip kube-proxy " + chain + "\n" + rule("ip", chain, "0 : 10.244.1.3 . 8080, 1 : 10.244.1.4 . 8080"), []string{chain + " 10.244.1.2/8080 false", chain + " 10.244.1.4/8080 true"}},
		// The same endpoints in another order, and another service port.
		{"nft -f -", "flush chain ip kube-proxy " + chain + "\n" + rule("ip", chain, "0 : 10.244.1.4 . 8080, 1 : 10.244.1.3 . 8080") +
			"add chain ip kube-proxy " + other + "\n" + rule("ip", other, "0 : 10.244.1.3 . 53"), []string{other + " 10.244.1.3/53 true"}},
		{"nft -f -", rule("ip6", chain, "0 : fd00::1 . 8080"), []string{chain + " fd00..1/8080 true"}},
		{"nft -f -", "flush chain ip kube-proxy " + chain, []string{chain + " 10.244.1.3/8080 false", chain + " 10.244.1.4/8080 false"}},
		// With session affinity, or before Kubernetes 1.36, endpoints have chains.
		{"nft -f -", "add set ip kube-proxy affinity-D { type ipv4_addr; }\nadd chain ip kube-proxy endpoint-D__10.244.1.2/8080\nadd chain ip kube-proxy " + affinity + "\n" +
			"add rule ip kube-proxy " + affinity + " ip saddr @affinity-D goto endpoint-D__10.244.1.2/8080\n" +
			"add rule ip kube-proxy " + affinity + " numgen random mod 1 vmap { 0 : goto endpoint-D__10.244.1.2/8080 }", []string{affinity + " 10.244.1.2/8080 true"}},
		{"nft -f -", "flush chain ip kube-proxy " + affinity, []string{affinity + " 10.244.1.2/8080 false"}},
		{"iptables-nft-restore --noflush", restore(half, rest), []string{svc + " KUBE-SEP-A true", svc + " KUBE-SEP-B true"}},
		{"iptables-nft-restore --noflush", restore(half, rest), nil},
		{"iptables-nft-restore --noflush", restore(rest), []string{svc + " KUBE-SEP-A false"}},
		{"ip6tables-nft-restore --noflush", strings.ReplaceAll(restore(rest), "KUBE-SEP-B", "KUBE-SEP-C"), []string{svc + " KUBE-SEP-C true"}},
		// Another program's, whose end shows that there was nothing before.
		{"nft -f -", "add table ip nat2; add chain ip nat2 KUBE-SVC-B; add chain ip nat2 KUBE-SEP-B; add rule ip nat2 KUBE-SVC-B jump KUBE-SEP-B; flush chain ip kube-proxy " + other, []string{other + " 10.244.1.3/53 false"}},
	} {
		tool := strings.Fields(tt.tool)
		if _, err := n.Run(tt.input, tool[0], tool[1:]...); err != nil {
			t.Fatal(err)
		}
		var got []string
		for range tt.want { // what is one too many, the next case gets
			got = append(got, <-changes)
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s %q: got %q, want %q", tt.tool, tt.input, got, tt.want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(rules.maps) != 2 {
		t.Errorf("maps of rules that are gone: %v", rules.maps)
	}
}

// TestPartialTransaction: what was dropped of a transaction makes the rest worthless, and not that of the next one.
func TestPartialTransaction(t *testing.T) {
	event := func(kind int, attributes nft.Encode) nft.Event {
		data, err := nft.Data(unix.NFPROTO_IPV4, attributes)
		if err != nil {
			t.Fatal(err)
		}
		e, err := nft.EventOf(netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}, Data: data})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	rule := event(unix.NFT_MSG_NEWRULE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, "nat")
		e.String(unix.NFTA_RULE_CHAIN, "KUBE-SVC-A")
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
				e.String(unix.NFTA_EXPR_NAME, "immediate")
				e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
					e.Nested(unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) error {
						e.Nested(unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) error {
							e.String(unix.NFTA_VERDICT_CHAIN, "KUBE-SEP-A")
							return nil
						})
						return nil
					})
					return nil
				})
				return nil
			})
			return nil
		})
	})
	var got []string
	r := newRules(nil)
	r.maps[place{unix.NFPROTO_IPV4, "__map1"}] = []string{"KUBE-SEP-A"}
	r.missed(notes(func(string, time.Time) {}))
	if len(r.maps) != 0 {
		t.Errorf("the maps are known, although their changes may have been dropped: %v", r.maps)
	}
	take := func(e nft.Event) {
		r.take(e, time.Now(), notes(func(change string, _ time.Time) { got = append(got, change) }))
	}
	for i := range 2 {
		take(rule)
		take(event(unix.NFT_MSG_NEWGEN, nil))
		if len(got) != i {
			t.Errorf("transaction %d: %v", i, got)
		}
	}
	for n := range rule.Attributes {
		take(nft.Event{Family: rule.Family, Kind: rule.Kind, Attributes: rule.Attributes[:n]})
	}
	if len(r.links) != 0 {
		t.Errorf("malformed messages: %v", r.links)
	}
}
