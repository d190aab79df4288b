package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// hostSource is a host with rules of nat POSTROUTING that stay as they are.
type hostSource []*rules.Rule

func (s hostSource) Rules() (*hostnat.Ruleset, error) {
	table := &hostnat.Table{Name: "nat", Base: &rules.Chain{Name: "POSTROUTING", Rules: s}}
	return &hostnat.Ruleset{Tables: map[decision.Family][]*hostnat.Table{decision.IPv4: {table}}}, nil
}

func (hostSource) Out(netip.Addr) (string, error) { return "eth0", nil }

func (hostSource) Host() (*hostnat.Host, error) {
	h := new(hostnat.Host)
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	return h, nil
}

func hostRule(steps ...rules.Step) *rules.Rule {
	return &rules.Rule{Chain: "POSTROUTING", Steps: steps}
}

// from and to are networks of IPv4.
func from(network string) rules.Compare { return in(network, 12) }
func to(network string) rules.Compare   { return in(network, 16) }

func in(network string, offset int) rules.Compare {
	p := netip.MustParsePrefix(network)
	mask := net.CIDRMask(p.Bits(), 32)
	return rules.Compare{
		Values: []rules.Value{rules.Masked{Of: rules.Payload{Offset: offset, ByteSize: 4}, Mask: mask}}, Ranges: []rules.Range{rules.Exactly(p.Addr().AsSlice())},
	}
}

var masquerade = rules.NAT{Kind: rules.Masquerade}

func (hostSource) Watch(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return nil
}

