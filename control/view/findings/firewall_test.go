package findings

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// flowTo is a flow of a Pod on node-a to an endpoint on a node.
func flowTo(service, endpoint, node string, state flow.State) *flow.Record {
	return &flow.Record{
		Node: "node-a", Service: service, Protocol: "TCP", Verdict: "dnat", Source: "10.244.1.9:4000", Destination: "10.96.0.20:80", Endpoint: endpoint, EndpointNode: node,
		Life: &flow.Life{State: state, Answered: state == flow.Answered},
	}
}

// unknown are rules that are not known.
const unknown = "?"

// firewalls are nodes whose table filter has these rules.
func firewalls(rules map[string]string) Firewall {
	return func(_ context.Context, node string, to []netip.Addr) (*noderules.Rules, error) {
		text, ok := rules[node]
		if !ok {
			return nil, errors.New("the node is away")
		}
		if text == unknown {
			return nil, nil
		}
		r := &noderules.Rules{Listings: []noderules.Listing{{Program: "iptables-nft-save", Text: "*filter\n:FORWARD ACCEPT [0:0]\n" + text + "\nCOMMIT\n"}}}
		r.Network.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
		for _, a := range to {
			r.Network.Routes = append(r.Network.Routes, netfilter.Route{Destination: netip.PrefixFrom(a, a.BitLen()), Interface: "eth0"})
		}
		return r, nil
	}
}

// TestDropped: one finding for each rule that drops flows without an answer, and has counted packets.
func TestDropped(t *testing.T) {
	const rule = "-A FORWARD -d 10.244.2.0/24 -j DROP"
	web := flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Unanswered)
	answered := flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Answered)
	db := flowTo("shop/db", "10.244.2.3:5432", "node-b", flow.Unanswered)
	const both = "NFQ063 node node-a drops flows to shop/db, shop/web:http after they were translated: rule " + rule + " (iptables-nft, table filter) matches 3 recent flows without an answer, to 10.244.2.2:8080, 10.244.2.3:5432; it has counted 9 packets"
	for name, tt := range map[string]struct {
		rules   map[string]string
		records []*flow.Record
		want    []string // beginnings
	}{
		"no flows":            {nil, nil, nil},
		"all are answered":    {nil, []*flow.Record{answered}, nil},
		"two services":        {map[string]string{"node-a": "[9:540] " + rule, "node-b": ""}, []*flow.Record{web, db, web}, []string{both}},
		"answered since":      {map[string]string{"node-a": "[9:540] " + rule, "node-b": ""}, []*flow.Record{web, answered}, nil},
		"answered before":     {map[string]string{"node-a": "[1:60] " + rule, "node-b": ""}, []*flow.Record{answered, web}, []string{"NFQ063 node node-a drops flows to shop/web:http after they were translated: rule " + rule + " (iptables-nft, table filter) matches 1 recent flow without an answer, to 10.244.2.2:8080; it has counted 1 packet"}},
		"the count is 0":      {map[string]string{"node-a": "[0:0] " + rule, "node-b": ""}, []*flow.Record{web}, nil},
		"another destination": {map[string]string{"node-a": "[9:540] -A FORWARD -d 10.244.3.0/24 -j DROP", "node-b": ""}, []*flow.Record{web}, nil},
		"the other node":      {map[string]string{"node-a": "", "node-b": "[2:120] " + rule}, []*flow.Record{web}, []string{"NFQ063 node node-b drops flows to shop/web:http"}},
		"each node":           {map[string]string{"node-a": "[2:120] " + rule, "node-b": "[2:120] " + rule}, []*flow.Record{web}, []string{"NFQ063 node node-a drops", "NFQ063 node node-b drops"}},
		"replies":             {map[string]string{"node-a": "[2:120] -A FORWARD -s 10.244.2.2/32 -p tcp -j REJECT --reject-with tcp-reset", "node-b": ""}, []*flow.Record{web}, []string{"NFQ063 node node-a rejects the replies of flows to shop/web:http after they were translated: rule -A FORWARD -s 10.244.2.2/32 -p tcp -j REJECT --reject-with tcp-reset"}},
		"a node is away":      {map[string]string{"node-a": "[9:540] " + rule}, []*flow.Record{web}, []string{"NFQ061 recent flows got no answer, and not all firewall rules of node node-b can be checked: the node is away", "NFQ063 node node-a drops"}},
		"another machine":     {map[string]string{"node-a": "[9:540] " + rule, "node-b": unknown}, []*flow.Record{web}, []string{"NFQ063 node node-a drops"}},
		"damaged rules":       {map[string]string{"node-a": "[9:540] " + rule, "node-b": "-A NOWHERE -j DROP"}, []*flow.Record{web}, []string{"NFQ061 recent flows got no answer, and not all firewall rules of node node-b can be checked: iptables-nft-save: ", "NFQ063 node node-a drops"}},
	} {
		t.Run(name, func(t *testing.T) {
			found, blamed, _ := look(t.Context(), firewalls(tt.rules), tt.records, nil, func() places { return places{} })
			ok := len(found) == len(tt.want)
			for i := 0; ok && i < len(found); i++ {
				ok = strings.HasPrefix(string(found[i].Code)+" "+found[i].Text, tt.want[i]) && found[i].Do != "" && strings.HasPrefix(found[i].Object, "Node ")
			}
			if !ok {
				t.Errorf("found %+v\nwant %q", found, tt.want)
			}
			for _, b := range blamed {
				if b.Code != diagnose.HostDropsFlows || !strings.Contains(b.Text, b.service) {
					t.Errorf("flows to %s: %+v", b.service, b.Finding)
				}
			}
		})
	}
}

