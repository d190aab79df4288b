package audit_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// compared is the comparison of two dumps as text.
func compared(t *testing.T, before, after string, all bool) (*audit.Comparison, string) {
	t.Helper()
	c := audit.Compare(parse(t, before, decision.IPv4), parse(t, after, decision.IPv4), all)
	var b bytes.Buffer
	if err := c.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	return c, b.String()
}

// TestCompareNodes: the NodePort service of a real node appears.
func TestCompareNodes(t *testing.T) {
	_, have := compared(t, text(t, "kind-1.29-worker2-before"), text(t, "kind-1.29-worker2-after"), false)
	want := `Services
  ~ default/kubernetes:https  10.96.0.1 443/TCP
      - endpoint 172.20.0.3:6443
      + endpoint 172.20.0.4:6443 (all flows)
  + default/my-nginx-service  10.96.118.136 80:30080/TCP
      node port 30080
      endpoints 10.244.1.2:80 (1/2), 10.244.2.2:80 (1/2)

Table nat
    DOCKER_OUTPUT
      - 76  -A DOCKER_OUTPUT -d 172.20.0.1/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:44713
      - 77  -A DOCKER_OUTPUT -d 172.20.0.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:55656
      + 80  -A DOCKER_OUTPUT -d 172.20.0.1/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:43289
      + 81  -A DOCKER_OUTPUT -d 172.20.0.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:41258
    DOCKER_POSTROUTING
      - 78  -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 44713 -j SNAT --to-source 172.20.0.1:53
      - 79  -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 55656 -j SNAT --to-source 172.20.0.1:53
      + 82  -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 43289 -j SNAT --to-source 172.20.0.1:53
      + 83  -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 41258 -j SNAT --to-source 172.20.0.1:53
`
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
	c, _ := compared(t, text(t, "kind-1.29-worker2-before"), text(t, "kind-1.29-worker2-after"), true)
	rules := 0
	for _, table := range c.Tables {
		for _, chain := range table.Chains {
			rules += len(chain.Rules)
		}
	}
	if want := 8 + 6 + 11; rules != want { // Docker's, those of two endpoints, and of a service
		t.Errorf("%d rules differ in all, want %d", rules, want)
	}
}

// TestCompareEdits: one change after the other in the rules of a real node.
func TestCompareEdits(t *testing.T) {
	const (
		portal     = `-A KUBE-SERVICES -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-SVC-OL4YPD43MBS7WVHD`
		dns        = `-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`
		nodePort   = `-A KUBE-NODEPORTS -p tcp -m comment --comment "default/my-nginx-service" -m tcp --dport 30080 -j KUBE-EXT-OL4YPD43MBS7WVHD`
		first      = `-A KUBE-SVC-OL4YPD43MBS7WVHD -m comment --comment "default/my-nginx-service -> 10.244.1.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ULMINKU752SDK7IQ`
		masquerade = `-A KUBE-SVC-OL4YPD43MBS7WVHD ! -s 10.244.0.0/16 -d 10.96.118.136/32 -p tcp -m comment --comment "default/my-nginx-service cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ`
		hairpin    = `-A KUBE-SEP-S4QGHWZAQRZ7NT5K -s 10.244.2.2/32 -m comment --comment "default/my-nginx-service" -j KUBE-MARK-MASQ`
		balanced   = ` -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-ULMINKU752SDK7IQ --mask 255.255.255.255 --rsource -j KUBE-SEP-ULMINKU752SDK7IQ`
	)
	const head = "Services\n  ~ default/my-nginx-service  10.96.118.136 80:30080/TCP\n      "
	for _, c := range []struct {
		name  string
		edits []edit
		want  string
	}{
		{"nothing but the time and a counter", []edit{{":OUTPUT ACCEPT [56:3714]", ":OUTPUT ACCEPT [57:3800]"}}, "No difference.\n"},
		{"node port", []edit{{nodePort, strings.Replace(nodePort, "30080", "30081", 1)}},
			"Services\n  ~ default/my-nginx-service  10.96.118.136 80:30081/TCP\n      ~ node port 30080 -> 30081\n"},
		{"shares", []edit{{first, strings.Replace(first, "0.50000000000", "0.25000000000", 1)}},
			head + "~ share of 10.244.1.2:80: 1/2 -> 1/4\n      ~ share of 10.244.2.2:80: 1/2 -> 75%\n"},
		{"affinity", []edit{{first, strings.Replace(first, " -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ULMINKU752SDK7IQ", balanced, 1) + "\n" + first}},
			head + "+ session affinity ClientIP 10800s\n"},
		{"the order of services", []edit{{portal + "\n", ""}, {dns, portal + "\n" + dns}},
			"No difference, except for the order of services' rules (1 moved), which has no effect (--all shows it).\n"},
		{"a masquerade that the services do not show", []edit{{masquerade + "\n", ""}},
			"Table nat\n    KUBE-SVC-OL4YPD43MBS7WVHD\n      - 125  " + masquerade + "\n"},
		{"so beside a change of the service", []edit{{masquerade + "\n", ""}, {nodePort, strings.Replace(nodePort, "30080", "30081", 1)}},
			"Services\n  ~ default/my-nginx-service  10.96.118.136 80:30081/TCP\n      ~ node port 30080 -> 30081\n\nTable nat\n    KUBE-SVC-OL4YPD43MBS7WVHD\n      - 125  " + masquerade + "\n"},
		{"a hairpin rule beside a change of the service", []edit{{hairpin + "\n", ""}, {nodePort, strings.Replace(nodePort, "30080", "30081", 1)}},
			"Services\n  ~ default/my-nginx-service  10.96.118.136 80:30081/TCP\n      ~ node port 30080 -> 30081\n\nTable nat\n    KUBE-SEP-S4QGHWZAQRZ7NT5K\n      - 101  " + hairpin + "\n"},
		{"another program's rule among a service's", []edit{{first, "-A KUBE-SVC-OL4YPD43MBS7WVHD -s 192.0.2.1/32 -j RETURN\n" + first}},
			"Table nat\n    KUBE-SVC-OL4YPD43MBS7WVHD\n      + 126  -A KUBE-SVC-OL4YPD43MBS7WVHD -s 192.0.2.1/32 -j RETURN\n"},
		{"policy and chain", []edit{{":FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-EXTERNAL", ":FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:OURS - [0:0]\n:KUBE-EXTERNAL"}},
			"Table filter\n  ~ FORWARD: policy ACCEPT -> DROP\n  + OURS\n"},
		{"the proxy", []edit{{"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000", "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x8000/0x8000"}},
			"Configuration of the proxy\n  ~ masquerade mark 0x4000 -> 0x8000\n\nTable nat\n    KUBE-MARK-MASQ\n      - 88  -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n      + 88  -A KUBE-MARK-MASQ -j MARK --set-xmark 0x8000/0x8000\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := text(t, "kind-1.29-worker1-after")
			comparison, have := compared(t, before, edited(t, before, c.edits...), false)
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("(-want +have)\n%s", diff)
			}
			if same := strings.HasPrefix(c.want, "No difference"); comparison.Same() != same {
				t.Errorf("same: %t", comparison.Same())
			}
			// There is always a difference if all are reported, unless there is none.
			if c, _ := compared(t, before, edited(t, before, c.edits...), true); c.Same() != (have == "No difference.\n") {
				t.Errorf("same in all: %t", c.Same())
			}
		})
	}
}

