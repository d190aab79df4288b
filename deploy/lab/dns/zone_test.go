package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

const objects = `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::a"], ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}, {name: "https", port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.5]}, {addresses: [10.244.0.6], conditions: {ready: false}}]
---
apiVersion: v1
kind: Service
metadata: {name: single, namespace: shop}
spec: {clusterIP: 10.96.0.21, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-4, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: sql, port: 5432}, {name: "", port: 1}]
endpoints:
- {addresses: [10.244.0.7], hostname: db-0, conditions: {ready: true}}
- {addresses: [10.244.0.8], hostname: db-1, conditions: {ready: true}}
- {addresses: [10.244.0.9], conditions: {ready: true}}
- {addresses: [10.244.0.10], hostname: db-3, conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv6
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: ["fd00:10:244::7"], hostname: db-0}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-name, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: FQDN
endpoints: [{addresses: ["db.example.org"]}]
---
apiVersion: v1
kind: Service
metadata: {name: early, namespace: shop}
spec: {clusterIP: None, publishNotReadyAddresses: true}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: early-1, namespace: shop, labels: {kubernetes.io/service-name: early}}
addressType: IPv4
endpoints: [{addresses: [10.244.0.11], conditions: {ready: false}}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {clusterIP: None}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: shop}
spec: {type: ExternalName, externalName: www.example.org}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local.}
---
apiVersion: v1
kind: Service
metadata: {name: loop, namespace: shop}
spec: {type: ExternalName, externalName: loop.shop.svc.cluster.local}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
status: {phase: Running, podIP: 10.244.0.12, podIPs: [{ip: 10.244.0.12}, {ip: "fd00:10:244::c"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop}
status: {phase: Succeeded, podIP: 10.244.0.13}
`

