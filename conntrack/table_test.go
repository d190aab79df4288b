package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

func tuple(proto uint8, src, dst string) Tuple {
	return Tuple{Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), Protocol: proto}
}

func service(proto uint8, src string) Entry {
	return Entry{Tuple: tuple(proto, src, "10.96.0.10:53"), Mark: DefaultMark, Destination: netip.MustParseAddrPort("10.244.0.2:5353")}
}

// establishOne establishes one entry.
func establishOne(t *Table, e Entry) Result {
	var r [1]Result
	t.Establish([]Entry{e}, r[:])
	return r[0]
}

func TestEstablishCreates(t *testing.T) {
	f := NewFake()
	e := service(protoTCP, "10.244.1.2:40000")
	e.SourceAddr = netip.MustParseAddr("172.20.0.2")
	if r := establishOne(f.Table(), e); r.Outcome != Created {
		t.Fatalf("outcome %v, error %v", r.Outcome, r.Err)
	}
	s, ok := f.Get(e.Tuple)
	want := tuple(protoTCP, "10.244.0.2:5353", "172.20.0.2:40000")
	if !ok || s.Reply != want || s.Mark != DefaultMark {
		t.Errorf("entry %+v, want reply %v and mark %#x", s, want, DefaultMark)
	}
}

// TestEstablishOnTakenTuple holds every state an old connection can be in against
// what has to become of it.
func TestEstablishOnTakenTuple(t *testing.T) {
	const dnat = StatusDestinationNAT
	tests := []struct {
		name  string
		proto uint8
		old   func(*State)
		want  Outcome
	}{
		{"tcp: retransmitted SYN, entry not seen by a packet yet", protoTCP, func(s *State) { s.TCP = TCPNone }, Kept},
		{"tcp: retransmitted SYN", protoTCP, func(s *State) { s.TCP = TCPSynSent }, Kept},
		{"tcp: SYN that nobody decided", protoTCP, func(s *State) { s.TCP = TCPSynSent; s.Status &^= dnat }, Replaced},
		{"tcp: stray SYN on an opening connection", protoTCP, func(s *State) { s.TCP = TCPSynRecv }, Kept},
		{"tcp: stray SYN on an established connection", protoTCP, func(s *State) { s.TCP = TCPEstablished }, Kept},
		{"tcp: stray SYN on an untranslated live connection", protoTCP, func(s *State) { s.TCP = TCPEstablished; s.Status &^= dnat }, Kept},
		{"tcp: half closed", protoTCP, func(s *State) { s.TCP = TCPFinWait }, Kept},
		{"tcp: half closed by the peer", protoTCP, func(s *State) { s.TCP = TCPCloseWait }, Kept},
		{"tcp: port used again in LAST_ACK", protoTCP, func(s *State) { s.TCP = TCPLastAck }, Replaced},
		{"tcp: port used again in TIME_WAIT", protoTCP, func(s *State) { s.TCP = TCPTimeWait }, Replaced},
		{"tcp: port used again after a reset", protoTCP, func(s *State) { s.TCP = TCPClose }, Replaced},
		{"udp: second datagram", protoUDP, func(*State) {}, Kept},
		{"udp: flow with replies", protoUDP, func(s *State) { s.Status |= StatusSeenReply | StatusAssured }, Kept},
		{"udp: flow that nobody decided", protoUDP, func(s *State) { s.Status &^= dnat }, Replaced},
		{"sctp: retransmitted INIT", protoSCTP, func(s *State) { s.SCTP = SCTPClosed }, Kept},
		{"sctp: retransmitted INIT, before Linux 5.12", protoSCTP, func(s *State) { s.SCTP = SCTPCookieWait }, Kept},
		{"sctp: port used again", protoSCTP, func(s *State) { s.SCTP, s.Status = SCTPClosed, s.Status|StatusSeenReply }, Replaced},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := NewFake()
			old := service(tt.proto, "10.244.1.2:40000")
			if r := establishOne(f.Table(), old); r.Outcome != Created {
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
			if tt.want == Kept {
				wantEndpoint = old.Destination
				if got := r.Existing.Endpoint(); got != wantEndpoint {
					t.Errorf("result says the flow goes to %v, want %v", got, wantEndpoint)
				}
			}
			if s, _ := f.Get(e.Tuple); s.Endpoint() != wantEndpoint {
				t.Errorf("flow goes to %v, want %v", s.Endpoint(), wantEndpoint)
			}
		})
	}
}

