package reconcile

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// service makes a service port out of words: "udp 10.96.0.10:53 nodeport=30053
// external=... lb=... 10.244.0.2:53 10.244.0.3:53/not-serving". An endpoint's word
// after the slash is why it gets no new flows.
func service(text string) *decision.ServicePort {
	words := strings.Fields(text)
	proto, err := decision.ParseProtocol(words[0])
	if err != nil {
		panic(err)
	}
	at := netip.MustParseAddrPort(words[1])
	s := &decision.ServicePort{Protocol: proto, Family: decision.FamilyOf(at.Addr()), ClusterIP: at.Addr(), Port: at.Port()}
	s.Name = decision.ServicePortName{Namespace: "default", Name: words[1]}
	for _, w := range words[2:] {
		switch key, value, ok := strings.Cut(w, "="); {
		case !ok:
			s.Endpoints = append(s.Endpoints, endpoint(w))
		case key == "nodeport":
			s.NodePort = netip.MustParseAddrPort("0.0.0.0:" + value).Port()
		case key == "external":
			s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr(value))
		case key == "lb":
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.MustParseAddr(value))
		default:
			panic(w)
		}
	}
	for i := range s.Endpoints {
		for p := range s.Usable {
			if s.Endpoints[i].Exclusions[p] == 0 {
				s.Usable[p], s.HasEndpoints = append(s.Usable[p], uint32(i)), true
			}
		}
	}
	return s
}

// endpoint: one word excludes it under both policies, "a+b" is one for each.
func endpoint(text string) decision.Endpoint {
	at, why, excluded := strings.Cut(text, "/")
	e := decision.Endpoint{AddrPort: netip.MustParseAddrPort(at)}
	if excluded {
		cluster, local, two := strings.Cut(why, "+")
		if !two {
			local = cluster
		}
		e.Exclusions = [2]decision.Exclusion{exclusion(cluster), exclusion(local)}
	}
	e.Serving = serves(&e)
	return e
}

// serves reports whether an endpoint that is excluded so serves, in these tests.
func serves(e *decision.Endpoint) bool {
	return !slices.Contains(e.Exclusions[:], decision.NotServing) && !slices.Contains(e.Exclusions[:], decision.NotReady)
}

func exclusion(word string) decision.Exclusion {
	for e := range decision.NotBound {
		if e.String() == word {
			return e
		}
	}
	panic("no exclusion " + word)
}

