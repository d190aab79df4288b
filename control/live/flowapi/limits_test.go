package flowapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

const (
	services  = 4000
	endpoints = 10 // of each
	flows     = 8192
)

// noOwners has no owner of any address.
type noOwners struct{}

func (noOwners) Owner(netip.Addr) flow.Owner                     { return flow.Owner{} }
func (noOwners) Pods(func(name, node string, a []netip.Addr))    {}
func (noOwners) Nodes(func(name string, addresses []netip.Addr)) {}

// large is a node with many services and flows.
func large(t *testing.T) *localnode.Node {
	t.Helper()
	ports := make([]*decision.ServicePort, services)
	for i := range ports {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "shop", Name: fmt.Sprintf("service-%05d", i), Port: "http"}, Protocol: decision.TCP, Family: decision.IPv4,
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, HasEndpoints: true,
		}
		for k := range endpoints {
			n := i*endpoints + k
			s.Endpoints = append(s.Endpoints, decision.Endpoint{
				AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 | byte(n>>16), byte(n >> 8), byte(n)}), 8080),
				Pod:      fmt.Sprintf("shop/service-%05d-%05d-%05d", i, k*7919, n), NodeName: fmt.Sprintf("node-%d", n%100), Ready: true,
			})
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
		}
		ports[i] = s
	}
	table := decision.NewTable(1, time.Now(), decision.Node{Name: "node-a"}, ports)
	j := journal.New(journal.Config{Flows: flows})
	j.SetTable(journal.Published{Table: table}) // whose services are there anyhow
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { j.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	for n := range flows {
		p := decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 1000), Destination: netip.AddrPortFrom(ports[n%services].ClusterIP, 80)}
		j.Flows([]flow.Flow{{
			Packet: p, Table: table, Node: table.Node(), Time: time.Now(), Waited: -1,
			Decision: decision.Decision{Verdict: decision.DNAT, Reason: decision.Balanced, ServicePort: ports[n%services], Index: 1, Generation: 1},
		}})
		await(t, "the flow is not known", func() bool { return n%4096 < 4095 || j.Known().Flows > n })
	}
	return localnode.New(localnode.Config{
		Name: "node-a", Journal: j, Owners: noOwners{}, Table: func() *decision.Table { return table }, Stats: func() *engine.Stats { return nil },
	})
}

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// serveUnix serves at a Unix socket.
func serveUnix(t *testing.T, o observe.Observer, limits *limit.Set) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api")
	l, err := flowapi.Listen(flowapi.Address{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- flowapi.New(flowapi.Config{Observer: o, Limits: limits, Log: slog.New(slog.DiscardHandler)}).Serve(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

// request sends a request, and reads nothing.
func request(t *testing.T, socket, path string) *bufio.Reader {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	return bufio.NewReaderSize(c, 16)
}

// answer reads the answer to request.
func answer(t *testing.T, c *bufio.Reader) (status int, body []byte) {
	t.Helper()
	r, err := http.ReadResponse(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, body
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// count is what the set counts of a quota.
func count(s *limit.Set, what string) limit.Count {
	for _, c := range s.Counts() {
		if c.What == what {
			return c
		}
	}
	return limit.Count{}
}

// TestClientsThatDoNotRead: the memory for clients that do not read is bounded, whatever they
// request, and however long the answer is.
func TestClientsThatDoNotRead(t *testing.T) {
	node := large(t)
	for _, c := range []struct {
		path, what string
		check      func([]byte) error
	}{
		{"/v1/services", "requests", func(b []byte) error {
			var s observe.Services
			if err := json.Unmarshal(b, &s); err != nil || len(s.Services) != services || len(s.Services[services-1].Endpoints) != endpoints || s.Nodes[0] != "node-a" {
				return fmt.Errorf("%d services, %w", len(s.Services), err)
			}
			return nil
		}},
		{"/v1/topology", "requests", func(b []byte) error {
			var topology observe.Topology
			if err := json.Unmarshal(b, &topology); err != nil || len(topology.Pods) != services*endpoints {
				return fmt.Errorf("%d pods, %w", len(topology.Pods), err)
			}
			return nil
		}},
		{"/v1/flows?limit=0", "streams of flows", func(b []byte) error {
			if n := strings.Count(string(b), "\n"); n != flows {
				return fmt.Errorf("%d flows", n)
			}
			return nil
		}},
	} {
		t.Run(c.path, func(t *testing.T) {
			limits := new(limit.Set)
			socket := serveUnix(t, node, limits)
			_, whole := answer(t, request(t, socket, c.path)) // and what is made once is there
			await(t, "the first is still counted", func() bool { return count(limits, c.what).Taken == 0 })
			before := heap()
			var waiting []*bufio.Reader
			for range 64 {
				waiting = append(waiting, request(t, socket, c.path))
			}
			for _, conn := range waiting { // all have been answered, as far as the kernel's buffers go
				if _, err := conn.Peek(1); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "not all are taken or refused", func() bool {
				n := count(limits, c.what)
				return n.Taken == 32 && n.RefusedTotal == 32
			})
			// The kernel's buffers fill up, and then nothing goes on.
			least := int64(0)
			for same := 0; same < 10; same++ {
				if now := heap() - before; now > least {
					least, same = now, 0
				}
			}
			if most := int64(2*len(whole) + 48<<20); least > most {
				t.Errorf("%d MiB of heap for 32 answers of %d MiB each", least>>20, len(whole)>>20)
			}
			// One more gets the error that the limit is reached.
			status, body := answer(t, request(t, socket, c.path))
			want := fmt.Sprintf(`{"status":503,"error":"too many %s: all clients together have 32, the limit of this server: try again later"}`+"\n", c.what)
			if status != 503 || string(body) != want {
				t.Errorf("%d %s, want 503 %s", status, body, want)
			}
			// One that reads at last gets all.
			for _, conn := range waiting {
				status, body := answer(t, conn)
				if status == 503 {
					continue
				}
				if err := c.check(body); err != nil {
					t.Errorf("%d: %v", status, err)
				}
				return
			}
			t.Error("none is served")
		})
	}
}

// TestOneClientLeavesRoom: a client at its own limit keeps no other client out.
func TestOneClientLeavesRoom(t *testing.T) {
	f := observetest.New("node-a")
	limits := new(limit.Set)
	h := flowapi.New(flowapi.Config{Observer: f, Limits: limits})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{}))
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	stream := func(from string) {
		r := httptest.NewRequest("GET", "http://localhost/v1/flows?follow", nil).WithContext(ctx)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		before := count(limits, "streams of flows")
		streams.Go(func() { h.ServeHTTP(w, r) })
		await(t, "neither taken nor refused", func() bool {
			n := count(limits, "streams of flows")
			return n.Taken+int(n.RefusedEach+n.RefusedTotal) > before.Taken+int(before.RefusedEach+before.RefusedTotal)
		})
	}
	for range 12 {
		stream("10.0.0.1:1")
	}
	if n := count(limits, "streams of flows"); n.Taken != 8 || n.RefusedEach != 4 {
		t.Errorf("one client: %+v, want 8 and 4 refused", n)
	}
	for i := range 30 {
		stream(fmt.Sprintf("10.0.1.%d:1", i))
	}
	if n := count(limits, "streams of flows"); n.Taken != 24 || n.RefusedTotal != 14 {
		t.Errorf("many clients: %+v, want 24 and 14 refused", n)
	}
	// Requests have a share of their own.
	r := httptest.NewRequest("GET", "http://localhost/v1/stats", nil).WithContext(ctx)
	r.RemoteAddr = "10.0.0.1:1"
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("a request: %d %s", w.Code, w.Body)
	}
}

// TestConnectionsAreLimited: those beyond the limit get an answer in JSON, too.
func TestConnectionsAreLimited(t *testing.T) {
	limits := new(limit.Set)
	socket := serveUnix(t, observetest.New("node-a"), limits)
	await(t, "nothing is counted", func() bool { return count(limits, "connections").Total > 0 })
	most := count(limits, "connections").Total // 256, where there may be enough descriptors
	for range most {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	await(t, "not all are accepted", func() bool { return count(limits, "connections").Taken == most })
	want := fmt.Sprintf(`{"status":503,"error":"too many connections: all clients together have %d, the limit of this server: try again later"}`+"\n", most)
	if status, body := answer(t, request(t, socket, "/v1/stats")); status != 503 || string(body) != want {
		t.Errorf("%d %s, want 503 %s", status, body, want)
	}
}