func TestEstablishKeepsConnectionOfOtherDirection(t *testing.T) {
	f := NewFake()
	other := Entry{Tuple: service(protoTCP, "10.244.1.2:40000").Tuple.Inverse()}
	establishOne(f.Table(), other)
	f.Change(other.Tuple, func(s *State) { s.TCP = TCPTimeWait })
	if r := establishOne(f.Table(), service(protoTCP, "10.244.1.2:40000")); r.Outcome != Kept {
		t.Errorf("outcome %v, want kept", r.Outcome)
	}
}

// TestEstablishBatch mixes all outcomes in one call of more than one datagram.
func TestEstablishBatch(t *testing.T) {
	f := NewFake()
	table := f.Table()
	var entries []Entry
	want := map[int]Outcome{}
	for i := range 3 * maxBatch {
		e := service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 20000+i))
		switch i % 3 {
		case 1: // live
			establishOne(table, e)
			want[i] = Kept
		case 2: // over
			establishOne(table, e)
			f.Change(e.Tuple, func(s *State) { s.TCP = TCPTimeWait })
			want[i] = Replaced
		default:
			want[i] = Created
		}
		entries = append(entries, e)
	}
	entries = append(entries, entries[0]) // twice in one batch: one decision for both
	want[len(entries)-1] = Kept
	results := make([]Result, len(entries))
	table.Establish(entries, results)
	for i, r := range results {
		if r.Outcome != want[i] {
			t.Errorf("entry %d: outcome %v (error %v), want %v", i, r.Outcome, r.Err, want[i])
		}
	}
}

func TestEstablishTableFull(t *testing.T) {
	f := NewFake()
	f.Max = 1
	table := f.Table()
	establishOne(table, service(protoUDP, "10.244.1.2:1"))
	r := establishOne(table, service(protoUDP, "10.244.1.2:2"))
	var op *OpError
	if r.Outcome != Failed || !IsFull(r.Err) || !errors.As(r.Err, &op) || op.Op != "create" {
		t.Errorf("result %+v, want failed because the table is full", r)
	}
}

type brokenTransport struct{}

func (brokenTransport) exchange([]byte, receiver) error { return syscall.ENOBUFS }
func (brokenTransport) Close() error                    { return nil }

func TestEstablishBrokenSocket(t *testing.T) {
	r := establishOne(&Table{transport: brokenTransport{}, locks: new(Locks)}, service(protoUDP, "10.244.1.2:1"))
	if r.Outcome != Failed || !errors.Is(r.Err, syscall.ENOBUFS) {
		t.Errorf("result %+v, want failed with ENOBUFS", r)
	}
}

func TestLookupUnknown(t *testing.T) {
	_, err := NewFake().Table().Lookup(service(protoUDP, "10.244.1.2:1").Tuple, 0)
	if !IsNotFound(err) {
		t.Errorf("error %v, want not found", err)
	}
}

func TestEstablishDoesNotAllocate(t *testing.T) {
	table := &Table{transport: silentTransport{}, locks: new(Locks)}
	entries, results := make([]Entry, 16), make([]Result, 16)
	for i := range entries {
		entries[i] = service(protoTCP, "10.244.1.2:40000")
	}
	if n := testing.AllocsPerRun(100, func() { table.Establish(entries, results) }); n > 0 {
		t.Errorf("%v allocations per batch, want none", n)
	}
}