func node() decision.Node {
	return decision.Node{Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2"), netip.MustParseAddr("fd20::2"), netip.MustParseAddr("192.168.7.2")}}
}

func table(services ...string) *decision.Table { return tableOf(node(), services...) }

func tableOf(n decision.Node, services ...string) *decision.Table {
	var all []*decision.ServicePort
	for _, s := range services {
		all = append(all, service(s))
	}
	t := decision.NewTable(1, time.Time{}, n, all)
	return t
}

// flow makes a connection out of words: "udp 10.244.1.9:1000 10.96.0.10:53 >
// 10.244.0.2:53 ours masq=172.20.0.2 answered zone=1"; without ">" it is not translated.
func flow(text string) conntrack.State {
	words := strings.Fields(text)
	proto, err := decision.ParseProtocol(words[0])
	if err != nil {
		panic(err)
	}
	var s conntrack.State
	s.Original = conntrack.Tuple{Source: netip.MustParseAddrPort(words[1]), Destination: netip.MustParseAddrPort(words[2]), Protocol: uint8(proto)}
	s.Reply = s.Original.Inverse()
	for i := 3; i < len(words); i++ {
		switch key, value, _ := strings.Cut(words[i], "="); key {
		case ">":
			i++
			s.Reply.Source = netip.MustParseAddrPort(words[i])
			if s.Reply.Source != s.Original.Destination {
				s.Status |= conntrack.StatusDestinationNAT
			}
		case "ours":
			s.Mark = 0x12000 // among others' bits
		case "masq":
			s.Status |= conntrack.StatusSourceNAT
			s.Reply.Destination = netip.AddrPortFrom(netip.MustParseAddr(value), s.Original.Source.Port())
		case "answered":
			s.Status |= conntrack.StatusSeenReply
		case "zone":
			s.Zone = 1
		default:
			panic(words[i])
		}
	}
	return s
}

func TestCheck(t *testing.T) {
	const (
		dns    = "udp 10.96.0.10:53 nodeport=30053 external=198.51.100.1 lb=203.0.113.1 10.244.0.2:5353 10.244.0.3:5353/not-serving"
		client = "10.244.1.9:1000"
	)
	v6 := "udp [fd96::a]:53 nodeport=30053 [fd44::2]:5353"
	tests := []struct {
		name     string
		services []string
		flow     string
		want     Reason
	}{
		// What kube-proxy does, for each kind of address.
		{"cluster IP, serving endpoint", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.2:5353", Stays},
		{"cluster IP, endpoint gone", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.9:5353", EndpointGone},
		{"cluster IP, endpoint's port changed", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.2:53", EndpointGone},
		{"cluster IP, endpoint serves no more", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.3:5353", EndpointGone},
		{"cluster IP, not translated", []string{dns}, client + " 10.96.0.10:53", Untranslated},
		{"cluster IP, not translated though answered", []string{dns}, client + " 10.96.0.10:53 answered", Untranslated},
		{"cluster IP, another port", []string{dns}, client + " 10.96.0.10:54 > 10.244.0.9:5353", Stays},
		{"external IP, serving endpoint", []string{dns}, client + " 198.51.100.1:53 > 10.244.0.2:5353", Stays},
		{"external IP, endpoint gone", []string{dns}, client + " 198.51.100.1:53 > 10.244.0.9:5353", EndpointGone},
		{"load balancer IP, serving endpoint", []string{dns}, client + " 203.0.113.1:53 > 10.244.0.2:5353", Stays},
		{"load balancer IP, endpoint gone", []string{dns}, client + " 203.0.113.1:53 > 10.244.0.9:5353", EndpointGone},
		{"node port, serving endpoint", []string{dns}, client + " 172.20.0.2:30053 > 10.244.0.2:5353", Stays},
		{"node port, endpoint gone", []string{dns}, client + " 172.20.0.2:30053 > 10.244.0.9:5353", EndpointGone},
		{"node port on another address of the node", []string{dns}, client + " 192.168.7.2:30053 > 10.244.0.9:5353", EndpointGone},
		{"node port, not translated", []string{dns}, client + " 172.20.0.2:30053", Untranslated},
		{"IPv6 cluster IP, endpoint gone", []string{v6}, "[fd44::9]:1000 [fd96::a]:53 > [fd44::3]:5353", EndpointGone},
		{"IPv6 cluster IP, serving endpoint", []string{v6}, "[fd44::9]:1000 [fd96::a]:53 > [fd44::2]:5353", Stays},
		{"IPv6 node port, not translated", []string{v6}, "[fd44::9]:1000 [fd20::2]:30053", Untranslated},
		{"entry of an earlier proxy", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.9:5353 masq=172.20.0.1", EndpointGone},

		// Only UDP, only the zone of all of us.
		{"TCP", []string{dns, "tcp 10.96.0.10:53 10.244.0.2:5353"}, "tcp " + client + " 10.96.0.10:53 > 10.244.0.9:5353 ours", Stays},
		{"SCTP", []string{"sctp 10.96.0.10:53 10.244.0.2:5353"}, "sctp " + client + " 10.96.0.10:53 > 10.244.0.9:5353 ours", Stays},
		{"TCP service of the same address", []string{"tcp 10.96.0.10:53 10.244.0.2:5353"}, client + " 10.96.0.10:53", Stays},
		{"another zone", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.9:5353 zone=1", Stays},

		// Flows that may stay though new ones would go elsewhere.
		{"terminating, still serving", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/terminating"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},
		{"terminating, no longer serving", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/not-serving"}, client + " 10.96.0.10:53 > 10.244.0.3:53", EndpointGone},
		{"unready", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/not-ready"}, client + " 10.96.0.10:53 > 10.244.0.3:53", EndpointGone},
		{"of another zone since", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/other-zone"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},
		{"of another node by hints", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/other-node"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},
		{"remote, policy Local since", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/unused+not-local"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},
		{"remote and unready, both policies", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/not-ready+not-local"}, client + " 10.96.0.10:53 > 10.244.0.3:53", EndpointGone},
		{"remote and serving, both policies", []string{"udp 10.96.0.10:53 10.244.0.2:53 10.244.0.3:53/terminating+not-local"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},

		// No serving endpoint.
		{"no endpoints, translated", []string{"udp 10.96.0.10:53"}, client + " 10.96.0.10:53 > 10.244.0.3:53", EndpointGone},
		{"no endpoints, flow on an unready one", []string{"udp 10.96.0.10:53 10.244.0.3:53/not-ready"}, client + " 10.96.0.10:53 > 10.244.0.3:53", Stays},
		{"no endpoints, flow on none of the unready", []string{"udp 10.96.0.10:53 10.244.0.3:53/not-ready"}, client + " 10.96.0.10:53 > 10.244.0.4:53", EndpointGone},
		{"no endpoints, not translated, unanswered", []string{"udp 10.96.0.10:53"}, client + " 10.96.0.10:53", Unanswered},
		{"no endpoints, not translated, answered", []string{"udp 10.96.0.10:53"}, client + " 10.96.0.10:53 answered", Stays},

		// Node ports are only ports of the node.
		{"node port's number on another host", []string{dns}, client + " 8.8.8.8:30053", Stays},
		{"node port's number on another host, translated by others", []string{dns}, client + " 8.8.8.8:30053 > 10.244.0.9:53", Stays},
		{"node port on loopback, closed", []string{dns}, "127.0.0.1:1000 127.0.0.1:30053", Stays},
		{"external IP that is the node's beats a node port", []string{dns, "udp 10.96.0.11:53 external=172.20.0.2 10.244.0.5:53", "udp 10.96.0.12:30053 external=172.20.0.2 10.244.0.6:53"},
			client + " 172.20.0.2:30053 > 10.244.0.6:53", Stays},
		{"address and node port in one, endpoint of neither", []string{dns, "udp 10.96.0.12:30053 external=172.20.0.2 10.244.0.6:53"}, client + " 172.20.0.2:30053 > 10.244.0.9:53", EndpointGone},
		{"address and node port in one, endpoint of the node port's", []string{dns, "udp 10.96.0.12:30053 external=172.20.0.2"}, client + " 172.20.0.2:30053 > 10.244.0.2:5353", Stays},
		{"an endpoint that has the service's own address", []string{"udp 10.96.0.10:53 nodeport=30053 172.20.0.2:30053"}, client + " 172.20.0.2:30053 > 172.20.0.2:30053", Stays},
		{"two services with one address: that of the first", []string{dns, "udp 10.96.0.11:53 external=198.51.100.1 10.244.0.7:53"}, client + " 198.51.100.1:53 > 10.244.0.7:53", EndpointGone},

		// No service.
		{"service gone, ours", nil, client + " 10.96.0.10:53 > 10.244.0.2:5353 ours", ServiceGone},
		{"service gone, another program's entry", nil, client + " 10.96.0.10:53 > 10.244.0.2:5353", Stays},
		{"service gone, ours on a node port", nil, client + " 172.20.0.2:30053 > 10.244.0.2:5353 ours masq=172.20.0.2", ServiceGone},
		{"no service, ours by an accident of marks", nil, client + " 8.8.8.8:53 ours", Stays},
		{"plain flow", []string{dns}, client + " 8.8.8.8:53 answered", Stays},
		{"masqueraded by others", []string{dns}, client + " 8.8.8.8:53 masq=9.9.9.9", Stays},
		{"endpoint's own flow", []string{dns}, "10.244.0.2:5353 10.244.1.9:1000", Stays},

		// Masquerade addresses.
		{"masqueraded to the node", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.2:5353 ours masq=172.20.0.2", Stays},
		{"masqueraded to what was the node's", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.2:5353 ours masq=172.20.0.66", MasqueradeGone},
		{"masqueraded elsewhere by others", []string{dns}, client + " 10.96.0.10:53 > 10.244.0.2:5353 masq=172.20.0.66", Stays},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := tt.flow
			if !strings.HasPrefix(text, "tcp") && !strings.HasPrefix(text, "sctp") {
				text = "udp " + text
			}
			s, none := flow(text), make(frontends)
			if got := newView(table(tt.services...)).check(&s, none); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestCheckNodePortAddresses(t *testing.T) {
	const dns = "udp 10.96.0.10:53 nodeport=30053 10.244.0.2:5353"
	s, none := flow("udp 10.244.1.9:1000 192.168.7.2:30053"), make(frontends)
	n := node()
	n.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}
	if got := newView(tableOf(n, dns)).check(&s, none); got != Stays {
		t.Errorf("flow to an address without node ports: %s", got)
	}
	n.NodePortAddresses = nil
	if got := newView(tableOf(n, dns)).check(&s, none); got != Untranslated {
		t.Errorf("flow to an address with node ports: %s", got)
	}
	s = flow("udp 127.0.0.1:1000 127.0.0.1:30053 > 10.244.0.9:53 ours masq=172.20.0.2")
	n.LocalhostNodePorts = true
	if got := newView(tableOf(n, dns)).check(&s, none); got != EndpointGone {
		t.Errorf("flow to an open node port on loopback: %s", got)
	}
	s = flow("udp 10.244.1.9:1000 10.96.0.10:53 > 10.244.0.2:5353 ours masq=172.20.0.66")
	if got := newView(tableOf(decision.Node{}, dns)).check(&s, none); got != Stays {
		t.Errorf("masqueraded flow where the node's addresses are not known: %s", got)
	}
}

func TestChecksLike(t *testing.T) {
	base := []string{
		"udp 10.96.0.10:53 nodeport=30053 external=198.51.100.1 lb=203.0.113.1 10.244.0.2:53 10.244.0.3:53",
		"tcp 10.96.0.10:53 10.244.0.2:53", "sctp 10.96.0.10:53 10.244.0.2:53",
	}
	with := func(i int, s string) *decision.Table {
		all := append([]string(nil), base...)
		all[i] = s
		return table(all...)
	}
	moved := node()
	moved.Addresses = moved.Addresses[1:]
	restricted := node()
	restricted.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("172.20.0.0/16")}
	loopback := node()
	loopback.LocalhostNodePorts = true
	for name, tt := range map[string]struct {
		table *decision.Table
		want  bool
	}{
		"the same, made anew":      {table(base...), true},
		"TCP endpoint":             {with(1, "tcp 10.96.0.10:53 10.244.0.9:53"), true},
		"TCP service gone":         {table(base[0], base[2]), true},
		"SCTP endpoint":            {with(2, "sctp 10.96.0.10:53 10.244.0.9:53"), true},
		"terminating, serving":     {with(0, strings.Replace(base[0], "0.3:53", "0.3:53/terminating", 1)), true},
		"serving no more":          {with(0, strings.Replace(base[0], "0.3:53", "0.3:53/not-serving", 1)), false},
		"endpoint":                 {with(0, strings.Replace(base[0], "0.3:53", "0.4:53", 1)), false},
		"endpoint gone":            {with(0, strings.Replace(base[0], "10.244.0.3:53", "", 1)), false},
		"endpoint's port":          {with(0, strings.Replace(base[0], "0.3:53", "0.3:54", 1)), false},
		"cluster IP":               {with(0, strings.Replace(base[0], "96.0.10:", "96.0.11:", 1)), false},
		"port":                     {with(0, strings.Replace(base[0], "96.0.10:53", "96.0.10:54", 1)), false},
		"node port":                {with(0, strings.Replace(base[0], "30053", "30054", 1)), false},
		"external IP":              {with(0, strings.Replace(base[0], "198", "199", 1)), false},
		"load balancer IP":         {with(0, strings.Replace(base[0], "203", "204", 1)), false},
		"UDP service gone":         {table(base[1:]...), false},
		"UDP service more":         {table(append(base, "udp 10.96.0.11:53")...), false},
		"addresses of the node":    {tableOf(moved, base...), false},
		"node port addresses":      {tableOf(restricted, base...), false},
		"node ports on loopback":   {tableOf(loopback, base...), false},
		"no services any more":     {table(), false},
		"only the order of others": {table(base[0], base[2], base[1]), true},
	} {
		if got := newView(table(base...)).sameAs(tt.table); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestSecondFrontend: what the first of two services leaves alone goes to the second, and stays there.
func TestSecondFrontend(t *testing.T) {
	vip := netip.MustParseAddr("198.51.100.1")
	sharing := func(name, clusterIP, endpoint string, policy decision.Policy) *decision.ServicePort {
		return &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: name}, Protocol: decision.UDP, Family: decision.IPv4,
			ClusterIP: netip.MustParseAddr(clusterIP), Port: 53, ExternalIPs: []netip.Addr{vip}, ExternalPolicy: policy, HasEndpoints: true,
			Endpoints: []decision.Endpoint{{AddrPort: netip.MustParseAddrPort(endpoint), Ready: true, Serving: true}},
			Usable:    [2][]uint32{decision.Cluster: {0}},
		}
	}
	for policy, want := range map[decision.Policy]Reason{decision.Local: Stays, decision.Cluster: EndpointGone} {
		services := []*decision.ServicePort{sharing("a", "10.96.0.1", "10.244.0.1:53", policy), sharing("b", "10.96.0.2", "10.244.0.2:53", decision.Cluster)}
		v := newView(decision.NewTable(1, time.Time{}, decision.Node{}, services))
		none := make(frontends)
		for endpoint, want := range map[string]Reason{"10.244.0.1:53": Stays, "10.244.0.2:53": want} {
			s := flow("udp 192.0.2.1:1000 198.51.100.1:53 > " + endpoint + " ours")
			if got := v.check(&s, none); got != want {
				t.Errorf("policy %s of the first, flow to %s: %s, want %s", policy, endpoint, got, want)
			}
		}
	}
}
