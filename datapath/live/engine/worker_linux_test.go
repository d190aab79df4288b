package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
)

// fakeQueue hands out prepared batches and keeps verdicts.
type fakeQueue struct {
	batches  [][]nfqueue.Packet
	mu       sync.Mutex
	verdicts []nfqueue.Verdict
	sendErr  error
}

func (q *fakeQueue) Receive(p []nfqueue.Packet) (int, error) {
	if len(q.batches) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(p, q.batches[0])
	q.batches = q.batches[1:]
	return n, nil
}

func (q *fakeQueue) Send(v []nfqueue.Verdict) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.verdicts = append(q.verdicts, v...)
	return q.sendErr
}
func (q *fakeQueue) Counters() (nfqueue.Counters, error) { return nfqueue.Counters{}, nil }
func (q *fakeQueue) Close() error                        { return nil }

// fakeRouter masquerades to the node, but cannot reach 10.244.66.0/24.
type fakeRouter struct{}

func (fakeRouter) MasqueradeSource(dst netip.Addr) (netip.Addr, error) {
	if netip.MustParsePrefix("10.244.66.0/24").Contains(dst) {
		return netip.Addr{}, errors.New("no route")
	}
	return netip.MustParseAddr("172.20.0.2"), nil
}

func (fakeRouter) OutInterface(dst netip.Addr) (string, error) {
	if netip.MustParsePrefix("10.244.66.0/24").Contains(dst) {
		return "", errors.New("no route")
	}
	return "eth0", nil
}

// goneInterface is the index of an interface that has no name.
const goneInterface = 666

func (fakeRouter) InterfaceName(index uint32) (string, error) {
	if index == goneInterface {
		return "", errors.New("no such interface")
	}
	return fmt.Sprint("veth", index), nil
}

// records collects flow records.
type records []*flow.Record

func (r *records) Flows(flows []flow.Flow) {
	for i := range flows {
		d := flows[i]
		*r = append(*r, d.Record())
	}
}
func (*records) Lost() uint64 { return 0 }

func servicePort(name, clusterIP string, nodePort uint16, endpoints ...string) *decision.ServicePort {
	ns, n, _ := strings.Cut(name, "/")
	ap := netip.MustParseAddrPort(clusterIP)
	s := &decision.ServicePort{
		Name:     decision.ServicePortName{Namespace: ns, Name: n},
		Protocol: decision.TCP, Family: decision.FamilyOf(ap.Addr()), ClusterIP: ap.Addr(), Port: ap.Port(), NodePort: nodePort,
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(e)})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
		s.HasEndpoints = true
	}
	return s
}

type harness struct {
	*worker
	queue   *fakeQueue
	kernel  *conntracktest.Fake
	records records
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	table := decision.NewTable(3, time.Time{}, decision.Node{
		Name: "worker1", Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")},
		Detector: decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}, []*decision.ServicePort{
		servicePort("default/web", "10.96.0.10:53", 30053, "10.244.0.2:8080"),
		servicePort("default/empty", "10.96.0.11:53", 0),
		servicePort("default/far", "10.96.0.12:53", 30066, "10.244.66.2:8080"),
	})
	h := &harness{queue: &fakeQueue{}, kernel: conntracktest.NewFake()}
	var current atomic.Pointer[decision.Table]
	current.Store(table)
	h.worker = &worker{
		number: 100, queue: h.queue, connections: h.kernel.Table(), router: fakeRouter{},
		rand: rand.New(rand.NewPCG(1, 1)), table: &current, affinity: affinity.New(), sink: &h.records, counters: new(counters),
	}
	return h
}

// syn makes a queued TCP SYN.
func syn(t testing.TB, id uint32, mark uint32, src, dst string) nfqueue.Packet {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.Addr().AsSlice(), DstIP: d.Addr().AsSlice()}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(s.Port()), DstPort: layers.TCPPort(d.Port()), SYN: true}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, ip, tcp); err != nil {
		t.Fatal(err)
	}
	return nfqueue.Packet{ID: id, Mark: mark, Hook: nfqueue.Prerouting, Payload: b.Bytes()}
}

