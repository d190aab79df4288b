package audit_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// version makes the tables of 1.36 those of another version of kube-proxy, as its proxier.go writes them.
type version struct {
	name  string
	minor int
	table *decision.Table
	f     decision.Family
}

// versions are one for each form of the tables that ReadNFTables knows.
var versions = []version{{name: "1.29", minor: 29}, {name: "1.30 to 1.32", minor: 31}, {name: "1.33 to 1.35", minor: 34}, {name: "1.37 or later", minor: 37}}

// rules reads rules as nft prints them.
func rules(lines ...string) []*nftables.Rule {
	r, err := nftables.Read("rules", strings.NewReader("table ip t {\nchain c {\n"+strings.Join(lines, "\n")+"\n}\n}\n"))
	if err != nil {
		panic(err)
	}
	return r.Tables[0].Chains[0].Rules
}

// ip is the name of the family's header.
func (v *version) ip() string {
	if v.f == decision.IPv6 {
		return "ip6"
	}
	return "ip"
}

// rewrite changes a table of 1.36.
func (v *version) rewrite(t *nftables.Table) {
	if v.minor >= 37 {
		v.singleEndpoints(t)
		return
	}
	t.Sets = slices.DeleteFunc(t.Sets, func(s *nftables.Set) bool { return s.Name == nftproxy.HairpinConnections })
	chains := make(map[string]*nftables.Chain)
	for _, c := range t.Chains {
		chains[c.Name] = c
	}
	mark := fmt.Sprintf("0x%08x", v.table.Node().Mark())
	t.Chains = append(t.Chains, &nftables.Chain{Name: nftproxy.MarkMasq, Rules: rules("meta mark set meta mark | " + mark)})
	none := "meta mark & " + mark + " == 0x00000000 return"
	if v.table.Node().Mark() == 1<<31 {
		none = "meta mark 0x00000000/1 return"
	}
	chains[nftproxy.Masquerading].Rules = rules(none, "meta mark set meta mark ^ "+mark, "masquerade fully-random")
	services := chains[nftproxy.Services]
	services.Rules = slices.DeleteFunc(services.Rules, func(r *nftables.Rule) bool { return strings.Contains(r.String(), "@"+nftproxy.ClusterIPs) })
	for _, s := range v.table.Services() {
		if s.Family == v.f {
			v.service(t, chains, s)
		}
	}
	if v.minor < 33 {
		v.baseChains(chains)
	}
	if v.minor < 30 {
		v.firewall(t, chains)
	}
}

// singleEndpoints has no map for a single endpoint.
func (v *version) singleEndpoints(t *nftables.Table) {
	for _, c := range t.Chains {
		for i, r := range c.Rules {
			text := r.String()
			if at := strings.Index(text, " to numgen random mod 1 map { 0 : "); at > 0 {
				ep := strings.Split(strings.TrimSuffix(text[strings.Index(text, "0 : ")+4:], " }"), " . ")
				protocol, _, _ := strings.Cut(text, " dnat")
				if v.f == decision.IPv6 {
					ep[0] = "[" + ep[0] + "]"
				}
				c.Rules[i] = rules(protocol + " dnat to " + ep[0] + ":" + ep[1])[0]
			}
		}
	}
}