// TestWorkerAppliesTheHostsRules: what we translate and do not masquerade ourselves gets the
// source that the host's own rules would have given it, and the record shows it.
func TestWorkerAppliesTheHostsRules(t *testing.T) {
	address := func(a string) rules.Value { return rules.Const(netip.MustParseAddr(a).AsSlice()) }
	tcp := rules.Compare{Values: []rules.Value{rules.Meta{Key: "l4proto", ByteSize: 1}}, Ranges: []rules.Range{rules.Exactly([]byte{6})}}
	others := from("10.244.0.0/16")
	others.Negated = true
	rules := hostSource{
		hostRule(from("10.244.1.8/32"), rules.Fixed{Result: rules.Unknown, Words: "-m time …"}, masquerade),
		hostRule(from("10.244.1.7/32"), rules.NAT{First: address("203.0.113.1")}),
		hostRule(from("10.244.1.6/32"), tcp, rules.NAT{First: address("172.20.0.2"), FirstPort: rules.Const{3, 0xe8}, LastPort: rules.Const{7, 0xd0}}),
		hostRule(to("10.244.0.2/32"), others, rules.Verdict{Kind: rules.Return}),
		{
			Chain: "POSTROUTING", Comment: "as kind has it", Steps: []rules.Step{
				from("10.244.1.9/32"), rules.Compare{Values: []rules.Value{rules.Meta{Key: "oifname", ByteSize: 16}}, Ranges: []rules.Range{rules.Exactly([]byte("eth0\x00"))}},
				rules.NAT{Kind: rules.Masquerade, Fully: true},
			},
		},
	}
	var log bytes.Buffer
	h := newHarness(t)
	h.hostRules = hostmasq.Follow(rules, slog.New(slog.NewTextHandler(&log, nil))).Translator()
	h.queue.batches = [][]nfqueue.Packet{{
		syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53"),
		syn(t, 2, 0, "10.244.1.5:1000", "10.96.0.10:53"),
		syn(t, 3, 0, "10.244.1.6:1000", "10.96.0.10:53"),
		syn(t, 4, 0, "10.244.1.7:1000", "10.96.0.10:53"),
		syn(t, 5, 0, "10.244.1.8:1000", "10.96.0.10:53"),
		syn(t, 6, 0, "10.244.1.8:1001", "10.96.0.10:53"),
		syn(t, 7, 0, "172.20.0.9:1000", "172.20.0.2:30053"), // masqueraded by kube-proxy's rules first
		syn(t, 8, 0, "10.244.1.9:1000", "8.8.8.8:53"),       // not translated: the kernel evaluates the rules itself
	}, {
		syn(t, 9, 0, "10.244.1.9:1000", "10.96.0.10:53"), // again: the entry stays
	}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range h.records {
		got = append(got, fmt.Sprintf("%s>%s %v %s %s %q %s", r.Source, r.Endpoint, r.Masquerade, r.MasqueradeReason, r.MasqueradeAddress, r.MasqueradeRule, r.Conntrack))
	}
	want := []string{
		`10.244.1.9:1000>10.244.0.2:8080 true host-masquerade 172.20.0.2 "-A POSTROUTING -s 10.244.1.9/32 -o eth0 -m comment --comment \"as kind has it\" -j MASQUERADE --random-fully" created`,
		`10.244.1.5:1000>10.244.0.2:8080 false   "" created`,
		`10.244.1.6:1000>10.244.0.2:8080 true host-masquerade 172.20.0.2 "-A POSTROUTING -s 10.244.1.6/32 -p tcp -j SNAT --to-source 172.20.0.2:1000-2000" created`,
		`10.244.1.7:1000>10.244.0.2:8080 false   "" created`,
		`10.244.1.8:1000>10.244.0.2:8080 false   "" created`,
		`10.244.1.8:1001>10.244.0.2:8080 false   "" created`,
		`172.20.0.9:1000>10.244.0.2:8080 true external 172.20.0.2 "" created`,
		`10.244.1.9:1000> false   "" `,
		`10.244.1.9:1000>10.244.0.2:8080 true host-masquerade 172.20.0.2 "-A POSTROUTING -s 10.244.1.9/32 -o eth0 -m comment --comment \"as kind has it\" -j MASQUERADE --random-fully" kept`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("records\n%s\nwant\n%s", g, w)
	}
	for source, reply := range map[string]string{
		"10.244.1.9:1000": "172.20.0.2:1000", "10.244.1.5:1000": "10.244.1.5:1000", "10.244.1.7:1000": "10.244.1.7:1000",
	} {
		s, ok := h.kernel.Get(conntrack.Tuple{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: 6})
		if !ok || s.Reply.Destination.String() != reply {
			t.Errorf("the entry of %s answers to %s, want %s", source, s.Reply.Destination, reply)
		}
	}
	var s Stats
	h.counters.addTo(&s)
	if s.HostMasqueraded != 2 || s.HostUnknown != 3 {
		t.Errorf("%d flows counted as masqueraded by the host's rules, %d as unknown; want 2 and 3", s.HostMasqueraded, s.HostUnknown)
	}
	for _, rule := range []string{"-m time", "--to-source 203.0.113.1"} {
		if n := strings.Count(log.String(), rule); n != 1 {
			t.Errorf("the rule with %s was named %d times, want once:\n%s", rule, n, log.String())
		}
	}
}

// TestWorkerWithoutAWayMakesNoEntry: what the host's own rules would have done to the source
// depends on the way to the endpoint. Where it is not known, an entry would keep a source
// that is wrong for as long as the flow lives: so there is none, and that is counted.
func TestWorkerWithoutAWayMakesNoEntry(t *testing.T) {
	h := newHarness(t)
	h.hostRules = hostmasq.Follow(hostSource{hostRule(from("10.244.1.0/24"), masquerade)}, slog.New(slog.DiscardHandler)).Translator()
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.12:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	var s Stats
	h.counters.addTo(&s)
	if h.kernel.Len() != 0 || s.Failed != 1 || s.NoRoute != 1 {
		t.Errorf("%d entries, %d counted as failed, %d as without a route; want 0, 1 and 1", h.kernel.Len(), s.Failed, s.NoRoute)
	}
	if len(h.records) != 1 || h.records[0].Error == "" {
		t.Errorf("records %+v, want the error", h.records)
	}
}

// TestWorkerDoesNotGuessLocality: with detection by interface, a flow whose interface has no
// name is not taken for one from outside: it gets no entry, and its sender tries again. What
// is for no service passes.
func TestWorkerDoesNotGuessLocality(t *testing.T) {
	h := newHarness(t)
	node := *h.table.Load().Node()
	node.Detector = decision.Detector{InterfacePrefix: "veth"}
	h.table.Store(decision.NewTable(4, time.Time{}, node, []*decision.ServicePort{servicePort("default/web", "10.96.0.10:53", 0, "10.244.0.2:8080")}))
	var batch []nfqueue.Packet
	for i, to := range []string{"10.96.0.10:53", "8.8.8.8:53", "10.96.0.10:53"} {
		p := syn(t, uint32(i+1), 0, fmt.Sprintf("10.244.1.9:%d", 1000+i), to)
		p.InInterface = goneInterface
		batch = append(batch, p)
	}
	batch[2].InInterface = 7
	h.queue.batches = [][]nfqueue.Packet{batch}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	var s Stats
	h.counters.addTo(&s)
	if s.Created != 1 || s.Failed != 1 || s.NoRoute != 0 || s.NoService != 1 || len(h.queue.verdicts) != 3 {
		t.Errorf("stats %+v, %d verdicts", slog.AnyValue(s).Resolve(), len(h.queue.verdicts))
	}
	if e, ok := h.kernel.Get(flow.TupleOf(&h.jobs[2].packet)); !ok || e.Masqueraded() {
		t.Errorf("the pod's flow: %+v", e)
	}
}
