package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// worth are the findings that are more than notes.
func worth(findings []Finding) (left []Finding) {
	for _, f := range findings {
		if f.Code.Severity() != Note {
			left = append(left, f)
		}
	}
	return left
}

// policy is a NetworkPolicy of namespace shop.
func policy(name, spec string) edit {
	return edit{"", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec}
}

// zones puts node-a into zone a, and node-b into a zone.
func zones(b string) []edit {
	return []edit{{"metadata: {name: node-a}", "metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}"}, {"metadata: {name: node-b}", "metadata: {name: node-b, labels: {topology.kubernetes.io/zone: " + b + "}}"}}
}

// gateOff is kube-proxy's configuration that turns external IPs off.
var gateOff = edit{"", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata: {config.conf: \"featureGates: {AllowServiceExternalIPs: false}\"}"}

// nodeHints has the endpoints of Service web hint to nodes.
func nodeHints(one, two string) []edit {
	return []edit{
		{hintA.from, strings.Replace(hintA.to, "forZones: [{name: a}]", "forNodes: [{name: "+one+"}]", 1)},
		{hintB.from, strings.Replace(hintB.to, "forZones: [{name: b}]", "forNodes: [{name: "+two+"}]", 1)},
	}
}

// Endpoints of Service web with hints.
var (
	hintA = edit{"ports: [{name: http, port: 8080, protocol: TCP}]\nendpoints:\n- {addresses: [10.244.1.2],", "ports: [{name: http, port: 8080, protocol: TCP}]\nendpoints:\n- {addresses: [10.244.1.2], hints: {forZones: [{name: a}]},"}
	hintB = edit{"\n- {addresses: [10.244.2.2], nodeName: node-b, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-2}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: db", "\n- {addresses: [10.244.2.2], hints: {forZones: [{name: b}]}, nodeName: node-b, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-2}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: db"}
)

// TestExamine: each mistake in the healthy cluster is found, and nothing else.
func TestExamine(t *testing.T) {
	const front = "selector: {app: web}\n  externalTrafficPolicy"
	for name, tt := range map[string]struct {
		edits []edit
		want  []string // beginnings of code and text, in order
	}{
		"healthy": {},
		"selector": {
			[]edit{{front, "selector: {app: wbe}\n  externalTrafficPolicy"}},
			[]string{"NFQ010 the selector of Service shop/front (app=wbe) matches no Pod; Pod web-1 has app=web"},
		},
		"target port": {
			[]edit{{"ports: [{name: http, port: 8080, protocol", "ports: [{name: http, port: 8081, protocol"}},
			[]string{"NFQ017 Pod shop/web-1 declares 8080/TCP, and the connection goes to 8081/TCP"},
		},
		"one Pod not ready": {
			[]edit{{"podIPs: [{ip: 10.244.2.2}]\n  conditions: [{type: Ready, status: \"True\"}]", "podIPs: [{ip: 10.244.2.2}]\n  conditions: [{type: Ready, status: \"False\", message: probes fail}]"}},
			[]string{
				"NFQ021 1 of 2 Pods of Service shop/db are not ready: web-2 (probes fail)", "NFQ021 1 of 2 Pods of Service shop/front are not ready",
				"NFQ021 1 of 2 Pods of Service shop/web are not ready",
			},
		},
		"no slice":    {[]edit{{webSlice, strings.Replace(webSlice, "service-name: web", "service-name: wbe", 1)}}, []string{"NFQ012 Service shop/web has no EndpointSlice"}},
		"port name":   {[]edit{{"ports: [{name: http, port: 8080, protocol", "ports: [{name: web, port: 8080, protocol"}}, []string{"NFQ015 the EndpointSlices of Service shop/web have no port"}},
		"Pod is gone": {[]edit{{"targetRef: {kind: Pod, namespace: shop, name: web-1}}\n- ", "targetRef: {kind: Pod, namespace: shop, name: web-9}}\n- "}, {"podIP: 10.244.1.2\n  podIPs: [{ip: 10.244.1.2}]", "podIP: 10.244.1.3\n  podIPs: [{ip: 10.244.1.3}]"}}, []string{"NFQ019 1 of 2 endpoints will not answer: the endpoint 10.244.1.2:8080 is Pod shop/web-9, which is not among the objects"}},
		"no load balancer": {
			[]edit{{"status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}", "status: {}"}},
			[]string{"NFQ034 Service shop/front has no load balancer address"},
		},
		"claimed twice": {[]edit{{"clusterIP: 10.96.0.30\n  clusterIPs: [10.96.0.30]", "clusterIP: 10.96.0.30\n  clusterIPs: [10.96.0.30]\n  externalIPs: [203.0.113.5]"}, {"selector: {app: web}\n  ports: [{name: http", "externalIPs: [203.0.113.5]\n  selector: {app: web}\n  ports: [{name: http"}, {"port: 80, targetPort: 8080, nodePort", "port: 443, targetPort: 8080, nodePort"}}, []string{"NFQ008 "}},
		"node's address": {
			[]edit{{"selector: {app: web}\n  ports: [{name: http", "externalIPs: [172.20.0.3]\n  selector: {app: web}\n  ports: [{name: http"}},
			[]string{"NFQ009 172.20.0.3 is an address of node node-b"},
		},
		"other family": {
			[]edit{{"clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20]\n  ipFamilies: [IPv4]", "clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20, \"fd00::20\"]\n  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv4, IPv6]"}},
			[]string{"NFQ016 Service shop/web has no IPv6 endpoints; its EndpointSlices are IPv4"},
		},
		"policy closes a port": {
			[]edit{policy("deny", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{ports: [{port: 9090}]}]}")},
			[]string{
				"NFQ036 NetworkPolicy shop/deny does not allow ingress from anywhere to 8080/TCP of Pod shop/web-2",
				"NFQ036 NetworkPolicy shop/deny does not allow ingress from anywhere to 8080/TCP of Pod shop/web-1",
			},
		},
		"policy of some sources": {[]edit{policy("some", "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}], ports: [{port: http}]}]}")}, nil},
		"outside of the service CIDR": {
			[]edit{{"", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.16/29, \"fd00:10:96::/112\"]}"}},
			[]string{"NFQ038 the cluster IP 10.96.0.30 of Service shop/front is in none of the service CIDRs (10.96.0.16/29)"},
		},
		"no selector": {
			[]edit{{"selector: {app: web}\n  externalTrafficPolicy", "externalTrafficPolicy"}, {"service-name: front", "service-name: fornt"}},
			[]string{"NFQ011 Service shop/front has no selector"},
		},
		"no endpoints": {
			[]edit{{"selector: {app: web}\n  externalTrafficPolicy", "externalTrafficPolicy"}, {"name: front-abc, namespace: shop, labels: {kubernetes.io/service-name: front}}\naddressType: IPv4\nports: [{name: \"\", port: 8080, protocol: TCP}]\nendpoints:\n- {addresses: [10.244.2.2], nodeName: node-b, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-2}}", "name: front-abc, namespace: shop, labels: {kubernetes.io/service-name: front}}\naddressType: IPv4\nports: [{name: \"\", port: 8080, protocol: TCP}]\nendpoints: []"}},
			[]string{"NFQ020 the EndpointSlices of Service shop/front have no endpoints"},
		},
		"no Pod is ready": {
			[]edit{{"metadata: {name: client, namespace: shop, labels: {app: client}}", "metadata: {name: client, namespace: shop, labels: {app: db}}"}, {"selector: {app: web}\n  ports: [{port: 8080", "selector: {app: db}\n  ports: [{port: 8080"}, {"podIPs: [{ip: 10.244.1.9}]\n  conditions: [{type: Ready, status: \"True\"}]", "podIPs: [{ip: 10.244.1.9}]\n  conditions: [{type: PodScheduled, status: \"False\", message: 0/2 nodes are available}]"}},
			[]string{"NFQ013 no Pod of Service shop/db is ready: client (not scheduled: 0/2 nodes are available)"},
		},
		"named target port": {
			[]edit{{"targetPort: 8080, nodePort: 30080", "targetPort: htpp, nodePort: 30080"}},
			[]string{`NFQ014 no container of the Pods of Service shop/web has a port named "htpp"; they have http (8080)`},
		},
		"external IPs that are ignored": {
			[]edit{{"selector: {app: web}\n  ports: [{name: http", "externalIPs: [198.51.100.7]\n  selector: {app: web}\n  ports: [{name: http"}, gateOff},
			[]string{"NFQ053 the externalIPs of Service shop/web have no effect"},
		},
		"two numbers": {
			[]edit{{"", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-by-hand, namespace: shop, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 8088, protocol: TCP}]\nendpoints: [{addresses: [10.9.9.9]}]"}},
			[]string{"NFQ022 port 80/TCP (http) of Service shop/web has different numbers in its EndpointSlices: 8080, 8088"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := worth(broken(t, tt.edits...).Examine())
			ok := len(found) == len(tt.want)
			for i := 0; ok && i < len(found); i++ {
				ok = strings.HasPrefix(fmt.Sprint(found[i].Code, " ", found[i].Text), tt.want[i]) && found[i].Do != ""
			}
			if !ok {
				t.Errorf("found %+v\nwant %q", found, tt.want)
			}
		})
	}
}

// TestNotes: what is worth knowing, and not wrong.
func TestNotes(t *testing.T) {
	const local = "NFQ032 externalTrafficPolicy of Service shop/web is Local, and these nodes have no endpoint for it: node-a; they drop its packets"
	for name, tt := range map[string]struct {
		edits []edit
		want  []string
	}{
		"healthy":              {},
		"hints":                {append(zones("b"), hintA, hintB), nil},
		"hint missing":         {append(zones("b"), hintA), []string{"NFQ037 the topology hints of Service shop/web have no effect: 1 of 2 ready endpoints have none"}},
		"other zone":           {append(zones("c"), hintA, hintB), []string{"NFQ037 the topology hints of Service shop/web have no effect on node-b: no endpoint is for the zone"}},
		"no zone labels":       {[]edit{hintA, hintB}, []string{"NFQ037 the topology hints of Service shop/web have no effect on node-a, node-b"}},
		"to nodes":             {append(nodeHints("node-a", "node-b"), zones("b")...), nil},
		"to one node":          {append(nodeHints("node-a", "node-a"), zones("b")...), []string{"NFQ037 the topology hints of Service shop/web have no effect on node-b: no endpoint is for the node or its zone"}},
		"to a node and a zone": {append(zones("b"), hintA, edit{hintB.from, strings.Replace(hintB.to, "forZones: [{name: b}]", "forNodes: [{name: node-b}]", 1)}), []string{"NFQ037 the topology hints of Service shop/web have no effect: of 2 ready endpoints 1 are for nodes and 1 for zones"}},
		"no hints":             {[]edit{{"  type: NodePort\n", "  type: NodePort\n  trafficDistribution: PreferSameZone\n"}}, []string{"NFQ037 trafficDistribution PreferSameZone of Service shop/web has no effect: no ready endpoint has a topology hint"}},
		"policy Local":         {[]edit{{"  type: NodePort\n", "  type: NodePort\n  externalTrafficPolicy: Local\n"}, {"- {addresses: [10.244.1.2], nodeName: node-a, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-1}}\n- ", "- "}}, []string{local}},
		"affinity":             {[]edit{{"externalTrafficPolicy: Local", "externalTrafficPolicy: Local\n  sessionAffinity: ClientIP"}}, []string{"NFQ033 Service shop/front has session affinity and one endpoint"}},
		"external IPs":         {[]edit{{"selector: {app: web}\n  ports: [{name: http", "externalIPs: [198.51.100.7]\n  selector: {app: web}\n  ports: [{name: http"}}, []string{"NFQ050 Service shop/web has externalIPs"}},
		"Endpoints":            {[]edit{{"", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web, namespace: shop}"}}, []string{"NFQ051 "}},
		"mode ipvs":            {[]edit{{"", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata: {config.conf: \"mode: ipvs\"}"}}, []string{"NFQ052 kube-proxy runs in mode ipvs"}},
		"mode nftables":        {[]edit{{"", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata: {config.conf: \"mode: nftables\"}"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found := broken(t, tt.edits...).Examine()
			ok := len(found) == len(tt.want)
			for i := 0; ok && i < len(found); i++ {
				ok = strings.HasPrefix(fmt.Sprint(found[i].Code, " ", found[i].Text), tt.want[i]) && found[i].Code.Severity() == Note
			}
			if !ok {
				t.Errorf("found %+v\nwant %q", found, tt.want)
			}
		})
	}
}

// TestIgnored: annotations mark findings of their object, and no others; they come last.
func TestIgnored(t *testing.T) {
	const name, address = "metadata: {name: front, namespace: shop}", "status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}"
	wrong := []edit{{address, "status: {}"}, {"selector: {app: web}\n  externalTrafficPolicy", "selector: {app: wbe}\n  externalTrafficPolicy"}}
	annotated := func(object, codes string) edit {
		return edit{object, strings.Replace(object, "}", ", annotations: {"+IgnoreAnnotation+": \""+codes+"\"}}", 1)}
	}
	for name, tt := range map[string]struct {
		edit edit
		want []Code
	}{
		"none":           {edit{}, []Code{SelectorMatchesNothing, NoAddressYet}},
		"one":            {annotated(name, "NFQ034"), []Code{SelectorMatchesNothing}},
		"both":           {annotated(name, "NFQ034, NFQ010"), nil},
		"other code":     {annotated(name, "NFQ03"), []Code{SelectorMatchesNothing, NoAddressYet}},
		"another object": {annotated("metadata: {name: db, namespace: shop}", "NFQ034,NFQ010"), []Code{SelectorMatchesNothing, NoAddressYet}},
	} {
		t.Run(name, func(t *testing.T) {
			edits := wrong
			if tt.edit.from != "" {
				edits = append([]edit{tt.edit}, wrong...)
			}
			var got, ignored []Code
			for _, f := range worth(broken(t, edits...).Examine()) {
				switch {
				case f.Ignored != "":
					ignored = append(ignored, f.Code)
				case ignored != nil:
					t.Errorf("%s is behind what is ignored", f.Code)
				default:
					got = append(got, f.Code)
				}
			}
			if !slices.Equal(got, tt.want) || len(got)+len(ignored) != 2 {
				t.Errorf("found %v, want %v; ignored %v", got, tt.want, ignored)
			}
		})
	}
}

// TestClosedNodePorts is about the proxy's configuration.
func TestClosedNodePorts(t *testing.T) {
	c := broken(t)
	config := servicetable.NodeConfig{NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}
	found := worth(New(c.objects, config).Examine())
	if len(found) != 2 || found[0].Code != AllClosed || found[1].Code != AllClosed {
		t.Errorf("found %+v, want %s for the node ports of two Services", found, AllClosed)
	}
}

// TestNoSlicesOfACluster: the objects of an API server are all there, so that a Service without EndpointSlices has none. In files
// they may be missing.
func TestNoSlicesOfACluster(t *testing.T) {
	for _, tt := range []struct {
		complete bool // as those of files
		want     Code
	}{{false, NoSlices}, {true, NotShown}} {
		c := broken(t)
		c.objects.EndpointSlices = nil
		if tt.complete {
			c.objects.Made = new(manifest.Made)
		}
		var of []Code
		for _, f := range New(c.objects, c.config).Examine() {
			if f.Object == "Service shop/web" {
				of = append(of, f.Code)
			}
		}
		if !slices.Contains(of, tt.want) || slices.Contains(of, NoSlices) == slices.Contains(of, NotShown) {
			t.Errorf("completed %v: %v, want %s", tt.complete, of, tt.want)
		}
	}
}
