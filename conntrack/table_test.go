package conntrack_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
)

// What the tests know of linux/in.h, linux/netlink.h and linux/netfilter/nfnetlink_conntrack.h.
const (
	protoTCP, protoUDP, protoSCTP        = 6, 17, 132
	nlmsgError, nlmsgDone                = 2, 3
	msgCTNew, msgCTGet            uint16 = 0x100, 0x101
)

func tuple(proto uint8, src, dst string) conntrack.Tuple {
	return conntrack.Tuple{Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), Protocol: proto}
}

func service(proto uint8, src string) conntrack.Entry {
	return conntrack.Entry{Tuple: tuple(proto, src, "10.96.0.10:53"), Mark: conntrack.DefaultMark, Destination: netip.MustParseAddrPort("10.244.0.2:5353")}
}

// establishOne establishes one entry.
func establishOne(t *conntrack.Table, e conntrack.Entry) conntrack.Result {
	var r [1]conntrack.Result
	t.Establish([]conntrack.Entry{e}, r[:])
	return r[0]
}

func TestEstablishCreates(t *testing.T) {
	f := conntracktest.NewFake()
	e := service(protoTCP, "10.244.1.2:40000")
	e.SourceAddr = netip.MustParseAddr("172.20.0.2")
	if r := establishOne(f.Table(), e); r.Outcome != conntrack.Created {
		t.Fatalf("outcome %v, error %v", r.Outcome, r.Err)
	}
	s, ok := f.Get(e.Tuple)
	want := tuple(protoTCP, "10.244.0.2:5353", "172.20.0.2:40000")
	if !ok || s.Reply != want || s.Mark != conntrack.DefaultMark {
		t.Errorf("entry %+v, want reply %v and mark %#x", s, want, conntrack.DefaultMark)
	}
}

// TestEstablishOnTakenTuple holds every state an old connection can be in against
// the outcome that it needs.
func TestEstablishOnTakenTuple(t *testing.T) {
	const dnat = conntrack.StatusDestinationNAT
	tests := []struct {
		name  string
		proto uint8
		old   func(*conntrack.State)
		want  conntrack.Outcome
	}{
		{"tcp: retransmitted SYN, entry not seen by a packet yet", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPNone }, conntrack.Kept},
		{"tcp: retransmitted SYN", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPSynSent }, conntrack.Kept},
		{"tcp: SYN without a decision", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPSynSent; s.Status &^= dnat }, conntrack.Replaced},
		{"tcp: stray SYN on an opening connection", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPSynRecv }, conntrack.Kept},
		{"tcp: stray SYN on an established connection", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPEstablished }, conntrack.Kept},
		{"tcp: stray SYN on an untranslated live connection", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPEstablished; s.Status &^= dnat }, conntrack.Kept},
		{"tcp: half closed", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPFinWait }, conntrack.Kept},
		{"tcp: half closed by the peer", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPCloseWait }, conntrack.Kept},
		{"tcp: port used again in LAST_ACK", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPLastAck }, conntrack.Replaced},
		{"tcp: port used again in TIME_WAIT", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPTimeWait }, conntrack.Replaced},
		{"tcp: port used again after a reset", protoTCP, func(s *conntrack.State) { s.TCP = conntrack.TCPClose }, conntrack.Replaced},
		{"udp: second datagram", protoUDP, func(*conntrack.State) {}, conntrack.Kept},
		{"udp: flow with replies", protoUDP, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply | conntrack.StatusAssured }, conntrack.Kept},
		{"udp: flow without a decision", protoUDP, func(s *conntrack.State) { s.Status &^= dnat }, conntrack.Replaced},
		{"sctp: retransmitted INIT", protoSCTP, func(s *conntrack.State) { s.SCTP = conntrack.SCTPClosed }, conntrack.Kept},
		{"sctp: retransmitted INIT, before Linux 5.12", protoSCTP, func(s *conntrack.State) { s.SCTP = conntrack.SCTPCookieWait }, conntrack.Kept},
		{"sctp: port used again", protoSCTP, func(s *conntrack.State) { s.SCTP, s.Status = conntrack.SCTPClosed, s.Status|conntrack.StatusSeenReply }, conntrack.Replaced},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := conntracktest.NewFake()
			old := service(tt.proto, "10.244.1.2:40000")
			if r := establishOne(f.Table(), old); r.Outcome != conntrack.Created {
				t.Fatal(r.Err)
			}
			f.Change(old.Tuple, tt.old)

			e := old
			e.Destination = netip.MustParseAddrPort("10.244.0.3:5353")
			r := establishOne(f.Table(), e)
			if r.Outcome != tt.want {
				t.Fatalf("outcome %v (error %v), want %v", r.Outcome, r.Err, tt.want)
			}
			wantEndpoint := e.Destination
			if tt.want == conntrack.Kept {
				wantEndpoint = old.Destination
				if got := r.Existing.Endpoint(); got != wantEndpoint {
					t.Errorf("the result's endpoint is %v, want %v", got, wantEndpoint)
				}
			}
			if s, _ := f.Get(e.Tuple); s.Endpoint() != wantEndpoint {
				t.Errorf("flow goes to %v, want %v", s.Endpoint(), wantEndpoint)
			}
		})
	}
}