func load(t testing.TB, text string) *manifest.Objects {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := labfile.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// texts are records in short: type and data, sorted.
func texts(list []dns.RR) (all []string) {
	for _, rr := range list {
		h := rr.Header()
		all = append(all, strings.ReplaceAll(dns.TypeToString[h.Rrtype]+" "+strings.TrimPrefix(rr.String(), h.String()), "shop.svc.cluster.local.", "~"))
	}
	slices.Sort(all)
	return all
}

// TestAnswer: records are those of Kubernetes' specification, and names that do not exist differ from those without
// records of a type. "~" is shop.svc.cluster.local.
func TestAnswer(t *testing.T) {
	z := NewZone(load(t, objects))
	const nx, nodata, refused = "NXDOMAIN", "NODATA", "REFUSED"
	for _, tt := range []struct {
		name, kind string
		want       []string // records, or a single code
		extra      []string
	}{
		// 2.2 schema version
		{"dns-version.cluster.local.", "TXT", []string{`TXT "1.1.0"`}, nil},
		{"dns-version.cluster.local.", "A", []string{nodata}, nil},
		// 2.3 ClusterIP
		{"web.shop.svc.cluster.local.", "A", []string{"A 10.96.0.20"}, nil},
		{"WEB.Shop.svc.Cluster.Local.", "A", []string{"A 10.96.0.20"}, nil},
		{"web.shop.svc.cluster.local.", "AAAA", []string{nodata}, nil},
		{"kube-dns.kube-system.svc.cluster.local.", "AAAA", []string{"AAAA fd00:10:96::a"}, nil},
		{"kube-dns.kube-system.svc.cluster.local.", "ANY", []string{"A 10.96.0.10", "AAAA fd00:10:96::a"}, nil},
		{"_http._tcp.web.shop.svc.cluster.local.", "SRV", []string{"SRV 0 100 80 web.~"}, []string{"A 10.96.0.20"}},
		{"_dns._udp.kube-dns.kube-system.svc.cluster.local.", "SRV", []string{"SRV 0 100 53 kube-dns.kube-system.svc.cluster.local."}, []string{"A 10.96.0.10", "AAAA fd00:10:96::a"}},
		{"_dns._tcp.kube-dns.kube-system.svc.cluster.local.", "SRV", []string{nx}, nil},
		{"_tcp.web.shop.svc.cluster.local.", "SRV", []string{nodata}, nil},
		{"_tcp.single.shop.svc.cluster.local.", "SRV", []string{nx}, nil}, // unnamed ports have none
		{"20.0.96.10.in-addr.arpa.", "PTR", []string{"PTR web.~"}, nil},
		{"a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.", "PTR", []string{"PTR kube-dns.kube-system.svc.cluster.local."}, nil},
		{"96.10.in-addr.arpa.", "PTR", []string{nodata}, nil},
		{"99.0.96.10.in-addr.arpa.", "PTR", []string{nx}, nil},
		{"10-244-0-5.web.shop.svc.cluster.local.", "A", []string{"A 10.244.0.5"}, nil},
		{"10-244-0-6.web.shop.svc.cluster.local.", "A", []string{nx}, nil},
		{"5.0.244.10.in-addr.arpa.", "PTR", []string{nx}, nil}, // its Service has a cluster IP
		// 2.4 headless
		{"db.shop.svc.cluster.local.", "A", []string{"A 10.244.0.7", "A 10.244.0.8", "A 10.244.0.9"}, nil},
		{"db.shop.svc.cluster.local.", "AAAA", []string{"AAAA fd00:10:244::7"}, nil},
		{"db-0.db.shop.svc.cluster.local.", "A", []string{"A 10.244.0.7"}, nil},
		{"db-0.db.shop.svc.cluster.local.", "AAAA", []string{"AAAA fd00:10:244::7"}, nil},
		{"10-244-0-9.db.shop.svc.cluster.local.", "A", []string{"A 10.244.0.9"}, nil},
		{"db-3.db.shop.svc.cluster.local.", "A", []string{nx}, nil},
		{"_sql._tcp.db.shop.svc.cluster.local.", "SRV", []string{"SRV 0 25 5432 10-244-0-9.db.~", "SRV 0 25 5432 db-0.db.~", "SRV 0 25 5432 db-1.db.~"},
			[]string{"A 10.244.0.7", "A 10.244.0.8", "A 10.244.0.9", "AAAA fd00:10:244::7"}},
		{"7.0.244.10.in-addr.arpa.", "PTR", []string{"PTR db-0.db.~"}, nil},
		{"empty.shop.svc.cluster.local.", "A", []string{nx}, nil},
		{"early.shop.svc.cluster.local.", "A", []string{"A 10.244.0.11"}, nil},
		// 2.5 external names
		{"elsewhere.shop.svc.cluster.local.", "A", []string{"CNAME www.example.org."}, nil},
		{"elsewhere.shop.svc.cluster.local.", "CNAME", []string{"CNAME www.example.org."}, nil},
		{"alias.shop.svc.cluster.local.", "A", []string{"A 10.96.0.20", "CNAME web.~"}, nil},
		{"alias.shop.svc.cluster.local.", "AAAA", []string{"CNAME web.~", nodata}, nil},
		// 2.6 pods
		{"10-244-0-12.shop.pod.cluster.local.", "A", []string{"A 10.244.0.12"}, nil},
		{"fd00-10-244--c.shop.pod.cluster.local.", "AAAA", []string{"AAAA fd00:10:244::c"}, nil},
		{"10-244-0-12.default.pod.cluster.local.", "A", []string{nx}, nil},
		{"10-244-0-13.shop.pod.cluster.local.", "A", []string{nx}, nil},
		// names above others exist
		{"cluster.local.", "A", []string{nodata}, nil},
		{"svc.cluster.local.", "A", []string{nodata}, nil},
		{"shop.svc.cluster.local.", "A", []string{nodata}, nil},
		{"nothing.shop.svc.cluster.local.", "A", []string{nx}, nil},
		{"web.nowhere.svc.cluster.local.", "A", []string{nx}, nil},
		{"cluster.local.", "NS", []string{"NS ns.dns.cluster.local."}, nil},
		{"ns.dns.cluster.local.", "A", []string{"A 10.96.0.10"}, nil},
		// no upstream
		{"example.org.", "A", []string{refused}, nil},
		{".", "NS", []string{refused}, nil},
		{"local.", "A", []string{refused}, nil},
		{"notcluster.local.", "A", []string{refused}, nil},
		{"cluster.local.", "AXFR", []string{refused}, nil},
	} {
		q := new(dns.Msg).SetQuestion(tt.name, dns.StringToType[tt.kind])
		r := z.Answer(q)
		got := texts(r.Answer)
		switch {
		case r.Rcode == dns.RcodeNameError:
			got = append(got, nx)
		case r.Rcode == dns.RcodeRefused:
			got = append(got, refused)
		case len(r.Ns) > 0:
			got = append(got, nodata)
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(texts(r.Extra), tt.extra) {
			t.Errorf("%s %s: %v, additional %v; want %v, %v", tt.name, tt.kind, got, texts(r.Extra), tt.want, tt.extra)
		}
		// A negative answer has the zone's SOA, with its own time to live.
		if denies := r.Rcode == dns.RcodeNameError || got[len(got)-1] == nodata; denies != (len(r.Ns) == 1) || denies && (r.Ns[0].Header().Ttl != negativeTTL || r.Ns[0].(*dns.SOA).Minttl != negativeTTL) {
			t.Errorf("%s %s: authority %v", tt.name, tt.kind, r.Ns)
		}
		for _, rr := range r.Answer {
			if rr.Header().Ttl != recordTTL {
				t.Errorf("%s %s: TTL of %s", tt.name, tt.kind, rr)
			}
		}
		if r.Authoritative == (r.Rcode == dns.RcodeRefused) || r.Id != q.Id || !r.Response {
			t.Errorf("%s %s: header %+v", tt.name, tt.kind, r.MsgHdr)
		}
	}
	if r := z.Answer(new(dns.Msg).SetQuestion("loop.shop.svc.cluster.local.", dns.TypeA)); len(r.Answer) != maxAliases {
		t.Errorf("a loop of aliases: %v", r)
	}
	chaos := new(dns.Msg).SetQuestion("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	update := new(dns.Msg).SetUpdate(Domain)
	for want, q := range map[int]*dns.Msg{dns.RcodeRefused: chaos, dns.RcodeNotImplemented: update, dns.RcodeFormatError: new(dns.Msg)} {
		if r := z.Answer(q); r.Rcode != want {
			t.Errorf("%v: %s, want %s", q.Question, dns.RcodeToString[r.Rcode], dns.RcodeToString[want])
		}
	}
}

func TestServers(t *testing.T) {
	if got := Servers(load(t, objects)); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}) {
		t.Errorf("servers %v", got)
	}
	if got := Servers(new(manifest.Objects)); got != nil {
		t.Errorf("servers of no objects: %v", got)
	}
}

// TestNamesThatAreNone: objects whose names have no form in DNS have no records, and all others have theirs.
func TestNamesThatAreNone(t *testing.T) {
	o := load(t, objects)
	long := strings.Repeat("x", 64)
	for _, s := range o.Services {
		switch s.Name {
		case "web":
			s.Name = long
		case "single":
			s.Name = "a..b"
		case "elsewhere":
			s.Spec.ExternalName = long + ".example.org"
		}
	}
	for _, s := range o.EndpointSlices {
		if s.Name == "db-4" {
			*s.Endpoints[0].Hostname = long
		}
	}
	z := NewZone(o)
	for name, records := range z.names {
		if !valid(name) {
			t.Errorf("the zone has %q", name)
		}
		for _, rr := range records {
			if _, err := dns.PackRR(rr, make([]byte, 1024), 0, nil, false); err != nil {
				t.Errorf("%s: %v", rr, err)
			}
		}
	}
	for kind, want := range map[uint16]int{dns.TypeA: 3, dns.TypeSRV: 0} {
		if r := z.Answer(new(dns.Msg).SetQuestion("db.shop.svc.cluster.local.", kind)); len(r.Answer) != want {
			t.Errorf("%v", r)
		}
	}
	if r := z.Answer(new(dns.Msg).SetQuestion("_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV)); len(r.Answer) != 2 {
		t.Errorf("ports of a Service with an endpoint without a name: %v", r)
	}
}

func FuzzReply(f *testing.F) {
	z := NewZone(load(f, objects))
	for _, q := range []*dns.Msg{
		new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA),
		new(dns.Msg).SetQuestion("_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV).SetEdns0(4096, true),
		new(dns.Msg).SetQuestion("loop.shop.svc.cluster.local.", dns.TypeANY),
		new(dns.Msg).SetUpdate(Domain), new(dns.Msg),
	} {
		b, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, datagram bool) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return
		}
		r := z.reply(q, datagram, func() string { return "6d65" })
		out, err := r.Pack()
		if err != nil {
			return // answered SERVFAIL
		}
		if datagram && len(out) > maxDatagram {
			t.Errorf("a datagram of %d bytes", len(out))
		}
		if r.Id != q.Id || !r.Response {
			t.Errorf("header %+v", r.MsgHdr)
		}
	})
}
