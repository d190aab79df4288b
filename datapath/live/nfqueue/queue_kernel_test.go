package nfqueue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// host is a namespace whose new flows go to a queue.
type host struct {
	*netns.Namespace
	queue *nfqueue.Queue
	rules *ruleset.Ruleset
}

func newHost(t *testing.T) *host {
	t.Helper()
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Namespace: ns}
	// Not a loopback address: packets to those are not queued.
	if err := ns.AddAddress("lo", netip.MustParsePrefix("192.0.2.1/32")); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		native, err := ruleset.Probe()
		if err != nil {
			return err
		}
		if h.queue, err = nfqueue.Open(100, nfqueue.Config{MaxLen: 128, CopyRange: 64, ReadBuffer: 1 << 20}); err != nil {
			return err
		}
		conn, err := ruleset.OpenConnection(false)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		h.rules, err = conn.Install(ruleset.Spec{
			FirstQueue: 99, Queues: 1, // packets to no service, as all are, go to the next queue
			RejectMark: 0x6e667172, MasqueradeMark: 0x4000, ConnMark: 0x2000,
			SeenTimeout: 20 * time.Second, SeenSize: 1024, Native: native,
		}, new(decision.Table), false)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.queue.Close(); _ = ns.Close() })
	return h
}

// udp opens two sockets on one address: what from writes, to should read.
func (h *host) udp(t *testing.T) (from, to net.Conn) {
	t.Helper()
	if err := h.Do(func() error {
		l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:0")))
		if err != nil {
			return err
		}
		to = l
		from, err = net.Dial("udp", l.LocalAddr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = from.Close(); _ = to.Close() })
	return from, to
}

// receive returns the packets of one datagram each that are in the queue, at least
// one.
func (h *host) receive(t *testing.T) []nfqueue.Packet {
	t.Helper()
	p := make([]nfqueue.Packet, 64)
	n, err := h.queue.Receive(p)
	if err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

func TestPacketsAndVerdicts(t *testing.T) {
	h := newHost(t)
	from, to := h.udp(t)
	// An odd length: netlink pads it.
	if _, err := from.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	p := h.receive(t)
	if len(p) != 1 || p[0].Hook != nfqueue.Output || len(p[0].Payload) != 20+8+5 || string(p[0].Payload[28:]) != "hello" {
		t.Fatalf("received %+v", p)
	}
	c, err := h.queue.Counters()
	if err != nil || c.Waiting != 1 || c.Sequence != 1 {
		t.Errorf("counters %+v, error %v; want one packet, waiting", c, err)
	}
	if err := h.queue.Send([]nfqueue.Verdict{{ID: p[0].ID}}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	_ = to.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := to.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("read %q, error %v", b[:n], err)
	}
}

// TestBatch has many packets wait, longer than the copy range, and drops all but
// the last, in one call.
func TestBatch(t *testing.T) {
	h := newHost(t)
	from, to := h.udp(t)
	const n = 40
	for i := range n {
		if _, err := fmt.Fprintf(from, "%03d%s", i, strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	var verdicts []nfqueue.Verdict
	for len(verdicts) < n {
		for _, p := range h.receive(t) {
			if len(p.Payload) != 64 {
				t.Fatalf("%d bytes copied, want the copy range of 64", len(p.Payload))
			}
			verdicts = append(verdicts, nfqueue.Verdict{ID: p.ID, Drop: len(verdicts) < n-1})
		}
	}
	if err := h.queue.Send(verdicts); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	_ = to.SetReadDeadline(time.Now().Add(time.Minute))
	if k, err := to.Read(b); err != nil || k != 1003 || !strings.HasPrefix(string(b), "039") {
		t.Errorf("read %.5q... (%d bytes), error %v; want only the last datagram", b[:k], k, err)
	}
}

func TestVerdictForUnknownPacketIsCounted(t *testing.T) {
	h := newHost(t)
	if err := h.queue.Send([]nfqueue.Verdict{{ID: 999}}); err != nil {
		t.Fatal(err)
	}
	from, _ := h.udp(t)
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	h.receive(t) // the refusal comes before the packet
	if c, err := h.queue.Counters(); err != nil || c.Refused != 1 {
		t.Errorf("counters %+v, error %v; want one refusal", c, err)
	}
}

func TestTakenQueueNamesItsOwner(t *testing.T) {
	h := newHost(t)
	c, err := h.queue.Counters()
	if err != nil {
		t.Fatal(err)
	}
	err = h.Do(func() error {
		_, err := nfqueue.Open(100, nfqueue.Config{MaxLen: 1, CopyRange: 64, ReadBuffer: 1 << 16})
		return err
	})
	if want := fmt.Sprintf("port id %d", c.PortID); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "queue 100") {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func TestCloseEndsReceive(t *testing.T) {
	h := newHost(t)
	got := make(chan error)
	go func() {
		_, err := h.queue.Receive(make([]nfqueue.Packet, 1))
		got <- err
	}()
	if err := h.queue.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-got:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("error %v, want %v", err, os.ErrClosed)
		}
	case <-time.After(time.Minute):
		t.Error("Receive did not return")
	}
	// And the number is free again.
	if err := h.Do(func() error {
		q, err := nfqueue.Open(100, nfqueue.Config{MaxLen: 1, CopyRange: 64, ReadBuffer: 1 << 16})
		if err == nil {
			err = q.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestFullQueueLetsPass: what does not fit passes undecided. The rules count it, the
// queue does not.
func TestFullQueueLetsPass(t *testing.T) {
	h := newHost(t)
	_, to := h.udp(t)
	const n, room = 200, 128
	for range n { // each a flow of its own: one that passed is not queued again
		if err := h.Do(func() error {
			from, err := net.Dial("udp", to.LocalAddr().String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = from.Close() }) // and no port comes twice
			_, err = from.Write([]byte("x"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 16)
	_ = to.SetReadDeadline(time.Now().Add(time.Minute))
	for i := range n - room {
		if _, err := to.Read(b); err != nil {
			t.Fatalf("after %d datagrams: %v", i, err)
		}
	}
	var rules ruleset.Counters
	if err := h.Do(func() (err error) {
		rules, err = h.rules.Counters()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c, err := h.queue.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if rules.Queued != n || c.Sequence != room || c.Waiting != room {
		t.Errorf("%d packets sent to the queue, %d entered, %d wait; want %d, %d, %d", rules.Queued, c.Sequence, c.Waiting, n, room, room)
	}
}

// TestProbeLosesNoPacket: a process that probes the kernel's features does not disturb the queues of
// another.
func TestProbeLosesNoPacket(t *testing.T) {
	h := newHost(t)
	from, _ := h.udp(t)
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	waiting := func() uint32 {
		c, err := h.queue.Counters()
		if err != nil {
			t.Fatal(err)
		}
		return uint32(c.Waiting)
	}
	if n := waiting(); n != 1 {
		t.Fatalf("%d packets wait, want 1", n)
	}
	if err := h.Do(func() error {
		_, err := ruleset.Probe()
		return errors.Join(err, ruleset.ProbeReversePath())
	}); err != nil {
		t.Fatal(err)
	}
	if n := waiting(); n != 1 {
		t.Errorf("%d packets wait after a probe, want 1", n)
	}
}

// TestArrived: a packet that comes from elsewhere has the time of its arrival; one that is made on
// the host does not.
func TestArrived(t *testing.T) {
	h := newHost(t)
	stamps, err := nfqueue.StampPackets()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stamps.Close() })
	client, err := netns.New("client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	host := netip.MustParseAddr("198.51.100.1")
	if err := errors.Join(h.AddVeth("veth0", client, "eth0"), h.AddAddress("veth0", netip.PrefixFrom(host, 24)),
		client.AddAddress("eth0", netip.MustParsePrefix("198.51.100.2/24"))); err != nil {
		t.Fatal(err)
	}
	// arrived reports whether the packet that is sent has a stamp, which has to be right.
	arrived := func(hook nfqueue.Hook, send func() error) bool {
		t.Helper()
		before := time.Now().Truncate(time.Microsecond)
		if err := send(); err != nil {
			t.Fatal(err)
		}
		p := h.receive(t)
		after := time.Now()
		if len(p) != 1 || p[0].Hook != hook {
			t.Fatalf("%d packets, the first from hook %d; want one from %d", len(p), p[0].Hook, hook)
		}
		if err := h.queue.Send([]nfqueue.Verdict{{ID: p[0].ID, Drop: true}}); err != nil {
			t.Fatal(err)
		}
		at := p[0].Arrived
		if !at.IsZero() && (at.Before(before) || at.After(after)) {
			t.Errorf("arrived at %v, not between %v and %v", at, before, after)
		}
		return !at.IsZero()
	}
	send := func(ctx context.Context, network string) error {
		c, err := client.Dial(ctx, network, netip.AddrPort{}, netip.AddrPortFrom(host, 53))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		return err
	}
	// The kernel begins some moments later.
	for deadline := time.Now().Add(time.Minute); !arrived(nfqueue.Prerouting, func() error { return send(t.Context(), "udp") }); {
		if time.Now().After(deadline) {
			t.Fatal("packets are not stamped")
		}
	}
	// TCP's packets bear the time they were to be sent at, which is not meant.
	ctx, cancel := context.WithCancel(t.Context())
	var connecting sync.WaitGroup
	if !arrived(nfqueue.Prerouting, func() error {
		connecting.Go(func() { _ = send(ctx, "tcp") }) // its SYN is dropped
		return nil
	}) {
		t.Error("a SYN has no stamp")
	}
	cancel()
	connecting.Wait()
	from, _ := h.udp(t)
	if arrived(nfqueue.Output, func() error { _, err := from.Write([]byte("hello")); return err }) {
		t.Error("a packet made here has a stamp")
	}
}
