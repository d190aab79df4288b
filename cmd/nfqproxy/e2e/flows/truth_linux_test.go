package flows

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// logbook is what the pods of a test note of the connections they accept, by what they see
// as the client.
type logbook struct {
	mu      sync.Mutex
	entries map[netip.AddrPort][]visitor
}

// visitor is one connection that a pod accepted.
type visitor struct {
	pod  string
	at   netip.AddrPort // where it was asked
	read int            // bytes
}

// keep has a pod accept connections until the end of the test: it reads to the end, answers
// with as many bytes, and notes both.
func (l *logbook) keep(c *e2etest.Cluster, pod string, at netip.AddrPort) {
	c.T.Helper()
	listener, err := c.Host(pod).Listen(c.T.Context(), at)
	if err != nil {
		c.T.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				b, err := io.ReadAll(conn)
				if err == nil {
					_, err = conn.Write(b)
				}
				if err != nil {
					c.T.Errorf("%s, asked by %s: %v", pod, conn.RemoteAddr(), err)
					return
				}
				from := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
				l.mu.Lock()
				defer l.mu.Unlock()
				l.entries[from] = append(l.entries[from], visitor{pod, conn.LocalAddr().(*net.TCPAddr).AddrPort(), len(b)})
			})
		}
	})
	c.T.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
}