func TestEstablishKeepsConnectionOfOtherDirection(t *testing.T) {
	f := conntracktest.NewFake()
	other := conntrack.Entry{Tuple: service(protoTCP, "10.244.1.2:40000").Tuple.Inverse()}
	establishOne(f.Table(), other)
	f.Change(other.Tuple, func(s *conntrack.State) { s.TCP = conntrack.TCPTimeWait })
	if r := establishOne(f.Table(), service(protoTCP, "10.244.1.2:40000")); r.Outcome != conntrack.Kept {
		t.Errorf("outcome %v, want kept", r.Outcome)
	}
}

// TestEstablishBatch mixes all outcomes in one call of more than one datagram.
func TestEstablishBatch(t *testing.T) {
	f := conntracktest.NewFake()
	table := f.Table()
	var entries []conntrack.Entry
	want := map[int]conntrack.Outcome{}
	for i := range 3 * conntrack.MaxBatch {
		e := service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 20000+i))
		switch i % 3 {
		case 1: // live
			establishOne(table, e)
			want[i] = conntrack.Kept
		case 2: // over
			establishOne(table, e)
			f.Change(e.Tuple, func(s *conntrack.State) { s.TCP = conntrack.TCPTimeWait })
			want[i] = conntrack.Replaced
		default:
			want[i] = conntrack.Created
		}
		entries = append(entries, e)
	}
	entries = append(entries, entries[0]) // twice in one batch: one decision for both
	want[len(entries)-1] = conntrack.Kept
	results := make([]conntrack.Result, len(entries))
	table.Establish(entries, results)
	for i, r := range results {
		if r.Outcome != want[i] {
			t.Errorf("entry %d: outcome %v (error %v), want %v", i, r.Outcome, r.Err, want[i])
		}
	}
}

func TestEstablishTableFull(t *testing.T) {
	f := conntracktest.NewFake()
	f.Max = 1
	table := f.Table()
	establishOne(table, service(protoUDP, "10.244.1.2:1"))
	r := establishOne(table, service(protoUDP, "10.244.1.2:2"))
	var op *conntrack.OpError
	if r.Outcome != conntrack.Failed || !conntrack.IsFull(r.Err) || !errors.As(r.Err, &op) || op.Op != "create" {
		t.Errorf("result %+v, want failed because the table is full", r)
	}
}

type brokenTransport struct{}

func (brokenTransport) Exchange([]byte, func(uint32, uint16, []byte)) error { return syscall.ENOBUFS }
func (brokenTransport) Close() error                                        { return nil }

func TestEstablishBrokenSocket(t *testing.T) {
	r := establishOne(conntrack.NewTable(brokenTransport{}, new(conntrack.Locks)), service(protoUDP, "10.244.1.2:1"))
	if r.Outcome != conntrack.Failed || !errors.Is(r.Err, syscall.ENOBUFS) {
		t.Errorf("result %+v, want failed with ENOBUFS", r)
	}
}

func TestLookupUnknown(t *testing.T) {
	_, err := conntracktest.NewFake().Table().Lookup(service(protoUDP, "10.244.1.2:1").Tuple, 0)
	if !conntrack.IsNotFound(err) {
		t.Errorf("error %v, want not found", err)
	}
}

func TestEstablishDoesNotAllocate(t *testing.T) {
	table := conntrack.NewTable(silentTransport{}, new(conntrack.Locks))
	entries, results := make([]conntrack.Entry, 16), make([]conntrack.Result, 16)
	for i := range entries {
		entries[i] = service(protoTCP, "10.244.1.2:40000")
	}
	if n := testing.AllocsPerRun(100, func() { table.Establish(entries, results) }); n > 0 {
		t.Errorf("%v allocations per batch, want none", n)
	}
}

// silentTransport is a kernel that likes everything.
type silentTransport struct{}

func (silentTransport) Exchange([]byte, func(uint32, uint16, []byte)) error { return nil }
func (silentTransport) Close() error                                        { return nil }