func TestWorkerVerdicts(t *testing.T) {
	h := newHarness(t)
	h.queue.batches = [][]nfqueue.Packet{{
		syn(t, 1, 0x10, "10.244.1.9:1000", "10.96.0.10:53"),
		syn(t, 2, 0x10, "10.244.1.9:1000", "10.96.0.11:53"),
		syn(t, 3, 0x10, "10.244.1.9:1000", "8.8.8.8:53"),
	}, {
		{ID: 4, Mark: 0x10, Payload: []byte{0x45, 0}},
		syn(t, 5, 0x10, "172.20.0.9:1000", "172.20.0.2:30053"),
		syn(t, 6, 0x10, "10.244.1.9:1000", "10.96.0.10:53"), // again: its tuple is taken
		syn(t, 7, 0x10, "172.20.0.9:1000", "172.20.0.2:30066"),
	}, {
		syn(t, 8, 0x10, "10.244.1.9:1001", "8.8.8.8:53"), // alone: no entries to write
	}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	want := []nfqueue.Verdict{
		{ID: 1, Mark: 0x10},
		{ID: 2, Mark: rejectMark}, // to be refused
		{ID: 3, Mark: 0x10},
		{ID: 4, Mark: 0x10},
		{ID: 5, Mark: 0x4010}, // masqueraded
		{ID: 6, Mark: 0x10},
		{ID: 7, Mark: 0x4010},
		{ID: 8, Mark: 0x10},
	}
	if fmt.Sprint(h.queue.verdicts) != fmt.Sprint(want) {
		t.Errorf("verdicts\n got %+v\nwant %+v", h.queue.verdicts, want)
	}
	var s Stats
	h.counters.addTo(&s)
	for name, h := range map[string]Histogram{"decision": s.DecisionTime, "verdict": s.VerdictTime, "establish": s.EstablishTime} {
		want := uint64(8) // packets
		if name == "establish" {
			want = 2 // batches with entries
		}
		if h.Total() != want || h.Sum <= 0 {
			t.Errorf("%s times: %+v, want %d", name, h, want)
		}
	}
	s.DecisionTime, s.VerdictTime, s.EstablishTime = Histogram{}, Histogram{}, Histogram{}
	wantStats := Stats{Packets: 8, Undecodable: 1, NoService: 2, Translated: 3, Rejected: 1, Created: 2, Kept: 1, Failed: 1, NoRoute: 1}
	wantStats.Flows = map[FlowClass]uint64{
		{decision.Accept, decision.EntryNone, decision.NotAService}:      2,
		{decision.Reject, decision.EntryClusterIP, decision.NoEndpoints}: 1,
		{decision.DNAT, decision.EntryClusterIP, decision.Balanced}:      2,
		{decision.DNAT, decision.EntryNodePort, decision.Balanced}:       2,
	}
	if diff := cmp.Diff(wantStats, s); diff != "" {
		t.Errorf("stats, -want +got:\n%s", diff)
	}
	np, ok := h.kernel.Get(conntrack.Tuple{Source: netip.MustParseAddrPort("172.20.0.9:1000"), Destination: netip.MustParseAddrPort("172.20.0.2:30053"), Protocol: 6})
	if !ok || np.Endpoint().String() != "10.244.0.2:8080" || np.Reply.Destination.String() != "172.20.0.2:1000" || np.Mark != conntrack.DefaultMark {
		t.Errorf("connection of the node port flow: %+v", np)
	}
}

func TestWorkerRecords(t *testing.T) {
	h := newHarness(t)
	h.queue.batches = [][]nfqueue.Packet{{
		syn(t, 1, 0, "172.20.0.9:1000", "172.20.0.2:30053"),
		syn(t, 2, 0, "172.20.0.9:1000", "172.20.0.2:30066"),
		syn(t, 3, 0, "10.244.1.9:1000", "8.8.8.8:53"),
		{ID: 4, Payload: []byte{1}},
	}, {
		syn(t, 5, 0, "172.20.0.9:1000", "172.20.0.2:30053"),
	}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range h.records {
		if r.Time == nil || r.Queue == nil || *r.Queue != 100 || r.Node != "worker1" || r.Generation != 3 || r.Stages == nil {
			b, _ := json.Marshal(r)
			t.Errorf("incomplete record %s", b)
		}
		got = append(got, fmt.Sprintf("%s %s>%s %s %s snat=%v(%s %s) %s", r.Verdict, r.Source, r.Destination, r.Service, r.Endpoint, r.Masquerade, r.MasqueradeReason, r.MasqueradeAddress, r.Conntrack))
	}
	want := []string{
		"dnat 172.20.0.9:1000>172.20.0.2:30053 default/web 10.244.0.2:8080 snat=true(external 172.20.0.2) created",
		"dnat 172.20.0.9:1000>172.20.0.2:30066 default/far 10.244.66.2:8080 snat=true(external ) failed",
		"accept 10.244.1.9:1000>8.8.8.8:53   snat=false( ) ",
		"dnat 172.20.0.9:1000>172.20.0.2:30053 default/web 10.244.0.2:8080 snat=true(external 172.20.0.2) kept",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("records\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if e := h.records[1].Error; !strings.Contains(e, "no route") {
		t.Errorf("error of the failed flow: %q", e)
	}
}

// TestKeptFlowReportsItsRealEndpoint: the record of a packet whose tuple was decided
// before names the endpoint of then.
func TestKeptFlowReportsItsRealEndpoint(t *testing.T) {
	h := newHarness(t)
	h.kernel.Table().Establish([]conntrack.Entry{{
		Tuple:       conntrack.Tuple{Source: netip.MustParseAddrPort("10.244.1.9:1000"), Destination: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: 6},
		Destination: netip.MustParseAddrPort("10.244.0.77:8080"),
	}}, make([]conntrack.Result, 1))
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	if r := h.records[0]; r.Conntrack != "kept" || r.Endpoint != "10.244.0.77:8080" {
		t.Errorf("record has %s %s", r.Conntrack, r.Endpoint)
	}
}

// TestFullTableIsCounted apart from other failures.
func TestFullTableIsCounted(t *testing.T) {
	h := newHarness(t)
	h.kernel.Max = 1
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1000", "10.96.0.10:53"), syn(t, 2, 0, "10.244.1.9:1001", "10.96.0.10:53")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	var s Stats
	h.counters.addTo(&s)
	if s.Created != 1 || s.Failed != 1 || s.TableFull != 1 || s.NoRoute != 0 {
		t.Errorf("stats %+v, want one entry created and one failed for want of room", s)
	}
}

type panickingConnections struct{ connections }

func (panickingConnections) Establish([]conntrack.Entry, []conntrack.Result) { panic("boom") }
func (panickingConnections) Close() error                                    { return nil }

func TestPanicStillGivesVerdicts(t *testing.T) {
	h := newHarness(t)
	h.connections = panickingConnections{}
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1", "10.96.0.10:53"), syn(t, 2, 7, "10.244.1.9:2", "8.8.8.8:53")}}
	err := h.run()
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("error %v, want the panic", err)
	}
	if len(h.queue.verdicts) != 2 || h.queue.verdicts[1] != (nfqueue.Verdict{ID: 2, Mark: 7}) {
		t.Errorf("verdicts %+v, want one for each packet", h.queue.verdicts)
	}
}

func TestWorkerEndsWhenVerdictsCannotBeSent(t *testing.T) {
	h := newHarness(t)
	h.queue.sendErr = errors.New("socket is gone")
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 0, "10.244.1.9:1", "10.96.0.10:53")}}
	if err := h.run(); !errors.Is(err, h.queue.sendErr) {
		t.Errorf("error %v, want %v", err, h.queue.sendErr)
	}
}