// service has a chain for each endpoint, in which its packets to itself are masqueraded, and masquerades in the chains of services.
func (v *version) service(t *nftables.Table, chains map[string]*nftables.Chain, s *decision.ServicePort) {
	ip, base := v.ip(), nftproxy.Base(s.Name, s.Protocol)
	reachable := make(map[netip.AddrPort]bool)
	for p, policy := range []nftproxy.Kind{nftproxy.ServiceChain, nftproxy.LocalChain} {
		c := chains[string(policy)+base]
		if c == nil {
			continue
		}
		var lines, choices []string
		if s.InternalPolicy == decision.Policy(p) {
			at := fmt.Sprintf("%s daddr %s %s dport %d", ip, s.ClusterIP, s.Protocol.Lower(), s.Port)
			switch d := &v.table.Node().Detector; {
			case v.table.Node().MasqueradeAll:
				lines = append(lines, at+" jump mark-for-masquerade")
			case d.Bridge != "":
				lines = append(lines, at+` iifname != "`+d.Bridge+`" jump mark-for-masquerade`)
			case d.InterfacePrefix != "":
				lines = append(lines, at+` iifname != "`+d.InterfacePrefix+`*" jump mark-for-masquerade`)
			case d.Implemented(v.f):
				cidr, _ := d.CIDR(v.f)
				lines = append(lines, fmt.Sprintf("%s %s saddr != %s jump mark-for-masquerade", at, ip, cidr))
			}
		}
		usable := s.UsableEndpoints(decision.Policy(p))
		for i, e := range usable {
			reachable[e.AddrPort] = true
			name := nftproxy.EndpointBase(s.Name, s.Protocol, e.AddrPort)
			if s.AffinitySeconds > 0 {
				lines = append(lines, fmt.Sprintf("%s saddr @affinity-%s goto endpoint-%s", ip, name, name))
			}
			choices = append(choices, fmt.Sprintf("%d : goto endpoint-%s", i, name))
		}
		lines = append(lines, fmt.Sprintf("numgen random mod %d vmap { %s }", len(usable), strings.Join(choices, ", ")))
		c.Rules = rules(lines...)
	}
	for ep := range reachable {
		name := nftproxy.EndpointBase(s.Name, s.Protocol, ep)
		lines := []string{fmt.Sprintf("%s saddr %s jump mark-for-masquerade", ip, ep.Addr())}
		if s.AffinitySeconds > 0 {
			lines = append(lines, fmt.Sprintf("update @affinity-%s { %s saddr }", name, ip))
		}
		lines = append(lines, fmt.Sprintf("meta l4proto %s dnat to %s", s.Protocol.Lower(), ep))
		c := chains["endpoint-"+name]
		if c == nil {
			c = &nftables.Chain{Name: "endpoint-" + name}
			t.Chains = append(t.Chains, c)
		}
		c.Rules = rules(lines...)
	}
	if c := chains[string(nftproxy.ExternalChain)+base]; c != nil {
		for i, r := range c.Rules {
			text, _, _ := strings.Cut(r.String(), " comment ")
			if before, _, marks := strings.Cut(text, "meta mark set"); marks {
				c.Rules[i] = rules(before + "jump mark-for-masquerade")[0]
			}
		}
	}
}

// baseChains are those of 1.30 to 1.32.
func (v *version) baseChains(chains map[string]*nftables.Chain) {
	chains["filter-prerouting-pre-dnat"].Name = "filter-prerouting"
	chains["filter-output"].Rules = rules("ct state new jump service-endpoints-check", "ct state new jump firewall-check")
	after := chains["filter-output-pre-dnat"]
	after.Name, after.Base.Priority, after.Rules = "filter-output-post-dnat", -90, rules("ct state new jump cluster-ips-check")
}

// firewall has the sets of 1.29 in place of maps, and no check of cluster IPs.
func (v *version) firewall(t *nftables.Table, chains map[string]*nftables.Chain) {
	gone := []string{nftproxy.ClusterIPs, nftproxy.FirewallIPs}
	t.Sets = slices.DeleteFunc(t.Sets, func(s *nftables.Set) bool { return slices.Contains(gone, s.Name) })
	t.Chains = slices.DeleteFunc(t.Chains, func(c *nftables.Chain) bool {
		return c.Name == nftproxy.ClusterIPsCheck || c.Name == "filter-output-post-dnat" || c.Name == "filter-prerouting" || c.Name == nftproxy.NodePortEndpoints || strings.HasPrefix(c.Name, "firewall-") && strings.Contains(c.Name, "/")
	})
	ip := v.ip()
	address, loopback := "ipv4_addr", "127.0.0.0/8"
	if v.f == decision.IPv6 {
		address, loopback = "ipv6_addr", "::1"
	}
	chains[nftproxy.ServiceEndpoints].Name = nftproxy.EndpointsCheck
	chains[nftproxy.ServiceEndpoints].Rules = append(chains[nftproxy.ServiceEndpoints].Rules, rules("fib daddr type local "+ip+" daddr != "+loopback+" meta l4proto . th dport vmap @no-endpoint-nodeports")...)
	for _, name := range []string{"filter-input", "filter-forward", "filter-output"} {
		chains[name].Rules = rules("ct state new jump endpoints-check", "ct state new jump firewall-check")
	}
	chains["filter-forward"].Rules = append(chains["filter-forward"].Rules, rules("jump forward")...)
	chains[nftproxy.FirewallCheck].Rules = rules(ip + " daddr . meta l4proto . th dport @firewall jump firewall-allow-check")
	t.Chains = append(t.Chains, &nftables.Chain{Name: nftproxy.Forward, Rules: rules("ct state invalid drop")},
		&nftables.Chain{Name: nftproxy.FirewallAllowCheck, Rules: rules(ip+" daddr . meta l4proto . th dport . "+ip+" saddr @firewall-allow return", "drop")})
	set := &nftables.Set{Name: nftproxy.FirewallSet, Key: nftables.Type{Names: []string{address, "inet_proto", "inet_service"}}}
	allow := &nftables.Set{Name: nftproxy.FirewallAllow, Key: nftables.Type{Names: []string{address, "inet_proto", "inet_service", address}}, Flags: []string{"interval"}}
	for _, s := range v.table.Services() {
		if s.Family != v.f || len(s.SourceRanges) == 0 {
			continue
		}
		for _, a := range s.LoadBalancerIPs {
			key := nftables.Concat{nftables.Literal{Text: a.String()}, nftables.Literal{Text: s.Protocol.Lower()}, nftables.Literal{Text: fmt.Sprint(s.Port), Kind: nftables.Number}}
			set.Elements = append(set.Elements, nftables.Element{Key: key, Comment: s.Name.String()})
			for _, p := range s.SourceRanges {
				source := nftables.Prefix{Address: nftables.Literal{Text: p.Addr().String()}, Length: p.Bits()}
				allow.Elements = append(allow.Elements, nftables.Element{Key: append(slices.Clone(key), source), Comment: s.Name.String()})
			}
			if s.Allows(v.table.Node().IP(v.f)) {
				allow.Elements = append(allow.Elements, nftables.Element{Key: append(slices.Clone(key), nftables.Literal{Text: a.String()})})
			}
		}
	}
	t.Sets = append(t.Sets, set, allow)
}