// meddling is a fake in which something happens right before a message is processed.
type meddling struct {
	*conntracktest.Fake
	before map[uint16][]func() // by message type, in order
}

func (m *meddling) Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	for len(req) > 0 {
		typ, n := binary.NativeEndian.Uint16(req[4:]), binary.NativeEndian.Uint32(req)
		if f := m.before[typ]; len(f) > 0 {
			m.before[typ] = f[1:]
			f[0]()
		}
		if err := m.Fake.Exchange(req[:n], answer); err != nil {
			return err
		}
		req = req[n:]
	}
	return nil
}

// TestEstablishWhileOthersDo: what happens between our look and our leap.
func TestEstablishWhileOthersDo(t *testing.T) {
	e := service(protoTCP, "10.244.1.2:40000")
	other := e
	other.Destination = netip.MustParseAddrPort("10.244.0.99:5353")
	nothing := func() {}
	t.Run("the old entry ends before it is looked up", func(t *testing.T) {
		f := conntracktest.NewFake()
		establishOne(f.Table(), other)
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTGet: {func() {
			s, _ := f.Get(e.Tuple)
			f.Table().Delete([]conntrack.State{s}, make([]error, 1))
		}}}}
		if r := establishOne(conntrack.NewTable(m, new(conntrack.Locks)), e); r.Outcome != conntrack.Created {
			t.Errorf("outcome %v (%v), want created", r.Outcome, r.Err)
		}
	})
	t.Run("another one takes the tuple after the old entry is gone", func(t *testing.T) {
		f := conntracktest.NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *conntrack.State) { s.TCP = conntrack.TCPTimeWait })
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTNew: {nothing, func() { establishOne(f.Table(), other) }}}}
		r := establishOne(conntrack.NewTable(m, new(conntrack.Locks)), e)
		if r.Outcome != conntrack.Kept || r.Existing.Endpoint() != other.Destination {
			t.Errorf("outcome %v (%v) with endpoint %v, want kept with the other's", r.Outcome, r.Err, r.Existing.Endpoint())
		}
	})
	t.Run("an entry that is kept ends in a moment", func(t *testing.T) {
		f := conntracktest.NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *conntrack.State) { s.TCP, s.Timeout = conntrack.TCPSynSent, 1 })
		if r := establishOne(f.Table(), e); r.Outcome != conntrack.Kept {
			t.Errorf("outcome %v (%v), want kept", r.Outcome, r.Err)
		}
		if s, _ := f.Get(e.Tuple); s.Timeout != conntrack.CreateTimeout {
			t.Errorf("it lives for another %d s, want %d", s.Timeout, conntrack.CreateTimeout)
		}
	})
	t.Run("it ends before it can be extended", func(t *testing.T) {
		f := conntracktest.NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *conntrack.State) { s.TCP, s.Timeout = conntrack.TCPSynSent, 1 })
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTNew: {nothing, func() {
			s, _ := f.Get(e.Tuple)
			f.Table().Delete([]conntrack.State{s}, make([]error, 1))
		}}}}
		if r := establishOne(conntrack.NewTable(m, new(conntrack.Locks)), e); r.Outcome != conntrack.Created {
			t.Errorf("outcome %v (%v), want created", r.Outcome, r.Err)
		}
	})
	t.Run("no port is left", func(t *testing.T) {
		f := conntracktest.NewFake()
		f.NoPorts = true
		r := establishOne(f.Table(), e)
		if r.Outcome != conntrack.Failed || !strings.Contains(r.Err.Error(), "no free source port") {
			t.Errorf("outcome %v, error %v", r.Outcome, r.Err)
		}
	})
}

// counting is a fake that counts exchanges.
type counting struct {
	*conntracktest.Fake
	exchanges int
}

func (c *counting) Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error {
	c.exchanges++
	return c.Fake.Exchange(req, answer)
}