// TestFlowOf: what the packet is like when it meets the rules.
func TestFlowOf(t *testing.T) {
	r := flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Unanswered)
	r.Masquerade, r.MasqueradeReason, r.MasqueradeAddress = true, "external", "172.20.0.2"
	if f, ok := flowOf(r); !ok || f.Seen.String() != "172.20.0.2:4000" || f.Mark == 0 {
		t.Errorf("masqueraded: %+v", f)
	}
	r.MasqueradeReason, r.Life.SeenSource = flow.HostMasquerade, "172.20.0.2:61000"
	f, ok := flowOf(r)
	if !ok || f.Seen.String() != "172.20.0.2:61000" || f.Mark != 0 {
		t.Errorf("by the host's own rules: %+v", f)
	}
	if on := forwarded(f); on.Source != f.Seen || on.Destination != f.Endpoint || on.Local || on.Mark != 0 {
		t.Errorf("on the endpoint's node: %+v", on)
	}
	r.Endpoint = "gone"
	if _, ok := flowOf(r); ok {
		t.Error("a flow without an endpoint")
	}
}

// TestUnansweredOf: an answer says of earlier flows like it that at most some of them are dropped.
func TestUnansweredOf(t *testing.T) {
	lost, answered := flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Unanswered), flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Answered)
	late := flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Answered)
	late.Life.Repeated = 1
	for name, tt := range map[string]struct {
		records []*flow.Record
		want    string
	}{
		"none answered":    {[]*flow.Record{lost, lost}, "2 "},
		"answered before":  {[]*flow.Record{answered, lost}, "1 "},
		"answered later":   {[]*flow.Record{lost, lost, answered}, "2 sometimes "},
		"lost again":       {[]*flow.Record{lost, answered, lost}, "1 sometimes 1 "},
		"several times":    {[]*flow.Record{lost, answered, lost, late}, "3 sometimes "},
		"all are answered": {[]*flow.Record{answered, answered}, ""},
	} {
		got := ""
		for _, u := range unansweredOf(tt.records) {
			got += fmt.Sprintf("%d ", u.flows)
			if u.sometimes {
				got += "sometimes "
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// behind is an observer whose flows are these.
type behind struct {
	observe.Observer
	records []*flow.Record
}

func (b *behind) Flows(_ context.Context, _ observe.FlowQuery, each func(observe.Item) error) error {
	for _, r := range b.records {
		if err := each(observe.Item{Record: r}); err != nil {
			return err
		}
	}
	return nil
}

// TestBlame: the rule is the finding and the answer, not the endpoint; an annotation of the Node leaves it out.
func TestBlame(t *testing.T) {
	objects, err := manifest.Load([]string{"../../../control/paper/diagnose/testdata/shop.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	o := &behind{observetest.NewCluster(), []*flow.Record{
		flowTo("shop/web:http", "10.244.1.2:8080", "node-a", flow.Unanswered), flowTo("shop/web:http", "10.244.2.2:8080", "node-b", flow.Unanswered),
	}}
	d := &Doctor{Observer: o, Objects: func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		return objects, servicetable.NodeConfig{}, nil
	}}
	codes := func() (list []diagnose.Code) {
		t.Helper()
		found, err := d.Findings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found.Findings {
			if f.Code != diagnose.Uneven && f.Ignored == "" { // of the observer
				list = append(list, f.Code)
			}
		}
		return list
	}
	cause := func() diagnose.Code {
		t.Helper()
		a, err := d.Why(t.Context(), diagnose.Question{From: "shop/client", To: "web.shop:80"})
		if err != nil || a.Works {
			t.Fatalf("%+v, %v", a, err)
		}
		return a.Cause.Code
	}
	silent := []diagnose.Code{diagnose.Silent, diagnose.Silent}
	if got := codes(); !slices.Equal(got, silent) || cause() != diagnose.Silent {
		t.Errorf("the rules are not known: %v, %s", got, cause())
	}
	d.Firewall = firewalls(map[string]string{"node-a": "", "node-b": ""})
	if got := codes(); !slices.Equal(got, silent) || cause() != diagnose.Silent {
		t.Errorf("no rule drops: %v, %s", got, cause())
	}
	d.Firewall = firewalls(map[string]string{"node-a": "[4:240] -A FORWARD -d 10.244.0.0/16 -j DROP", "node-b": ""})
	if got := codes(); !slices.Equal(got, []diagnose.Code{diagnose.HostDropsFlows}) || cause() != diagnose.HostDropsFlows {
		t.Errorf("a rule drops: %v, %s", got, cause())
	}
	objects.Nodes[0].Annotations = map[string]string{diagnose.IgnoreAnnotation: "NFQ063"}
	if got := codes(); len(got) > 0 || cause() != diagnose.HostDropsFlows {
		t.Errorf("it is intended: %v, %s", got, cause())
	}
}