// TestNoRecordLies compares 10,000 records with the kernel's connection table and with what
// the pods noted themselves: the clients, the endpoints, and the number of connections. It is not
// parallel to other tests: the daemon has to keep up with all events.
func TestNoRecordLies(t *testing.T) {
	const connections, workers = 10_000, 8
	c := e2etest.NewCluster(t)
	c.Edit(func(s string) string {
		return s + `---
apiVersion: v1
kind: Service
metadata: {name: noted, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.78
  clusterIPs: [10.96.0.78]
  ports:
  - {port: 70, protocol: TCP, nodePort: 30078}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: noted, namespace: default, labels: {kubernetes.io/service-name: noted}}
addressType: IPv4
ports:
- {name: "", port: 7000, protocol: TCP}
endpoints:
- addresses: ["10.244.0.2"]
  targetRef: {kind: Pod, namespace: default, name: web-1}
- addresses: ["10.244.1.2"]
  targetRef: {kind: Pod, namespace: default, name: web-2}
- addresses: ["10.244.1.3"]
  targetRef: {kind: Pod, namespace: default, name: web-3}
`
	})
	// The kernel's entries have to outlast the test, however long it takes.
	for _, state := range []string{"time_wait", "close", "last_ack", "close_wait", "fin_wait"} {
		c.Must(c.Host("node-a").SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_"+state, "3600"))
	}
	noted := &logbook{entries: make(map[netip.AddrPort][]visitor)}
	for pod, at := range map[string]string{"web-1": "10.244.0.2:7000", "web-2": "10.244.1.2:7000", "web-3": "10.244.1.3:7000"} {
		noted.keep(c, pod, netip.MustParseAddrPort(at))
	}

	// Half of them from a pod to the cluster IP, half from outside to the node port; none of
	// two from one port.
	length := func(port uint16) int { return 1 + int(port)%1000 }
	var asking sync.WaitGroup
	for w := range workers {
		asking.Go(func() {
			for i := w; i < connections; i += workers {
				host, from, to := "shell", "10.244.0.9", "10.96.0.78:70"
				if i%2 == 1 {
					host, from, to = "outside", "172.21.0.100", "172.21.0.2:30078"
				}
				source := netip.AddrPortFrom(netip.MustParseAddr(from), uint16(20_000+i/2))
				conn, err := c.Host(host).Dial(t.Context(), "tcp", source, netip.MustParseAddrPort(to))
				if err == nil {
					_, err = io.WriteString(conn, strings.Repeat("x", length(source.Port())))
				}
				if err == nil {
					err = conn.(*net.TCPConn).CloseWrite()
				}
				var n int64
				if err == nil {
					n, err = io.Copy(io.Discard, conn)
					_ = conn.Close()
				}
				if err != nil || n != int64(length(source.Port())) {
					t.Errorf("from %s: %d bytes came back, %v", source, n, err)
					return
				}
			}
		})
	}
	asking.Wait()
	if t.Failed() {
		return
	}

	node := observerOf(c, "node-a")
	// again are the flows of repeated SYNs. On a machine on which a SYN waits in the queue for a second
	// there is a second one. If that is decided after the end of the connection, it replaces the entry,
	// as in the kernel (nf_conntrack_proto_tcp.c: a SYN reopens a connection in TIME_WAIT).
	again := make(map[netip.AddrPort]*flow.Record)
	repeatedSYN := func(r *flow.Record) bool { return r.Conntrack == conntrack.Replaced.String() }
	list := func() map[netip.AddrPort]*flow.Record {
		records := make(map[netip.AddrPort]*flow.Record)
		if err := node.Flows(t.Context(), observe.FlowQuery{Service: "default/noted", Limit: "0"}, func(i observe.Item) error {
			from := netip.MustParseAddrPort(i.Record.Source)
			switch {
			case repeatedSYN(i.Record):
				again[from] = i.Record
			case records[from] != nil:
				t.Errorf("two flows from %s", from)
			default:
				records[from] = i.Record
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return records
	}
	// Some records, and not all of them: on a busy machine the daemon needs long for those.
	var states []string
	for _, s := range flow.States() {
		if s != flow.Closed {
			states = append(states, s.String())
		}
	}
	notClosed := strings.Join(states, ",")
	var open *flow.Record
	var asked error
	t.Cleanup(func() {
		if t.Failed() && open != nil {
			t.Logf("still open: %+v, %+v", *open, *open.Life)
		}
		if t.Failed() {
			t.Logf("the last answer came with error %v", asked)
		}
	})
	// Rarely, too: for each answer the daemon looks at all flows, and meanwhile it cannot note
	// what became of them.
	pace := time.NewTicker(time.Second)
	defer pace.Stop()
	e2etest.Eventually(t, 3*e2etest.Timeout, "all connections to be closed", func() bool {
		<-pace.C
		open = nil
		asked = node.Flows(t.Context(), observe.FlowQuery{Service: "default/noted", State: notClosed, Limit: "100"}, func(i observe.Item) error {
			if !repeatedSYN(i.Record) {
				open = i.Record
			}
			return nil
		})
		return asked == nil && open == nil
	})
	entries := connectionsOf(c, "node-a")
	flushConnections(c, "node-a") // the kernel reports each, with its counters
	e2etest.Eventually(t, 3*e2etest.Timeout, "all flows to be over", func() bool {
		<-pace.C
		for _, r := range list() {
			if !r.Life.Over {
				return false
			}
		}
		return true
	})
	if s, err := node.Services(t.Context(), observe.ServiceQuery{Service: "default/noted"}); err != nil || s.Services[0].Flows.Open != 0 {
		t.Errorf("all flows are over, and the service says %+v, %v", s, err)
	}
	records := list()
	if len(again) > connections/1000 {
		t.Fatalf("%d flows of repeated SYNs, want few", len(again))
	}
	if len(records) != connections || len(entries) < connections-len(again) || len(noted.entries) != connections {
		for from, r := range records {
			if _, ok := entries[from]; !ok {
				t.Logf("no entry of the kernel: %+v, %+v", *r, *r.Life)
			}
		}
		t.Fatalf("%d records, %d entries of the kernel, %d clients seen by the pods: want %d each", len(records), len(entries), len(noted.entries), connections)
	}
	stats, err := node.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// On a machine that is too busy events are lost, or not asked for; then the daemon reads
	// the connection table, and says of which flows it may have missed something.
	missed := stats[0].Kernel.Resyncs > 0
	for from, r := range records {
		if again[from] != nil {
			continue // its entry in the kernel is that of the repeated SYN
		}
		e, l := entries[from], r.Life
		switch {
		case l.Incomplete && !missed:
			t.Errorf("the record of %s is incomplete, and nothing was missed", from)
		case l.Incomplete && l.Sent == nil && l.Received == nil: // the rest of it has to be true
			l.Sent = &flow.Count{Packets: e.CountersOrig.Packets, Bytes: e.CountersOrig.Bytes}
			l.Received = &flow.Count{Packets: e.CountersReply.Packets, Bytes: e.CountersReply.Bytes}
		}
		if why := lie(r, e, noted.entries[netip.MustParseAddrPort(r.Life.SeenSource)], length(from.Port())); why != "" {
			t.Errorf("the record of %s: %s", from, why)
		}
	}
	s, err := node.Services(t.Context(), observe.ServiceQuery{Service: "default/noted"})
	if err != nil {
		t.Fatal(err)
	}
	perPod := make(map[string]uint64)
	for _, v := range noted.entries {
		perPod["default/"+v[0].pod]++
	}
	for _, r := range again {
		perPod[r.Pod]++
	}
	for _, e := range s.Services[0].Endpoints {
		if e.Flows.Total != perPod[e.Pod] {
			t.Errorf("%s: %d flows counted, %d noted by the pod", e.Pod, e.Flows.Total, perPod[e.Pod])
		}
	}
	if f := s.Services[0].Fit; f == nil || f.Draws != uint64(connections+len(again)) || f.PValue < 1e-6 {
		t.Errorf("fit %+v", f)
	}
}

// lie says what of a record is not so; empty: it is true.
func lie(r *flow.Record, e ct.Flow, visitors []visitor, length int) string {
	seen := netip.AddrPortFrom(e.TupleReply.IP.DestinationAddress, e.TupleReply.Proto.DestinationPort)
	endpoint := netip.AddrPortFrom(e.TupleReply.IP.SourceAddress, e.TupleReply.Proto.SourcePort)
	l := r.Life
	switch {
	case len(visitors) != 1:
		return fmt.Sprintf("it says that the pod saw %s, but the pods noted %v of it", l.SeenSource, visitors)
	case r.Endpoint != visitors[0].at.String() || r.Pod != "default/"+visitors[0].pod:
		return fmt.Sprintf("it says %s %s, the pod noted %+v", r.Pod, r.Endpoint, visitors[0])
	case visitors[0].read != length:
		return fmt.Sprintf("the pod read %d bytes, %d were sent", visitors[0].read, length)
	case r.Endpoint != endpoint.String() || l.SeenSource != seen.String():
		return fmt.Sprintf("it says %s seen by %s, the kernel %s seen by %s", l.SeenSource, r.Endpoint, seen, endpoint)
	case r.Masquerade != (seen.Addr().String() != e2etest.HostOf(r.Source)):
		return fmt.Sprintf("masquerade %v, the kernel has %s", r.Masquerade, seen)
	case r.Conntrack != "created" || l.State != flow.Closed || !l.Over || !l.Answered:
		return fmt.Sprintf("conntrack %s, life %+v", r.Conntrack, l)
	case l.Sent == nil || l.Sent.Packets != e.CountersOrig.Packets || l.Sent.Bytes != e.CountersOrig.Bytes ||
		l.Received.Packets != e.CountersReply.Packets || l.Received.Bytes != e.CountersReply.Bytes:
		return fmt.Sprintf("it counts %+v and %+v, the kernel %+v and %+v", l.Sent, l.Received, e.CountersOrig, e.CountersReply)
	case l.Sent.Bytes < uint64(length) || l.Received.Bytes < uint64(length):
		return fmt.Sprintf("it counts %+v and %+v of %d bytes each way", l.Sent, l.Received, length)
	}
	return ""
}

// connections gives the kernel's entries of our flows on a node, by their sources.
func connectionsOf(c *e2etest.Cluster, node string) map[netip.AddrPort]ct.Flow {
	c.T.Helper()
	entries := make(map[netip.AddrPort]ct.Flow)
	onConntrack(c, node, func(conn *ct.Conn) error {
		flows, err := conn.Dump(nil)
		for _, f := range flows {
			if f.Mark == 0x2000 {
				entries[netip.AddrPortFrom(f.TupleOrig.IP.SourceAddress, f.TupleOrig.Proto.SourcePort)] = f
			}
		}
		return err
	})
	return entries
}

// flushConnections empties a node's connection table.
func flushConnections(c *e2etest.Cluster, node string) {
	c.T.Helper()
	onConntrack(c, node, func(conn *ct.Conn) error { return conn.Flush() })
}

// conntrack does something with a host's connection table.
func onConntrack(c *e2etest.Cluster, host string, f func(*ct.Conn) error) {
	c.T.Helper()
	c.Must(c.Host(host).Do(func() error {
		conn, err := ct.Dial(nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(conn)
	}))
}