// TestEstablishBatchOfAllKinds: one batch with fresh and taken tuples takes three
// exchanges, whatever their number, and each entry gets what it would get alone. Of two
// with the same tuple the second finds what the first made.
func TestEstablishBatchOfAllKinds(t *testing.T) {
	c := &counting{Fake: conntracktest.NewFake()}
	at := func(i int) conntrack.Entry { return service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 40000+i)) }
	state := map[int]conntrack.TCPState{1: conntrack.TCPTimeWait, 2: conntrack.TCPEstablished, 4: conntrack.TCPClose, 5: conntrack.TCPSynSent, 7: conntrack.TCPTimeWait}
	for i, s := range state {
		if r := establishOne(c.Fake.Table(), at(i)); r.Outcome != conntrack.Created {
			t.Fatal(r.Err)
		}
		c.Change(at(i).Tuple, func(old *conntrack.State) { old.TCP = s })
	}
	var entries []conntrack.Entry
	for i := range 9 {
		e := at(i)
		e.Destination = netip.MustParseAddrPort(fmt.Sprintf("10.244.0.3:%d", 5000+i))
		entries = append(entries, e)
	}
	want := []conntrack.Outcome{conntrack.Created, conntrack.Replaced, conntrack.Kept, conntrack.Created, conntrack.Replaced, conntrack.Kept, conntrack.Created, conntrack.Replaced, conntrack.Created}
	results := make([]conntrack.Result, len(entries))
	(conntrack.NewTable(c, new(conntrack.Locks))).Establish(entries, results)
	for i, r := range results {
		if r.Outcome != want[i] || r.Outcome == conntrack.Kept && r.Existing.Endpoint() != at(i).Destination {
			t.Errorf("entry %d: %v (%v, %v), want %v", i, r.Outcome, r.Existing.Endpoint(), r.Err, want[i])
		}
		if s, ok := c.Get(entries[i].Tuple); want[i] != conntrack.Kept && (!ok || s.Endpoint() != entries[i].Destination) {
			t.Errorf("entry %d leads to %v, want %v", i, s.Endpoint(), entries[i].Destination)
		}
	}
	if c.exchanges != 3 {
		t.Errorf("%d exchanges, want 3: create, look up, replace", c.exchanges)
	}

	c.Change(entries[1].Tuple, func(old *conntrack.State) { old.TCP = conntrack.TCPTimeWait })
	twice := []conntrack.Entry{at(1), entries[8], entries[1]}
	(conntrack.NewTable(c, new(conntrack.Locks))).Establish(twice, results[:3])
	if results[0].Outcome != conntrack.Replaced || results[1].Outcome != conntrack.Kept || results[2].Outcome != conntrack.Kept || results[2].Existing.Endpoint() != at(1).Destination {
		t.Errorf("the same tuple twice: %+v", results[:3])
	}
}

// TestEstablishAnticipates: after a batch of mostly taken tuples the next ones are looked
// up at once, which takes one exchange less, until a batch has mostly free ones.
func TestEstablishAnticipates(t *testing.T) {
	c := &counting{Fake: conntracktest.NewFake()}
	table := conntrack.NewTable(c, new(conntrack.Locks))
	at := func(i int) conntrack.Entry { return service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 40000+i)) }
	over := func(from, to int) {
		for i := from; i < to; i++ {
			establishOne(c.Fake.Table(), at(i))
			c.Change(at(i).Tuple, func(old *conntrack.State) { old.TCP = conntrack.TCPTimeWait })
		}
	}
	over(0, 5)
	over(10, 12)
	c.Change(at(11).Tuple, func(old *conntrack.State) { old.TCP = conntrack.TCPEstablished })
	for _, step := range []struct {
		what      string
		entries   []int
		want      []conntrack.Outcome
		exchanges int
	}{
		{"mostly taken", []int{0, 1, 2}, []conntrack.Outcome{conntrack.Replaced, conntrack.Replaced, conntrack.Replaced}, 3},
		{"of all kinds", []int{3, 20, 10, 11, 10, 20}, []conntrack.Outcome{conntrack.Replaced, conntrack.Created, conntrack.Replaced, conntrack.Kept, conntrack.Kept, conntrack.Kept}, 3},
		{"mostly free", []int{30, 31, 4}, []conntrack.Outcome{conntrack.Created, conntrack.Created, conntrack.Replaced}, 2},
		{"free, not anticipated", []int{40, 41}, []conntrack.Outcome{conntrack.Created, conntrack.Created}, 1},
	} {
		var entries []conntrack.Entry
		for _, i := range step.entries {
			e := at(i)
			e.Destination = netip.MustParseAddrPort("10.244.0.99:99")
			entries = append(entries, e)
		}
		results := make([]conntrack.Result, len(entries))
		c.exchanges = 0
		table.Establish(entries, results)
		for i, r := range results {
			s, ok := c.Get(entries[i].Tuple)
			if moved := s.Endpoint() == entries[i].Destination; r.Outcome != step.want[i] || !ok || moved == (step.entries[i] == 11) {
				t.Errorf("%s: entry %d: %v (%v), leads to %v; want %v", step.what, i, r.Outcome, r.Err, s.Endpoint(), step.want[i])
			}
		}
		if c.exchanges != step.exchanges {
			t.Errorf("%s: %d exchanges, want %d", step.what, c.exchanges, step.exchanges)
		}
	}
}
