package flows

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// observe gives the flow API of a node's daemon.
func observerOf(c *e2etest.Cluster, node string) *remote.Client {
	c.T.Helper()
	o, err := c.NodeObserver(node)
	if err != nil {
		c.T.Fatal(err)
	}
	return o
}

// follower gathers what a stream of flows tells.
type follower struct {
	mu      sync.Mutex
	records []*flow.Record
	missed  []observe.Missed
}

// follow follows the flows of a node until the end of the test.
func follow(c *e2etest.Cluster, node string, q observe.FlowQuery) *follower {
	c.T.Helper()
	o, f := observerOf(c, node), &follower{}
	q.Follow = true
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- o.Flows(ctx, q, func(i observe.Item) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if i.Record != nil {
				f.records = append(f.records, i.Record)
			} else {
				f.missed = append(f.missed, *i.Missed)
			}
			return nil
		})
	}()
	c.T.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.T.Errorf("following the flows of %s: %v", node, err)
		}
	})
	e2etest.Eventually(c.T, e2etest.Timeout, "the reader to be counted", func() bool {
		s, err := o.Stats(c.T.Context())
		return err == nil && s[0].Readers > 0
	})
	return f
}

// of gives the records of the flow from an address, in the order of their arrival.
func (f *follower) of(source net.Addr) []*flow.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	var of []*flow.Record
	for _, r := range f.records {
		if r.Source == source.String() {
			of = append(of, r)
		}
	}
	return of
}

// counted counts the packets and bytes of one port that a host sends and receives, IP
// headers included, by rules of its own.
type counted struct {
	t       *testing.T
	c       *e2etest.Cluster
	host    string
	table   *nftables.Table
	out, in *nftables.Chain
}

// countPort begins to count.
func countPort(c *e2etest.Cluster, host string, port uint16) *counted {
	c.T.Helper()
	n := &counted{t: c.T, c: c, host: host}
	n.do(func(conn *nftables.Conn) error {
		n.table = conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "counted"})
		for _, way := range []struct {
			chain  **nftables.Chain
			name   string
			hook   *nftables.ChainHook
			offset uint32 // of the port in the transport header
		}{{&n.out, "out", nftables.ChainHookOutput, 2}, {&n.in, "in", nftables.ChainHookInput, 0}} {
			*way.chain = conn.AddChain(&nftables.Chain{Name: way.name, Table: n.table, Type: nftables.ChainTypeFilter, Hooknum: way.hook, Priority: nftables.ChainPriorityFilter})
			conn.AddRule(&nftables.Rule{Table: n.table, Chain: *way.chain, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: way.offset, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
				&expr.Counter{},
			}})
		}
		return conn.Flush()
	})
	return n
}

// both gives what was counted until now: sent and received.
func (n *counted) both() (sent, received flow.Count) {
	n.t.Helper()
	n.do(func(conn *nftables.Conn) error {
		for _, way := range []struct {
			chain *nftables.Chain
			to    *flow.Count
		}{{n.out, &sent}, {n.in, &received}} {
			rules, err := conn.GetRules(n.table, way.chain)
			if err != nil {
				return err
			}
			for _, e := range rules[0].Exprs {
				if k, ok := e.(*expr.Counter); ok {
					*way.to = flow.Count{Packets: k.Packets, Bytes: k.Bytes}
				}
			}
		}
		return nil
	})
	return sent, received
}

func (n *counted) do(f func(*nftables.Conn) error) {
	n.t.Helper()
	if err := n.c.Host(n.host).Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		return f(conn)
	}); err != nil {
		n.t.Fatal(err)
	}
}

// sysctl sets something of a host.
func setSysctl(c *e2etest.Cluster, host, name, value string) {
	c.T.Helper()
	c.Must(c.Host(host).Do(func() error {
		return os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	}))
}

// sweep has the kernel of a host forget connections whose time is over, which it does when
// it comes across them.
func sweep(c *e2etest.Cluster, host string) {
	c.T.Helper()
	onConntrack(c, host, func(conn *ct.Conn) error {
		_, err := conn.Dump(nil)
		return err
	})
}

