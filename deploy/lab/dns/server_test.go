package dns

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// many is a headless Service with more endpoints than a datagram has room for.
func many(n int) string {
	var b strings.Builder
	b.WriteString(`apiVersion: v1
kind: Service
metadata: {name: many, namespace: default}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-1, namespace: default, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
endpoints:
`)
	for i := range n {
		fmt.Fprintf(&b, "- {addresses: [10.244.%d.%d]}\n", i/250, i%250+1)
	}
	return b.String()
}

// serving starts a server over both protocols.
func serving(t *testing.T, zone func() *Zone) (s *Server, udp, tcp string) {
	t.Helper()
	s = NewServer(zone, func(client, local net.Addr) []byte { return []byte("I saw " + client.String()) })
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ServePacket(c); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, c.LocalAddr().String(), l.Addr().String()
}

func exchange(t *testing.T, network, at string, q *dns.Msg) *dns.Msg {
	t.Helper()
	r, _, err := (&dns.Client{Net: network, UDPSize: 4096}).Exchange(q, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestServer: large answers are truncated in datagrams, as far as the client and the network take them, and complete on
// connections. The zone is the current one.
func TestServer(t *testing.T) {
	const endpoints = 100
	var zone atomic.Pointer[Zone]
	zone.Store(NewZone(load(t, many(endpoints))))
	s, udp, tcp := serving(t, zone.Load)
	query := func() *dns.Msg { return new(dns.Msg).SetQuestion("many.default.svc.cluster.local.", dns.TypeA) }
	plain := exchange(t, "udp", udp, query())
	if n := len(plain.Answer); !plain.Truncated || n == 0 || n > 30 || plain.IsEdns0() != nil {
		t.Errorf("without EDNS: truncated %v, %d records, %v", plain.Truncated, n, plain.IsEdns0())
	}
	wide := exchange(t, "udp", udp, query().SetEdns0(4096, false))
	if n := len(wide.Answer); !wide.Truncated || n <= len(plain.Answer) || n == endpoints || wide.IsEdns0() == nil {
		t.Errorf("with EDNS: truncated %v, %d records, %v", wide.Truncated, n, wide.IsEdns0())
	}
	whole := exchange(t, "tcp", tcp, query())
	if whole.Truncated || len(whole.Answer) != endpoints {
		t.Errorf("over TCP: truncated %v, %d records", whole.Truncated, len(whole.Answer))
	}
	// The order differs from answer to answer, as with CoreDNS' loadbalance: 100! orders are not the same by chance.
	first := func(r *dns.Msg) (all []string) {
		for _, rr := range r.Answer {
			all = append(all, rr.String())
		}
		return all
	}
	if slices.Equal(first(whole), first(exchange(t, "tcp", tcp, query()))) {
		t.Error("two answers have the same order")
	}

	id := exchange(t, "udp", udp, withNSID(query()))
	var nsid string
	for _, o := range id.IsEdns0().Option {
		if n, ok := o.(*dns.EDNS0_NSID); ok {
			b, _ := hex.DecodeString(n.Nsid)
			nsid = string(b)
		}
	}
	if !strings.HasPrefix(nsid, "I saw 127.0.0.1:") {
		t.Errorf("NSID %q", nsid)
	}
	out := exchange(t, "udp", udp, new(dns.Msg).SetQuestion("example.org.", dns.TypeA).SetEdns0(1232, false))
	if e, ok := out.IsEdns0().Option[0].(*dns.EDNS0_EDE); out.Rcode != dns.RcodeRefused || !ok || e.ExtraText != outside {
		t.Errorf("outside: %v", out)
	}
	version := query().SetEdns0(1232, false)
	version.IsEdns0().SetVersion(1)
	if r := exchange(t, "udp", udp, version); r.Rcode != dns.RcodeBadVers || len(r.Answer) > 0 {
		t.Errorf("EDNS of another version: %v", r)
	}

	zone.Store(NewZone(new(manifest.Objects)))
	if r := exchange(t, "udp", udp, query()); r.Rcode != dns.RcodeNameError {
		t.Errorf("after the Service is removed: %v", r)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", tcp); err == nil {
		t.Error("it listens after Close")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err == nil {
		t.Error("it serves after Close")
	}
}

func withNSID(q *dns.Msg) *dns.Msg {
	q.SetEdns0(4096, false)
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
	return q
}

// TestConcurrentQueries: many queries at once, from one zone, each get their own answer.
func TestConcurrentQueries(t *testing.T) {
	z := NewZone(load(t, objects))
	_, udp, _ := serving(t, func() *Zone { return z })
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c, err := net.Dial("udp", udp)
			if err != nil {
				t.Error(err)
				return
			}
			conn := &dns.Conn{Conn: c}
			defer conn.Close()
			for range 100 {
				name, want := "web.shop.svc.cluster.local.", "10.96.0.20"
				if i%2 == 0 {
					name, want = "single.shop.svc.cluster.local.", "10.96.0.21"
				}
				q := new(dns.Msg).SetQuestion(name, dns.TypeA)
				if r, _, err := new(dns.Client).ExchangeWithConn(q, conn); err != nil || len(r.Answer) != 1 || r.Answer[0].(*dns.A).A.String() != want {
					t.Errorf("%s: %v, %v", name, r, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestGarbage: what is no query gets an error or nothing, and the server goes on.
func TestGarbage(t *testing.T) {
	z := NewZone(load(t, objects))
	_, udp, tcp := serving(t, func() *Zone { return z })
	for _, at := range []struct{ network, address string }{{"udp", udp}, {"tcp", tcp}} {
		for _, b := range [][]byte{{}, []byte("hello\n"), []byte(strings.Repeat("x", 100)), make([]byte, 12)} {
			c, err := net.Dial(at.network, at.address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(b); err != nil {
				t.Error(err)
			}
			_ = c.Close()
		}
		if r := exchange(t, at.network, at.address, new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)); len(r.Answer) != 1 {
			t.Errorf("afterwards: %v", r)
		}
	}
}

// TestResolver: names are looked up as the programs of a pod do.
func TestResolver(t *testing.T) {
	zone := NewZone(load(t, objects+"\n---\n"+many(100)))
	_, udp, tcp := serving(t, func() *Zone { return zone })
	const config = "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
	r := &Resolver{
		Hosts: "127.0.0.1\tlocalhost\n::1\tlocalhost\n10.244.0.12\tclient # this pod\n", Config: config, Families: []decision.Family{decision.IPv4},
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			if to.String() != "10.96.0.10:53" {
				return nil, fmt.Errorf("dialed %s", to)
			}
			return new(net.Dialer).DialContext(ctx, network, map[string]string{"udp": udp, "tcp": tcp}[network])
		},
	}
	for _, tt := range []struct {
		name    string
		want    int // addresses
		queries string
		err     string
	}{
		{"client", 1, "", ""},
		{"LOCALHOST", 1, "", ""},
		{"web", 1, "web.shop.svc.cluster.local. A 10.96.0.20", ""},
		{"web.shop", 1, "web.shop.shop.svc.cluster.local. A NXDOMAIN, web.shop.svc.cluster.local. A 10.96.0.20", ""},
		{"web.shop.svc.cluster.local.", 1, "web.shop.svc.cluster.local. A 10.96.0.20", ""},
		{"alias", 1, "alias.shop.svc.cluster.local. A 10.96.0.20", ""},
		{"nothing", 0, "nothing.shop.svc.cluster.local. A NXDOMAIN, nothing.svc.cluster.local. A NXDOMAIN, nothing.cluster.local. A NXDOMAIN, nothing. A REFUSED", "no such name: " + outside},
		{"nothing.svc.cluster.local.", 0, "nothing.svc.cluster.local. A NXDOMAIN", "no such name"},
		{"many.default", 100, "", ""},
		{"a..b", 0, "", `"a..b" is not a host name`},
	} {
		l, err := r.Lookup(t.Context(), tt.name)
		var queries []string
		for _, q := range l.Queries {
			queries = append(queries, fmt.Sprintf("%s %s %s", q.Name, q.Type, q.Answer))
		}
		if len(l.Addresses) != tt.want || tt.want < 100 && strings.Join(queries, ", ") != tt.queries || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v by %v, %v; want %d by %s, %q", tt.name, l.Addresses, queries, err, tt.want, tt.queries, tt.err)
		}
	}
	r.Families = []decision.Family{decision.IPv4, decision.IPv6}
	if l, err := r.Lookup(t.Context(), "kube-dns.kube-system"); err != nil || len(l.Queries) != 4 || len(l.Addresses) != 2 || l.Addresses[0].String() != "fd00:10:96::a" || l.Queries[3].Source.Addr().String() != "127.0.0.1" {
		t.Errorf("of both families: %+v, %v", l, err)
	}
	for _, without := range []string{"", "nameserver 127.0.0.1\n", "# none\n"} {
		r.Config = without
		if _, err := r.Lookup(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "only pods") {
			t.Errorf("with %q: %v", without, err)
		}
	}
	// A server that is away: its error, and the query.
	r.Config, r.Dial = config, func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, net.ErrClosed }
	if l, err := r.Lookup(t.Context(), "web"); err == nil || len(l.Queries) != 1 || !strings.Contains(err.Error(), "no answer from the DNS server 10.96.0.10:53") {
		t.Errorf("no server: %+v, %v", l, err)
	}
	// One that refuses: its error has no addresses, which differ from query to query.
	r.Dial = func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return new(net.Dialer).DialContext(ctx, network, c.LocalAddr().String())
	}
	if _, err := r.Lookup(t.Context(), "web"); err == nil || !strings.HasSuffix(err.Error(), "no answer from the DNS server 10.96.0.10:53: read: connection refused") {
		t.Errorf("a server that refuses: %v", err)
	}
}