// silentTransport is a kernel that likes everything.
type silentTransport struct{}

func (silentTransport) exchange([]byte, receiver) error { return nil }
func (silentTransport) Close() error                    { return nil }

func BenchmarkEncodeCreate(b *testing.B) {
	e := service(protoTCP, "10.244.1.2:40000")
	e.SourceAddr = netip.MustParseAddr("172.20.0.2")
	var buf []byte
	for b.Loop() {
		buf = appendCreate(buf[:0], 1, &e)
	}
}

// meddling is a fake in which something happens right before a message is processed.
type meddling struct {
	*Fake
	before map[uint16][]func() // by message type, in order
}

func (m *meddling) exchange(req []byte, to receiver) error {
	for len(req) > 0 {
		typ, n := binary.NativeEndian.Uint16(req[4:]), binary.NativeEndian.Uint32(req)
		if f := m.before[typ]; len(f) > 0 {
			m.before[typ] = f[1:]
			f[0]()
		}
		if err := m.Fake.exchange(req[:n], to); err != nil {
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
		f := NewFake()
		establishOne(f.Table(), other)
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTGet: {func() {
			s, _ := f.Get(e.Tuple)
			f.Table().Delete([]State{s}, make([]error, 1))
		}}}}
		if r := establishOne(&Table{transport: m, locks: new(Locks)}, e); r.Outcome != Created {
			t.Errorf("outcome %v (%v), want created", r.Outcome, r.Err)
		}
	})
	t.Run("another one takes the tuple after the old entry is gone", func(t *testing.T) {
		f := NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *State) { s.TCP = TCPTimeWait })
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTNew: {nothing, func() { establishOne(f.Table(), other) }}}}
		r := establishOne(&Table{transport: m, locks: new(Locks)}, e)
		if r.Outcome != Kept || r.Existing.Endpoint() != other.Destination {
			t.Errorf("outcome %v (%v) with endpoint %v, want kept with the other's", r.Outcome, r.Err, r.Existing.Endpoint())
		}
	})
	t.Run("an entry that is kept ends in a moment", func(t *testing.T) {
		f := NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *State) { s.TCP, s.Timeout = TCPSynSent, 1 })
		if r := establishOne(f.Table(), e); r.Outcome != Kept {
			t.Errorf("outcome %v (%v), want kept", r.Outcome, r.Err)
		}
		if s, _ := f.Get(e.Tuple); s.Timeout != createTimeout {
			t.Errorf("it lives for another %d s, want %d", s.Timeout, createTimeout)
		}
	})
	t.Run("it ends before it can be extended", func(t *testing.T) {
		f := NewFake()
		establishOne(f.Table(), other)
		f.Change(e.Tuple, func(s *State) { s.TCP, s.Timeout = TCPSynSent, 1 })
		m := &meddling{Fake: f, before: map[uint16][]func(){msgCTNew: {nothing, func() {
			s, _ := f.Get(e.Tuple)
			f.Table().Delete([]State{s}, make([]error, 1))
		}}}}
		if r := establishOne(&Table{transport: m, locks: new(Locks)}, e); r.Outcome != Created {
			t.Errorf("outcome %v (%v), want created", r.Outcome, r.Err)
		}
	})
	t.Run("no port is left", func(t *testing.T) {
		f := NewFake()
		f.NoPorts = true
		r := establishOne(f.Table(), e)
		if r.Outcome != Failed || !strings.Contains(r.Err.Error(), "no source port is free") {
			t.Errorf("outcome %v, error %v", r.Outcome, r.Err)
		}
	})
}

// counting is a fake that counts exchanges.
type counting struct {
	*Fake
	exchanges int
}

func (c *counting) exchange(req []byte, to receiver) error {
	c.exchanges++
	return c.Fake.exchange(req, to)
}