// TestFlowLives: whatever becomes of a connection, each event of its life is told once, in
// order, under one ID, and the bytes are those that the client counts.
func TestFlowLives(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for _, name := range []string{"tcp_timeout_close", "udp_timeout", "udp_timeout_stream"} {
		setSysctl(c, "node-a", "net.netfilter.nf_conntrack_"+name, "1")
	}
	// Long enough for the daemon to read the counters of a closed connection on a busy machine.
	setSysctl(c, "node-a", "net.netfilter.nf_conntrack_tcp_timeout_time_wait", "5")
	// A port that nobody listens at, and one where nobody answers.
	c.Edit(func(s string) string {
		return s + `---
apiVersion: v1
kind: Service
metadata: {name: odd, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.77
  clusterIPs: [10.96.0.77]
  ports:
  - {name: closed, port: 81, protocol: TCP, nodePort: 30071}
  - {name: silent, port: 54, protocol: UDP, nodePort: 30072}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: odd, namespace: default, labels: {kubernetes.io/service-name: odd}}
addressType: IPv4
ports:
- {name: closed, port: 8081, protocol: TCP}
- {name: silent, port: 5454, protocol: UDP}
endpoints:
- addresses: ["10.244.0.4"]
`
	})
	c.Sink("solo", "10.244.0.4:5454")
	f := follow(c, "node-a", observe.FlowQuery{})

	tcp := func(to string, f func(net.Conn)) func() net.Addr {
		return func() net.Addr {
			conn := c.Dial("outside", "tcp", e2etest.AnyPort, to)
			f(conn)
			_ = conn.Close()
			return conn.LocalAddr()
		}
	}
	get := func(conn net.Conn) {
		if _, err := fmt.Fprintf(conn, "GET /download?bytes=100000 HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		var b [100_000]byte
		if n, err := io.ReadFull(r.Body, b[:]); err != nil || n != len(b) {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	}
	for _, tt := range []struct {
		name   string
		port   uint16
		talk   func() net.Addr
		events string
		state  flow.State
		over   bool // the kernel forgets it soon
	}{
		{"curl", 30090, func() net.Addr {
			out, err := c.Host("outside").Run("", "curl", "-sS", "-o", "/dev/null", "-w", "%{local_ip}:%{local_port} %{size_download}", "http://172.21.0.2:30090/download?bytes=100000")
			if err != nil {
				t.Fatal(err)
			}
			from, size, _ := strings.Cut(out, " ")
			if size != "100000" {
				t.Fatalf("curl says %q", out)
			}
			return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
		}, "decided answered established closing closed gone", flow.Closed, true},
		{"TCP closed by the client", 30090, tcp("172.21.0.2:30090", get), "decided answered established closing closed gone", flow.Closed, true},
		{"TCP closed by the server", 30090, tcp("172.21.0.2:30090", func(conn net.Conn) {
			c.Ask(conn)
			var b [1]byte
			_, _ = conn.Read(b[:]) // the end
		}), "decided answered established closing closed gone", flow.Closed, true},
		{"TCP reset by the client", 30090, tcp("172.21.0.2:30090", func(conn net.Conn) {
			get(conn)
			if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}), "decided answered established reset gone", flow.Reset, true},
		{"TCP refused by the endpoint", 30071, func() net.Addr {
			from := netip.MustParseAddrPort("172.21.0.100:41071")
			if _, err := c.TryDial("outside", "tcp", from, "172.21.0.2:30071"); err == nil {
				t.Error("connected")
			}
			return net.TCPAddrFromAddrPort(from)
		}, "decided refused gone", flow.Refused, true},
		{"TCP rejected by the verdict", 30100, func() net.Addr {
			from := netip.MustParseAddrPort("172.21.0.100:41100")
			if _, err := c.TryDial("outside", "tcp", from, "172.21.0.2:30100"); err == nil {
				t.Error("connected")
			}
			return net.TCPAddrFromAddrPort(from)
		}, "rejected", flow.Rejected, false},
		{"UDP answered", 30090, func() net.Addr {
			conn := c.Dial("outside", "udp", e2etest.AnyPort, "172.21.0.2:30090")
			c.Ask(conn)
			return conn.LocalAddr()
		}, "decided answered gone", flow.Expired, true},
		{"UDP unanswered", 30072, func() net.Addr {
			conn := c.Dial("outside", "udp", e2etest.AnyPort, "172.21.0.2:30072")
			if _, err := conn.Write([]byte("anybody?")); err != nil {
				t.Fatal(err)
			}
			return conn.LocalAddr()
		}, "decided gone", flow.Unanswered, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "curl" {
				netnstest.RequireTool(t, "curl")
			}
			n := countPort(c, "outside", tt.port)
			defer removeCounters(c, "outside")
			from := tt.talk()
			e2etest.Eventually(t, 3*e2etest.Timeout, "the flow's last event", func() bool {
				sweep(c, "node-a")
				of := f.of(from)
				return len(of) > 0 && (of[len(of)-1].Event == flow.Gone || !tt.over)
			})
			records := f.of(from)
			var events []string
			for _, r := range records {
				events = append(events, r.Event.String())
				if r.ID != records[0].ID || r.ID == "" {
					t.Errorf("%s has ID %q, the first event has %q", r.Event, r.ID, records[0].ID)
				}
			}
			if got := strings.Join(events, " "); got != tt.events {
				t.Errorf("events %s, want %s", got, tt.events)
			}
			last := records[len(records)-1]
			if last.Life.State != tt.state || !last.Life.Over || last.Life.Incomplete {
				t.Errorf("in the end %+v", last.Life)
			}
			one, err := observerOf(c, "node-a").Flow(t.Context(), last.ID)
			if err != nil {
				t.Fatal(err)
			}
			if len(one.Steps) == 0 || one.Life.State != tt.state {
				t.Errorf("by its ID: %+v", one)
			}
			var history []string
			for _, m := range one.Life.History {
				history = append(history, m.Event.String())
			}
			if !slices.Equal(history, events) {
				t.Errorf("history %v, events %v", history, events)
			}
			if !tt.over {
				return
			}
			sent, received := n.both()
			if last.Life.Sent == nil || *last.Life.Sent != sent || *last.Life.Received != received {
				t.Errorf("the record has %+v sent and %+v received, the client counts %+v and %+v", last.Life.Sent, last.Life.Received, sent, received)
			}
			if i := slices.IndexFunc(records, func(r *flow.Record) bool { return r.Event == flow.Closed }); i >= 0 && (records[i].Life.Sent == nil || *records[i].Life.Sent != sent) {
				t.Errorf("when it was closed %+v was sent, the client counts %+v", records[i].Life.Sent, sent)
			}
			if want := "10.244.0.1"; e2etest.HostOf(last.Life.SeenSource) != want {
				t.Errorf("the endpoint sees %s, want %s", last.Life.SeenSource, want)
			}
			if last.Stages == nil || last.Stages.Waited == nil || *last.Stages.Waited <= 0 {
				t.Errorf("stages %+v", last.Stages)
			}
		})
	}
	if len(f.missed) > 0 {
		t.Errorf("missed %+v", f.missed)
	}
}

// removeCounters takes countPort's rules away.
func removeCounters(c *e2etest.Cluster, host string) {
	n := counted{t: c.T, c: c, host: host}
	n.do(func(conn *nftables.Conn) error {
		conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "counted"})
		return conn.Flush()
	})
}
