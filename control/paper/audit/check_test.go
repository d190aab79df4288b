package audit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// edit changes a text; old has to be in it, once.
type edit struct{ old, new string }

func edited(t *testing.T, text string, edits ...edit) string {
	t.Helper()
	for _, e := range edits {
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%q is %d times in the dump", e.old, n)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text
}

func strs(findings []audit.Issue) (all []string) {
	for _, f := range findings {
		all = append(all, f.String())
	}
	return all
}

// TestProblems: one fault after the other in the rules of a real node, and exactly what is
// reported of it.
func TestProblems(t *testing.T) {
	const (
		portal     = `-A KUBE-SERVICES -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-SVC-OL4YPD43MBS7WVHD`
		nodePort   = `-A KUBE-NODEPORTS -p tcp -m comment --comment "default/my-nginx-service" -m tcp --dport 30080 -j KUBE-EXT-OL4YPD43MBS7WVHD`
		first      = `-A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.1.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ULMINKU752SDK7IQ`
		second     = `-A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.2.2:80" -j KUBE-SEP-S4QGHWZAQRZ7NT5K`
		masquerade = `-A KUBE-SVC-OL4YPD43MBS7WVHD ! -s 10.244.0.0/16 -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ`
		hairpin    = `-A KUBE-SEP-S4QGHWZAQRZ7NT5K -s 10.244.2.2/32 -m comment --comment "default/my-nginx-service" -j KUBE-MARK-MASQ`
		dnat       = `-A KUBE-SEP-S4QGHWZAQRZ7NT5K -p tcp -m comment --comment "default/my-nginx-service" -m tcp -j DNAT --to-destination 10.244.2.2:80`
		last       = `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`
		external   = `-A KUBE-EXT-OL4YPD43MBS7WVHD -j KUBE-SVC-OL4YPD43MBS7WVHD`
	)
	refuse := func(name, address, port string) edit {
		return edit{"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n", `-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-SERVICES -d ` + address + `/32 -p tcp -m comment --comment "` + name + ` has no endpoints" -m tcp --dport ` + port + ` -j REJECT --reject-with icmp-port-unreachable
`}
	}
	for _, c := range []struct {
		name  string
		edits []edit
		want  []string
	}{
		{"a service chain without a jump to it", []edit{{portal + "\n", ""}, {external + "\n", ""}, {nodePort + "\n", ""}, {masquerade + "\n", ""}}, []string{
			"line 52: no rule jumps to chain KUBE-EXT-OL4YPD43MBS7WVHD (masquerade traffic for default/my-nginx-service external destinations)",
			"line 71: no rule jumps to chain KUBE-SVC-OL4YPD43MBS7WVHD (default/my-nginx-service -> 10.244.1.2:80)",
		}},
		{"an endpoint's chain without a jump to it", []edit{{first + "\n", ""}}, []string{
			"line 63: no rule jumps to chain KUBE-SEP-ULMINKU752SDK7IQ (default/my-nginx-service)",
		}},
		{"no endpoints, and not refused", []edit{{first + "\n", ""}, {second + "\n", ""}}, []string{
			"line 62: no rule jumps to chain KUBE-SEP-S4QGHWZAQRZ7NT5K (default/my-nginx-service)",
			"line 63: no rule jumps to chain KUBE-SEP-ULMINKU752SDK7IQ (default/my-nginx-service)",
			"line 71: KUBE-SVC-OL4YPD43MBS7WVHD of default/my-nginx-service selects no endpoint, and no rule in table filter rejects its packets: they pass untranslated",
		}},
		{"an external chain that leads nowhere", []edit{{external + "\n", ""}, {portal + "\n", ""}, {masquerade + "\n", ""}, {first + "\n", ""}, {second + "\n", ""}, {":KUBE-SVC-OL4YPD43MBS7WVHD - [0:0]\n", ""}}, []string{
			"no chain of default/my-nginx-service selects an endpoint, and no rule in table filter rejects its packets",
			"line 62: no rule jumps to chain KUBE-SEP-S4QGHWZAQRZ7NT5K (default/my-nginx-service)",
			"line 63: no rule jumps to chain KUBE-SEP-ULMINKU752SDK7IQ (default/my-nginx-service)",
			"line 67: KUBE-SERVICES has no rule for the ClusterIP of default/my-nginx-service",
		}},
		{"a node port without a ClusterIP", []edit{{portal + "\n", ""}}, []string{"line 67: KUBE-SERVICES has no rule for the ClusterIP of default/my-nginx-service"}},
		{"endpoints, but refused", []edit{refuse("default/my-nginx-service", "10.96.118.136", "80")}, []string{
			"line 72: KUBE-SVC-OL4YPD43MBS7WVHD of default/my-nginx-service has endpoints, but a rule in table filter says that it has none",
		}},
		{"probabilities that are not equal", []edit{{first, strings.Replace(first, "0.50000000000", "0.25000000000", 1)}}, []string{
			"lines 126 and 127: KUBE-SVC-OL4YPD43MBS7WVHD gives the endpoints of default/my-nginx-service unequal shares: 25%, 75%",
		}},
		{"probabilities that do not add up", []edit{{second, strings.Replace(second, " -j ", " -m statistic --mode random --probability 0.50000000000 -j ", 1)}}, []string{
			"line 127: 25% of the flows of default/my-nginx-service get no endpoint: the last rule of KUBE-SVC-OL4YPD43MBS7WVHD has a probability, too",
		}},
		{"a rule behind the last", []edit{{first, strings.Replace(first, " -m statistic --mode random --probability 0.50000000000", "", 1)}}, []string{
			"lines 126 and 127: KUBE-SVC-OL4YPD43MBS7WVHD gives the endpoints of default/my-nginx-service unequal shares: 100%, 0%",
		}},
		{"two rules for an address", []edit{{portal, portal + "\n" + portal}}, []string{
			"lines 115 and 116: 10.96.118.136 port 80 (TCP) has 2 rules, of default/my-nginx-service: only the first is reached",
		}},
		{"two services of one address", []edit{{portal, portal + "\n" + strings.NewReplacer("KUBE-SVC-OL4YPD43MBS7WVHD", "KUBE-SVC-NPX46M4PTMTKRN6Y", "my-nginx-service", "kubernetes:https").Replace(portal)}}, []string{
			"lines 115 and 116: 10.96.118.136 port 80 (TCP) has 2 rules, of default/my-nginx-service and default/kubernetes:https: only the first is reached",
			"line 116: default/kubernetes:https has a second cluster IP, 10.96.118.136 beside 10.96.0.1",
			"line 116: default/kubernetes:https has a second port, 80 beside 443",
		}},
		{"two rules for a node port", []edit{{nodePort, nodePort + "\n" + nodePort}}, []string{
			"lines 89 and 90: node port 30080 (TCP) has 2 rules, of default/my-nginx-service: only the first is reached",
		}},
		{"a second node port", []edit{{nodePort, nodePort + "\n" + strings.Replace(nodePort, "30080", "30081", 1)}}, []string{
			"line 90: default/my-nginx-service has a second node port, 30081 beside 30080",
		}},
		{"a second cluster IP", []edit{{portal, portal + "\n" + strings.Replace(portal, "10.96.118.136", "10.96.118.137", 1)}}, []string{
			"line 116: default/my-nginx-service has a second cluster IP, 10.96.118.137 beside 10.96.118.136",
		}},
		{"a second port", []edit{{portal, portal + "\n" + strings.Replace(portal, "--dport 80", "--dport 81", 1)}}, []string{
			"line 116: default/my-nginx-service has a second port, 81 beside 80",
		}},
		{"a translation elsewhere than the hairpin rule's", []edit{{hairpin, strings.Replace(hairpin, "10.244.2.2", "10.244.2.3", 1)}}, []string{
			"lines 101 and 102: KUBE-SEP-S4QGHWZAQRZ7NT5K masquerades the packets of 10.244.2.3, but translates to 10.244.2.2:80",
		}},
		{"a translation elsewhere than in the comment", []edit{{second, strings.Replace(second, "10.244.2.2", "10.244.2.3", 1)}}, []string{
			"lines 102 and 127: the comment of default/my-nginx-service names 10.244.2.3:80, but KUBE-SEP-S4QGHWZAQRZ7NT5K translates to 10.244.2.2:80",
		}},
		{"a translation elsewhere than in all other rules", []edit{{dnat, strings.Replace(dnat, "10.244.2.2:80", "10.244.2.2:81", 1)}}, []string{
			"line 62: chain KUBE-SEP-S4QGHWZAQRZ7NT5K should be KUBE-SEP-TL2YGB44HMGLBAT4, the hash of default/my-nginx-service/tcp and 10.244.2.2:81",
			"lines 102 and 127: the comment of default/my-nginx-service names 10.244.2.2:80, but KUBE-SEP-S4QGHWZAQRZ7NT5K translates to 10.244.2.2:81",
		}},
		{"no hairpin rule", []edit{{hairpin + "\n", ""}}, []string{
			"line 101: KUBE-SEP-S4QGHWZAQRZ7NT5K does not masquerade the packets of 10.244.2.2 itself, which cannot reach itself through default/my-nginx-service",
		}},
		{"no translation", []edit{{dnat + "\n", ""}}, []string{
			"line 62: KUBE-SEP-S4QGHWZAQRZ7NT5K of default/my-nginx-service has no DNAT to one address and port",
		}},
		{"a translation of another protocol", []edit{{dnat, strings.ReplaceAll(dnat, " tcp ", " udp ")}}, []string{
			"line 102: KUBE-SEP-S4QGHWZAQRZ7NT5K translates UDP only, but default/my-nginx-service has packets of TCP: they pass untranslated",
		}},
		{"a translation of one port", []edit{{dnat, strings.Replace(dnat, " -m tcp ", " -m tcp --dport 8080 ", 1)}}, []string{
			"line 102: KUBE-SEP-S4QGHWZAQRZ7NT5K does not translate every packet of default/my-nginx-service: kube-proxy's rule has no condition but the protocol",
		}},
		{"no masquerade", []edit{{"-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully\n", ""}}, []string{
			"line 56: KUBE-POSTROUTING has no MASQUERADE: flows that should be masqueraded get no replies",
		}},
		{"no masquerade from outside", []edit{{"-A KUBE-EXT-OL4YPD43MBS7WVHD -m comment --comment \"masquerade traffic for default/my-nginx-service external destinations\" -j KUBE-MARK-MASQ\n", ""}}, []string{
			"line 52: KUBE-EXT-OL4YPD43MBS7WVHD of default/my-nginx-service masquerades nothing: replies from endpoints on other nodes do not come back here",
		}},
		{"no mark", []edit{{"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n", ""}}, []string{
			"line 54: KUBE-MARK-MASQ sets no mark: nothing is masqueraded",
		}},
		{"another mark", []edit{{"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000", "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x8000/0x8000"}}, []string{
			"line 90: KUBE-POSTROUTING matches the mark 0x4000, but KUBE-MARK-MASQ sets 0x8000",
		}},
		{"a lost mark of the masquerade", []edit{{"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN", "-A KUBE-POSTROUTING -j RETURN"}}, []string{
			"line 90: KUBE-POSTROUTING returns every packet, so that nothing is masqueraded: kube-proxy writes this rule with -m mark ! --mark, whose option is missing; an iptables version other than kube-proxy's may lose it, in the kernel or only in its output",
		}},
		{"a lost mark of forwarded packets", []edit{{"-m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT", "-m comment --comment \"kubernetes forwarding rules\" -j ACCEPT"}}, []string{
			"line 39: KUBE-FORWARD accepts every packet: kube-proxy writes this rule with -m mark --mark, whose option is missing; an iptables version other than kube-proxy's may lose it, in the kernel or only in its output",
		}},
		{"a lost state", []edit{{"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP", "-A KUBE-FORWARD -j DROP"}}, []string{
			"line 38: KUBE-FORWARD drops every packet that reaches it: kube-proxy writes this rule with -m conntrack --ctstate INVALID, whose option is missing; an iptables version other than kube-proxy's may lose it, in the kernel or only in its output",
		}},
		{"no way from outside", []edit{{"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n", ""}}, []string{
			"line 45: PREROUTING of nat does not jump to KUBE-SERVICES: packets from pods and from outside reach no service",
		}},
		{"no way from the node", []edit{{"-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n", ""}}, []string{
			"line 47: OUTPUT of nat does not jump to KUBE-SERVICES: the node's own packets reach no service",
		}},
		{"no way to the masquerade", []edit{{"-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n", ""}}, []string{
			"line 48: POSTROUTING of nat does not jump to KUBE-POSTROUTING: nothing is masqueraded",
		}},
		{"node ports not last", []edit{{portal + "\n", ""}, {last, last + "\n" + portal}}, []string{
			"line 116: KUBE-SERVICES of nat has rules after the jump to KUBE-NODEPORTS, which must be the last",
		}},
		{"no node ports", []edit{{last + "\n", ""}}, []string{
			"line 67: KUBE-SERVICES of nat does not end with a jump to KUBE-NODEPORTS: no node port is served",
		}},
		{"other pods", []edit{{masquerade, strings.Replace(masquerade, "10.244.0.0/16", "10.245.0.0/16", 1)}}, []string{
			"line 125: pods are detected by -s 10.245.0.0/16, but in most rules by -s 10.244.0.0/16",
		}},
		{"one service not masqueraded", []edit{{masquerade + "\n", ""}}, []string{
			"line 71: KUBE-SVC-OL4YPD43MBS7WVHD has no rule that masquerades flows to the ClusterIP of default/my-nginx-service, as other services have",
		}},
		{"one service masqueraded whatever the source", []edit{{masquerade, strings.Replace(masquerade, "! -s 10.244.0.0/16 ", "", 1)}}, []string{
			"line 125: of 5 rules that masquerade flows to ClusterIPs, 1 match every source",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := audit.Read(parse(t, edited(t, text(t, "kind-1.29-worker1-after"), c.edits...), decision.IPv4))
			if have := strs(node.Problems); !slices.Equal(have, c.want) {
				t.Errorf("problems\n %s\nwant\n %s", strings.Join(have, "\n "), strings.Join(c.want, "\n "))
			}
			if len(node.Gaps) > 0 {
				t.Errorf("gaps %q", node.Gaps)
			}
		})
	}
}

// TestRounding: kube-proxy gave five digits once, and gives ten today; iptables-save prints
// what the kernel keeps of them.
func TestRounding(t *testing.T) {
	for probability, equal := range map[string]bool{"0.33333333349": true, "0.33332999982": true, "0.33330000000": false, "0.3334": false} {
		spread := "-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n"
		for i, p := range []string{"-m statistic --mode random --probability " + probability + " ", "-m statistic --mode random --probability 0.50000000000 ", ""} {
			chain, ip := fmt.Sprint("KUBE-SEP-", i), fmt.Sprint("10.244.1.", i+1)
			spread += "-A KUBE-SVC-AAAAAAAAAAAAAAAA " + p + "-j " + chain + "\n-A " + chain + " -s " + ip + " -j KUBE-MARK-MASQ\n-A " + chain + " -p tcp -m tcp -j DNAT --to-destination " + ip + ":80\n"
		}
		node := audit.Read(parse(t, nat("", spread), decision.IPv4))
		if have := len(node.Problems) == 0; have != equal {
			t.Errorf("%s: problems %q", probability, node.Problems)
		}
		if !equal && !strings.Contains(node.Problems[0].Text, "unequal shares: 33.3") {
			t.Errorf("%s: problems %q", probability, node.Problems)
		}
	}
}

// TestNamesMadeUp: where no chain at all has its name, that is reported once.
func TestNamesMadeUp(t *testing.T) {
	all := text(t, "kind-1.29-worker1-after")
	for _, prefix := range []string{"KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-"} {
		all = strings.ReplaceAll(all, prefix, prefix+"X")
	}
	node := audit.Read(parse(t, all, decision.IPv4))
	want := []string{"none of the 15 chains has the name that kube-proxy would give it: names or addresses in the file are not the real ones"}
	if have := strs(node.Gaps); !slices.Equal(have, want) || len(node.Problems) > 0 {
		t.Errorf("gaps %q, problems %q, want %q", have, node.Problems, want)
	}
	if len(node.Services) != 5 {
		t.Errorf("%d services, want 5", len(node.Services))
	}
}

// without takes chains out of a table, which a listing need not have.
func without(d *iptables.Dump, table string, gone func(chain string) bool) {
	t := d.Table(table)
	t.Chains = slices.DeleteFunc(t.Chains, func(c *iptables.Chain) bool { return gone(c.Name) })
	t.Rules = slices.DeleteFunc(t.Rules, func(r *iptables.Rule) bool { return gone(r.Chain) })
}

// TestChainsNotInTheFile: missing chains are reported, and are no problem; the comments
// show endpoints all the same.
func TestChainsNotInTheFile(t *testing.T) {
	d := parse(t, text(t, "kind-1.29-worker1-after"), decision.IPv4)
	d.Tables = slices.DeleteFunc(d.Tables, func(t *iptables.Table) bool { return t.Name != "nat" })
	without(d, "nat", func(chain string) bool {
		return strings.HasPrefix(chain, "KUBE-SEP-") || chain == "KUBE-SVC-NPX46M4PTMTKRN6Y" || chain == "PREROUTING" || chain == "KUBE-POSTROUTING" || chain == "KUBE-NODEPORTS"
	})
	node := audit.Read(d)
	if len(node.Problems) > 0 {
		t.Errorf("problems %q", node.Problems)
	}
	want := []string{
		"table filter is not in the file: services without endpoints, and firewalls, are not shown",
		"the file has no chain KUBE-NODEPORTS of table nat: node ports are not shown",
		"lines 77, 111, 118, 119, 121, 122 and 4 more: 10 chains are not in the file: KUBE-POSTROUTING, KUBE-SVC-NPX46M4PTMTKRN6Y, KUBE-SEP-IT2ZTR26TO4XFPTO, KUBE-SEP-ZXMNUKOKXUTL2MK2, KUBE-SEP-N4G2XR5TDX7PQE7P and 5 more",
	}
	if have := strs(node.Gaps); !slices.Equal(have, want) {
		t.Errorf("gaps\n %s\nwant\n %s", strings.Join(have, "\n "), strings.Join(want, "\n "))
	}
	titles := make(map[string]string)
	for _, s := range node.Services {
		for _, e := range s.Endpoints {
			titles[s.Title()] += " " + e.AddrPort.String()
		}
	}
	if have := titles["default/my-nginx-service"]; have != " 10.244.1.2:80 10.244.2.2:80" {
		t.Errorf("endpoints%s", have)
	}
}

// TestSomeNamesMadeUp: where a service's chains, or those of its endpoints, have other names, names or addresses were replaced. Where
// only one of them has, its rules are not kube-proxy's.
func TestSomeNamesMadeUp(t *testing.T) {
	all := text(t, "kind-1.29-worker1-after")
	const replaced = " chains of services do not have the names that kube-proxy would give them: names or addresses in the file are not the real ones"
	for _, c := range []struct {
		old, with      string
		problems, gaps []string
	}{
		{"10.244.", "10.42.", nil, []string{"8" + replaced}},
		{"default/my-nginx-service", "shop/web", nil, []string{"4" + replaced}},
		{"10.244.2.2", "10.244.2.77", []string{"line 62: chain KUBE-SEP-S4QGHWZAQRZ7NT5K should be KUBE-SEP-HWCTUTZQSU6ZXE3F, the hash of default/my-nginx-service/tcp and 10.244.2.77:80"}, nil},
	} {
		node := audit.Read(parse(t, strings.ReplaceAll(all, c.old, c.with), decision.IPv4))
		if problems, gaps := strs(node.Problems), strs(node.Gaps); !slices.Equal(problems, c.problems) || !slices.Equal(gaps, c.gaps) {
			t.Errorf("%s: problems %q, gaps %q", c.with, problems, gaps)
		}
	}
}

// TestNoServices: why there are none.
func TestNoServices(t *testing.T) {
	const noFilter = "table filter is not in the file: services without endpoints, and firewalls, are not shown"
	for name, c := range map[string]struct {
		rules, mode string
		gaps        []string
	}{
		"IPVS": {"*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n",
			"kube-proxy in IPVS mode wrote these rules (ipset KUBE-CLUSTER-IP, line 4): virtual servers of IPVS translate to the endpoints, and rules do not show them; ipvsadm -Sn lists them", nil},
		"userspace": {"*nat\n:KUBE-PORTALS-HOST - [0:0]\n-A OUTPUT -j KUBE-PORTALS-HOST\nCOMMIT\n",
			"kube-proxy in userspace mode wrote these rules (chain KUBE-PORTALS-HOST, line 2): they redirect to ports of kube-proxy itself, which selects the endpoints; rules do not show them", nil},
		"no kube-proxy": {"*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "", []string{
			noFilter, "table nat has no chain KUBE-SERVICES: kube-proxy did not write rules in iptables mode on this node, or the file does not have them",
		}},
		"no nat": {"*filter\n-A INPUT -j ACCEPT\nCOMMIT\n", "", []string{
			"table nat is not in the file: services with endpoints are not shown",
			"the file has no chain KUBE-SERVICES of table filter: services without endpoints are not shown",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := audit.Read(parse(t, c.rules, decision.IPv4))
			if len(node.Problems) > 0 || node.OtherMode() != c.mode || !slices.Equal(slices.Sorted(slices.Values(strs(node.Gaps))), slices.Sorted(slices.Values(c.gaps))) {
				t.Errorf("problems %q, gaps %q, %q; want gaps %q, %q", node.Problems, node.Gaps, node.OtherMode(), c.gaps, c.mode)
			}
		})
	}
}