// TestProcessDoesNotAllocate: what the fakes cost aside, a batch is decided without
// garbage.
func TestProcessDoesNotAllocate(t *testing.T) {
	h := newHarness(t)
	h.sink = nil
	h.connections = acceptingConnections{}
	quiet := &quietQueue{}
	h.worker.queue = quiet
	for i := range batchSize {
		h.packets[i] = syn(t, uint32(i), 0, fmt.Sprintf("172.20.0.9:%d", 1000+i), "172.20.0.2:30053")
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := h.process(batchSize); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per batch of %d", n, batchSize)
	}
}

type acceptingConnections struct{ connections }

func (acceptingConnections) Establish(_ []conntrack.Entry, r []conntrack.Result) {
	for i := range r {
		r[i] = conntrack.Result{Outcome: conntrack.Created}
	}
}
func (acceptingConnections) Close() error { return nil }

type quietQueue struct{ fakeQueue }

func (*quietQueue) Send([]nfqueue.Verdict) error { return nil }

// TestLocalPackets: what is made on the node passes POSTROUTING even on its way to the
// node itself, and so is masqueraded where a packet from outside is not.
func TestLocalPackets(t *testing.T) {
	h := newHarness(t)
	table := decision.NewTable(1, time.Time{}, *h.table.Load().Node(), []*decision.ServicePort{
		servicePort("default/host", "10.96.0.20:80", 0, "172.20.0.2:8080"),
	})
	h.table.Store(table)
	made, forwarded := syn(t, 1, 0, "172.20.0.2:1000", "10.96.0.20:80"), syn(t, 2, 0, "172.20.0.9:1000", "10.96.0.20:80")
	made.Hook = nfqueue.Output
	h.queue.batches = [][]nfqueue.Packet{{made, forwarded}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	if r := h.records[0]; !r.Local || !r.Masquerade || r.MasqueradeAddress != "172.20.0.2" {
		t.Errorf("made on the node: local %v, masqueraded %v as %s", r.Local, r.Masquerade, r.MasqueradeAddress)
	}
	if r := h.records[1]; r.Local || r.Masquerade || r.MasqueradeReason == "" {
		t.Errorf("from outside: local %v, masqueraded %v (marked for %q)", r.Local, r.Masquerade, r.MasqueradeReason)
	}
}

// TestDropIsDropped: policy Local on a node without the endpoint.
func TestDropIsDropped(t *testing.T) {
	h := newHarness(t)
	s := servicePort("default/local", "10.96.0.30:80", 30080, "10.244.0.2:8080")
	s.ExternalPolicy = decision.Local // and none of the usable endpoints is for it
	table := decision.NewTable(1, time.Time{}, *h.table.Load().Node(), []*decision.ServicePort{s})
	h.table.Store(table)
	h.queue.batches = [][]nfqueue.Packet{{syn(t, 1, 3, "172.20.0.9:1000", "172.20.0.2:30080")}}
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	if want := (nfqueue.Verdict{ID: 1, Drop: true, Mark: 3}); len(h.queue.verdicts) != 1 || h.queue.verdicts[0] != want {
		t.Errorf("verdicts %+v, want %+v", h.queue.verdicts, want)
	}
}

// TestGapsInTheNumbers: packets that overflowed the socket's buffer have a number, but never
// arrive.
func TestGapsInTheNumbers(t *testing.T) {
	h := newHarness(t)
	for _, ids := range [][]uint32{{1, 2, 3}, {6}, {7, 10}, {11}} {
		for i, id := range ids {
			h.packets[i] = syn(t, id, 0, "10.244.1.2:40000", "192.0.2.1:80")
		}
		if err := h.process(len(ids)); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.counters.missed.Load(); n != 4 {
		t.Errorf("%d packets missed, want 4", n)
	}
}