// TestVersionsOfNFTables: services are found in the tables of all versions as in those of 1.36, and no problem. The kernel takes the
// tables.
func TestVersionsOfNFTables(t *testing.T) {
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) {
			for seed := range uint64(100) {
				c := newCluster(seed)
				c.separate()
				table, _ := servicetable.Table(c.objects, c.config)
				written := nftproxy.Tables(table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()}, families...)
				v.table = table
				for i, f := range families {
					v.f = f
					v.rewrite(written.Tables[i])
				}
				var b bytes.Buffer
				if _, err := written.WriteTo(&b); err != nil {
					t.Fatal(err)
				}
				if seed < 3 {
					v.load(t, b.String())
				}
				for i, node := range audit.ReadNFTables(readRuleset(t, b.String())) {
					v.f = families[i]
					v.compare(t, seed, node, b.String())
				}
			}
		})
	}
}

// load loads the text into the kernel.
func (v *version) load(t *testing.T, text string) {
	t.Helper()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	n, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Run(text, "nft", "-f", "-"); err != nil {
		t.Fatalf("%v\nof\n%s", err, text)
	}
}

// compare compares what is read with the table.
func (v *version) compare(t *testing.T, seed uint64, node *audit.Node, text string) {
	t.Helper()
	var want []*audit.Service
	where := localities(v.table.Services(), v.f)
	for _, s := range v.table.Services() {
		if s.Family != v.f {
			continue
		}
		d := shownByNFTables(v.table, s)
		for i := range d.Endpoints {
			e := &d.Endpoints[i]
			if v.minor < 36 {
				e.Chain, e.Locality = string(nftproxy.EndpointChain)+nftproxy.EndpointBase(s.Name, s.Protocol, e.AddrPort), where[e.AddrPort.Addr()]
			}
		}
		if v.minor == 29 && d.Refused && len(d.ExternalIPs)+len(d.LoadBalancerIPs) > 0 {
			d.ExternalIPs, d.ClusterIP = append(d.ExternalIPs, d.ClusterIP), netip.Addr{}
		}
		want = append(want, d)
	}
	unknown := 0
	for _, s := range want {
		if !s.ClusterIP.IsValid() {
			unknown++
		}
	}
	byName := func(s []*audit.Service) []*audit.Service {
		s = slices.Clone(s)
		slices.SortFunc(s, func(a, b *audit.Service) int {
			return strings.Compare(a.Title()+a.Protocol.String(), b.Title()+b.Protocol.String())
		})
		return s
	}
	if diff := cmp.Diff(byName(want), byName(node.Services), services); diff != "" {
		t.Fatalf("seed %d, %s: (-want +have)\n%s\nin\n%s", seed, v.f, diff, text)
	}
	if len(node.Problems) > 0 || len(node.Gaps) != unknown {
		t.Fatalf("seed %d, %s: problems %q, gaps %q in\n%s", seed, v.f, node.Problems, node.Gaps, text)
	}
	p := node.Proxy
	known := p.Version == v.name || v.minor == 37 && p.Version == "1.36 or later"
	if p.MasqueradeMark != v.table.Node().Mark() || !known {
		t.Fatalf("seed %d, %s: %+v in\n%s", seed, v.f, p, text)
	}
}