// TestEstablishBatchOfAllKinds: one batch with fresh and taken tuples takes three
// exchanges, whatever their number, and each entry gets what it would get alone. Of two
// with the same tuple the second finds what the first made.
func TestEstablishBatchOfAllKinds(t *testing.T) {
	c := &counting{Fake: NewFake()}
	at := func(i int) Entry { return service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 40000+i)) }
	state := map[int]TCPState{1: TCPTimeWait, 2: TCPEstablished, 4: TCPClose, 5: TCPSynSent, 7: TCPTimeWait}
	for i, s := range state {
		if r := establishOne(c.Fake.Table(), at(i)); r.Outcome != Created {
			t.Fatal(r.Err)
		}
		c.Change(at(i).Tuple, func(old *State) { old.TCP = s })
	}
	var entries []Entry
	for i := range 9 {
		e := at(i)
		e.Destination = netip.MustParseAddrPort(fmt.Sprintf("10.244.0.3:%d", 5000+i))
		entries = append(entries, e)
	}
	want := []Outcome{Created, Replaced, Kept, Created, Replaced, Kept, Created, Replaced, Created}
	results := make([]Result, len(entries))
	(&Table{transport: c, locks: new(Locks)}).Establish(entries, results)
	for i, r := range results {
		if r.Outcome != want[i] || r.Outcome == Kept && r.Existing.Endpoint() != at(i).Destination {
			t.Errorf("entry %d: %v (%v, %v), want %v", i, r.Outcome, r.Existing.Endpoint(), r.Err, want[i])
		}
		if s, ok := c.Get(entries[i].Tuple); want[i] != Kept && (!ok || s.Endpoint() != entries[i].Destination) {
			t.Errorf("entry %d leads to %v, want %v", i, s.Endpoint(), entries[i].Destination)
		}
	}
	if c.exchanges != 3 {
		t.Errorf("%d exchanges, want 3: create, look up, replace", c.exchanges)
	}

	c.Change(entries[1].Tuple, func(old *State) { old.TCP = TCPTimeWait })
	twice := []Entry{at(1), entries[8], entries[1]}
	(&Table{transport: c, locks: new(Locks)}).Establish(twice, results[:3])
	if results[0].Outcome != Replaced || results[1].Outcome != Kept || results[2].Outcome != Kept || results[2].Existing.Endpoint() != at(1).Destination {
		t.Errorf("the same tuple twice: %+v", results[:3])
	}
}

// TestEstablishAnticipates: after a batch of mostly taken tuples the next ones are looked
// up at once, which takes one exchange less, until a batch has mostly free ones.
func TestEstablishAnticipates(t *testing.T) {
	c := &counting{Fake: NewFake()}
	table := &Table{transport: c, locks: new(Locks)}
	at := func(i int) Entry { return service(protoTCP, fmt.Sprintf("10.244.1.2:%d", 40000+i)) }
	over := func(from, to int) {
		for i := from; i < to; i++ {
			establishOne(c.Fake.Table(), at(i))
			c.Change(at(i).Tuple, func(old *State) { old.TCP = TCPTimeWait })
		}
	}
	over(0, 5)
	over(10, 12)
	c.Change(at(11).Tuple, func(old *State) { old.TCP = TCPEstablished })
	for _, step := range []struct {
		what      string
		entries   []int
		want      []Outcome
		exchanges int
	}{
		{"mostly taken", []int{0, 1, 2}, []Outcome{Replaced, Replaced, Replaced}, 3},
		{"of all kinds", []int{3, 20, 10, 11, 10, 20}, []Outcome{Replaced, Created, Replaced, Kept, Kept, Kept}, 3},
		{"mostly free", []int{30, 31, 4}, []Outcome{Created, Created, Replaced}, 2},
		{"free, not anticipated", []int{40, 41}, []Outcome{Created, Created}, 1},
	} {
		var entries []Entry
		for _, i := range step.entries {
			e := at(i)
			e.Destination = netip.MustParseAddrPort("10.244.0.99:99")
			entries = append(entries, e)
		}
		results := make([]Result, len(entries))
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