// TestCompareServices: the report about a service when its properties change.
func TestCompareServices(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(300) {
		before, after := newCluster(seed), newCluster(seed)
		// Another seed goes on from the same cluster: the same names, other properties.
		after.objects.Services, after.objects.EndpointSlices = nil, nil
		for i := range before.objects.Services {
			after.service(i)
		}
		a, _ := servicetable.Table(before.objects, before.config)
		b, _ := servicetable.Table(after.objects, after.config)
		c, _ := compared(t, render(t, a, decision.IPv4), render(t, b, decision.IPv4), false)
		if len(c.Proxy) > 0 {
			t.Fatalf("seed %d: the proxy: %v", seed, c.Proxy)
		}
		// Services show all differences, except that the order has changed.
		for _, table := range c.Tables {
			for _, chain := range table.Chains {
				for _, r := range chain.Rules {
					if r.Change != audit.Moved {
						t.Fatalf("seed %d: untold in %s %s: %s %s\nof %+v", seed, table.Name, chain.Name, r.Change, r.Rule, c.Services)
					}
				}
			}
		}
		for _, s := range c.Services {
			for _, d := range s.Details {
				words := strings.Fields(d.Text)
				seen[string(d.Change)+" "+strings.Join(words[:min(2, len(words))], " ")] = true
			}
		}
	}
	for _, want := range []string{
		"added node port", "removed node port", "added external IP", "removed external IP", "added load balancer", "removed load balancer",
		"added source range", "removed source range", "changed internal traffic", "changed external traffic", "added session affinity", "removed session affinity",
		"added health check", "removed health check", "added endpoint 10.244.0.1:8080", "removed endpoint 10.244.0.1:8080", "changed share of",
		"changed refused: it", "changed no longer", "changed dropped under",
	} {
		if !seen[want] {
			t.Errorf("%q never came up", want)
		}
	}
}

// TestCompareRefused: of a service that loses its endpoints, nothing is reported that its rules
// only do not show any more.
func TestCompareRefused(t *testing.T) {
	c := newCluster(0)
	c.objects.Services, c.objects.EndpointSlices = nil, nil
	c.config = servicetable.NodeConfig{Name: "node-1"}
	for c.objects.Services == nil || c.objects.Services[0].Spec.SessionAffinity != "ClientIP" || *c.objects.Services[0].Spec.InternalTrafficPolicy != "Local" ||
		len(c.objects.Services[0].Spec.Ports) != 1 || len(c.objects.Services[0].Spec.ClusterIPs) != 2 || len(c.objects.EndpointSlices) == 0 || len(c.objects.EndpointSlices[0].Ports) == 0 || c.objects.EndpointSlices[0].AddressType != "IPv4" {
		c.objects.Services, c.objects.EndpointSlices = nil, nil
		c.service(0)
	}
	before, _ := servicetable.Table(c.objects, c.config)
	c.objects.EndpointSlices = nil
	after, _ := servicetable.Table(c.objects, c.config)
	comparison, _ := compared(t, render(t, before, decision.IPv4), render(t, after, decision.IPv4), false)
	if len(comparison.Services) != 1 || len(comparison.Tables) > 0 {
		t.Fatalf("services %+v, tables %+v", comparison.Services, comparison.Tables)
	}
	refused := 0
	for _, d := range comparison.Services[0].Details {
		switch {
		case d.Text == "refused: it has no endpoints anymore":
			refused++
		case strings.HasPrefix(d.Text, "endpoint "), d.Text == "no longer dropped under policy Local":
		default:
			t.Errorf("got: %+v", d)
		}
	}
	if refused != 1 {
		t.Errorf("%+v", comparison.Services[0].Details)
	}
}
