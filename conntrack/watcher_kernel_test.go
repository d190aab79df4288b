package conntrack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// patience is more than anything here takes.
const patience = 20 * time.Second

// watched is a host whose connections are watched, between a client and a server.
type watched struct {
	t                    *testing.T
	client, host, server *netns.Namespace
	table                *conntrack.Table
	watcher              *conntrack.Watcher
	events               map[conntrack.Tuple][]conntrack.Event // that were received
}

const (
	clientV4, serverV4, serviceV4 = "10.244.1.9", "10.244.2.2", "10.96.0.10"
	clientV6, serverV6, serviceV6 = "fd44:1::9", "fd44:2::2", "fd96::a"
	// nobodyV4 is routed to the server, which drops what is for it.
	nobodyV4 = "10.244.2.99"
)

// watch makes a host and watches it, with so many bytes of buffer.
func watch(t *testing.T, buffer int) *watched {
	t.Helper()
	netns.Require(t)
	w := &watched{t: t, events: make(map[conntrack.Tuple][]conntrack.Event)}
	for name, ns := range map[string]**netns.Namespace{"client": &w.client, "host": &w.host, "server": &w.server} {
		n, err := netns.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		*ns = n
	}
	for _, setting := range [][2]string{
		{"net.ipv4.ip_forward", "1"}, {"net.ipv6.conf.all.forwarding", "1"},
		{"net.netfilter.nf_conntrack_acct", "1"}, {"net.netfilter.nf_conntrack_timestamp", "1"},
		{"net.netfilter.nf_conntrack_tcp_timeout_syn_sent", "1"}, {"net.netfilter.nf_conntrack_tcp_timeout_time_wait", "1"},
		{"net.netfilter.nf_conntrack_tcp_timeout_close", "1"}, {"net.netfilter.nf_conntrack_udp_timeout", "1"},
		{"net.netfilter.nf_conntrack_udp_timeout_stream", "1"}, {"net.netfilter.nf_conntrack_sctp_timeout_closed", "1"},
	} {
		if err := w.host.SetSysctl(setting[0], setting[1]); err != nil {
			t.Fatal(err)
		}
	}
	for i, end := range []*netns.Namespace{w.client, w.server} {
		link := fmt.Sprintf("veth%d", i)
		if err := w.host.AddVeth(link, end, "eth0"); err != nil {
			t.Fatal(err)
		}
		for _, p := range [][3]string{
			{"10.244.1.1/24", clientV4 + "/24", "0.0.0.0/0"}, {"fd44:1::1/64", clientV6 + "/64", "::/0"},
			{"10.244.2.1/24", serverV4 + "/24", "0.0.0.0/0"}, {"fd44:2::1/64", serverV6 + "/64", "::/0"},
		}[2*i : 2*i+2] {
			at := netip.MustParsePrefix(p[0])
			if err := errors.Join(w.host.AddAddress(link, at), end.AddAddress("eth0", netip.MustParsePrefix(p[1])),
				end.AddRoute(netns.Route{Destination: netip.MustParsePrefix(p[2]), Via: at.Addr(), Link: "eth0"})); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.host.Do(func() (err error) {
		if err = addNATHooks(); err != nil {
			return err
		}
		if w.table, err = conntrack.Open(new(conntrack.Locks)); err != nil {
			return err
		}
		w.watcher, err = conntrack.Watch(conntrack.WatchConfig{Buffer: buffer})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.table.Close(); _ = w.watcher.Close() })
	return w
}

// addNATHooks makes chains for their hooks: they translate what has an entry. The rule has
// connections tracked.
func addNATHooks() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "t", Family: nftables.TableFamilyINet})
	pre := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
	return c.Flush()
}

// establish makes an entry of a flow from the client to the service, or fails the test.
func (w *watched) establish(e conntrack.Entry) conntrack.Outcome {
	w.t.Helper()
	var r [1]conntrack.Result
	if w.table.Establish([]conntrack.Entry{e}, r[:]); r[0].Err != nil {
		w.t.Fatal(r[0].Err)
	}
	return r[0].Outcome
}

// lookup finds an entry that is there.
func (w *watched) lookup(t conntrack.Tuple) conntrack.State {
	w.t.Helper()
	s, err := w.table.Lookup(t, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// remove removes an entry that is there.
func (w *watched) remove(t conntrack.Tuple) {
	w.t.Helper()
	var errs [1]error
	if w.table.Delete([]conntrack.State{w.lookup(t)}, errs[:]); errs[0] != nil {
		w.t.Fatal(errs[0])
	}
}

// until receives events until the last one of the tuple is described like this, and gives
// all of the tuple.
func (w *watched) until(t conntrack.Tuple, last string) []conntrack.Event {
	w.t.Helper()
	giveUp := time.AfterFunc(patience, func() { _ = w.watcher.Close() })
	defer giveUp.Stop()
	for into := make([]conntrack.Event, 8); ; {
		if have := w.events[t]; len(have) > 0 && describe(&have[len(have)-1]) == last {
			return have
		}
		n, err := w.watcher.Receive(into)
		if err != nil {
			w.t.Fatalf("waiting for %q of %v, after %q: %v", last, t, describeAll(w.events[t]), err)
		}
		for _, e := range into[:n] {
			w.events[e.State.Original] = append(w.events[e.State.Original], e)
		}
	}
}

// describe gives what an event says: its kind if it is the end, the states, whether there
// was time left, and whether somebody asked for it.
func describe(e *conntrack.Event) string {
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	end := e.Kind == conntrack.Destroyed
	add(end, "DESTROY")
	add(e.State.Original.Protocol == 6, e.State.TCP.String())
	add(e.State.Original.Protocol == 132, e.State.SCTP.String())
	add(e.State.Status&conntrack.StatusSeenReply != 0, "replied")
	add(e.State.Status&conntrack.StatusAssured != 0, "assured")
	add(end && e.State.Timeout > 0, "early")
	add(e.PortID != 0, "asked")
	return strings.Join(words, " ")
}

func describeAll(events []conntrack.Event) string {
	var all []string
	for i := range events {
		all = append(all, describe(&events[i]))
	}
	return strings.Join(all, ", ")
}

// dial connects the client over TCP, to a server that listens or to nobody.
func (w *watched) dial(e conntrack.Entry) (client, server *net.TCPConn) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := w.server.Listen(ctx, e.Destination)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	c, err := w.client.Dial(ctx, "tcp", e.Tuple.Source, e.Tuple.Destination)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// closeTCP has one end say that it has no more to send, and then, when that was
// acknowledged, the other.
func (w *watched) closeTCP(t conntrack.Tuple, first, second *net.TCPConn) {
	w.t.Helper()
	if err := first.CloseWrite(); err != nil {
		w.t.Fatal(err)
	}
	w.until(t, "CLOSE_WAIT replied assured")
	if err := second.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// conversations are those of TestKernelEvents, and what is told of them.
var conversations = []struct {
	name  string
	proto uint8
	// nobody: the flow goes to an address that nothing answers from.
	nobody bool
	talk   func(w *watched, e conntrack.Entry)
	want   string
	// unanswered: no packet comes back.
	unanswered bool
}{
	{"tcp closed by the client", 6, false, func(w *watched, e conntrack.Entry) {
		c, s := w.dial(e)
		w.closeTCP(e.Tuple, c, s)
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, FIN_WAIT replied assured, CLOSE_WAIT replied assured, " +
		"LAST_ACK replied assured, TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured", false},
	{"tcp closed by the server", 6, false, func(w *watched, e conntrack.Entry) {
		c, s := w.dial(e)
		w.closeTCP(e.Tuple, s, c)
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, FIN_WAIT replied assured, CLOSE_WAIT replied assured, " +
		"LAST_ACK replied assured, TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured", false},
	{"tcp reset", 6, false, func(w *watched, e conntrack.Entry) {
		c, _ := w.dial(e)
		if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
			w.t.Fatal(err)
		}
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, CLOSE replied assured, DESTROY CLOSE replied assured", false},
	{"tcp refused", 6, false, func(w *watched, e conntrack.Entry) {
		_, err := w.client.Dial(context.Background(), "tcp", e.Tuple.Source, e.Tuple.Destination)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			w.t.Fatalf("connected where nobody listens: %v", err)
		}
	}, "SYN_SENT, DESTROY CLOSE early", false},
	{"tcp unanswered", 6, true, func(w *watched, e conntrack.Entry) {
		ctx, cancel := context.WithCancel(context.Background())
		connected := make(chan error)
		go func() {
			_, err := w.client.Dial(ctx, "tcp", e.Tuple.Source, e.Tuple.Destination)
			connected <- err
		}()
		w.until(e.Tuple, "SYN_SENT")
		cancel()
		if <-connected == nil {
			w.t.Fatal("connected to nobody")
		}
	}, "SYN_SENT, DESTROY SYN_SENT", true},
	{"udp answered", 17, false, func(w *watched, e conntrack.Entry) {
		c, s := w.udp(e)
		w.ask(c, s)
	}, "replied, DESTROY replied", false},
	{"udp to and fro", 17, false, func(w *watched, e conntrack.Entry) {
		c, s := w.udp(e)
		// Until the kernel takes it for a stream (nf_conntrack_udp_packet).
		for begin := time.Now(); w.lookup(e.Tuple).Status&conntrack.StatusAssured == 0; time.Sleep(100 * time.Millisecond) {
			w.ask(c, s)
			if time.Since(begin) > patience {
				w.t.Fatal("not assured")
			}
		}
	}, "replied, replied assured, DESTROY replied assured", false},
	{"udp unanswered", 17, false, func(w *watched, e conntrack.Entry) {
		c, _ := w.udp(e)
		if _, err := c.Write([]byte("hello")); err != nil {
			w.t.Fatal(err)
		}
	}, "DESTROY", true},
	{"sctp shut down", 132, false, func(w *watched, e conntrack.Entry) {
		w.sctp(e, 1, 2, 10, 11, 7, 8, 14) // INIT, INIT ACK, COOKIE ECHO, COOKIE ACK, SHUTDOWN, SHUTDOWN ACK, SHUTDOWN COMPLETE
	}, "CLOSED, COOKIE_WAIT replied, COOKIE_ECHOED replied, ESTABLISHED replied assured, SHUTDOWN_SENT replied assured, " +
		"SHUTDOWN_ACK_SENT replied assured, CLOSED replied assured, DESTROY CLOSED replied assured", false},
	{"sctp aborted", 132, false, func(w *watched, e conntrack.Entry) {
		w.sctp(e, 1, 6) // INIT, ABORT
	}, "CLOSED, NONE replied, DESTROY CLOSED replied", false},
}

// sctp sends and receives packets with one chunk each, by turns of client and server, and
// begins with the client. They are made by hand: the kernel need not have SCTP sockets.
func (w *watched) sctp(e conntrack.Entry, chunks ...sctpChunk) {
	w.t.Helper()
	open := func(ns *netns.Namespace, at netip.Addr) net.PacketConn {
		network := "ip4:132"
		if at.Is6() {
			network = "ip6:132"
		}
		var c net.PacketConn
		if err := ns.Do(func() (err error) { c, err = net.ListenPacket(network, at.String()); return err }); err != nil {
			w.t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		w.t.Cleanup(func() { _ = c.Close() })
		return c
	}
	from, to := open(w.client, e.Tuple.Source.Addr()), open(w.server, e.Destination.Addr())
	packet := sctpPacket{source: e.Tuple.Source.Port(), destination: e.Tuple.Destination.Port()}
	var peer net.Addr = &net.IPAddr{IP: e.Tuple.Destination.Addr().AsSlice()}
	b := make([]byte, 1500)
	for _, packet.chunk = range chunks {
		if _, err := from.WriteTo(packet.bytes(), peer); err != nil {
			w.t.Fatal(err)
		}
		n, sender, err := to.ReadFrom(b)
		if err != nil || n < 13 || b[12] != byte(packet.chunk) {
			w.t.Fatalf("%d bytes instead of a packet with chunk %d: %v", n, packet.chunk, err)
		}
		// The answer.
		from, to, peer = to, from, sender
		packet.source, packet.destination = binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b)
	}
}

// sctpChunk is a type of RFC 9260, section 3.2.
type sctpChunk byte

// sctpPacket is a packet of RFC 9260, section 3.
type sctpPacket struct {
	source, destination uint16
	chunk               sctpChunk
}

// bytes gives all tags the same value.
func (p sctpPacket) bytes() []byte {
	const tag = 0x1234
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b, p.source)
	binary.BigEndian.PutUint16(b[2:], p.destination)
	if p.chunk != 1 { // INIT has the tag 0 in the header
		binary.BigEndian.PutUint32(b[4:], tag)
	}
	b[12] = byte(p.chunk)
	binary.BigEndian.PutUint16(b[14:], 20)
	binary.BigEndian.PutUint32(b[16:], tag) // of INIT and INIT ACK
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// udp opens the client's and the server's socket.
func (w *watched) udp(e conntrack.Entry) (client net.Conn, server net.PacketConn) {
	w.t.Helper()
	server, err := w.server.ListenPacket(context.Background(), e.Destination)
	if err != nil {
		w.t.Fatal(err)
	}
	client, err = w.client.Dial(context.Background(), "udp", e.Tuple.Source, e.Tuple.Destination)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// ask has a datagram sent, and one sent back.
func (w *watched) ask(client net.Conn, server net.PacketConn) {
	w.t.Helper()
	b := make([]byte, 16)
	_ = client.SetDeadline(time.Now().Add(patience))
	_ = server.SetDeadline(time.Now().Add(patience))
	_, err := client.Write([]byte("hello"))
	if err != nil {
		w.t.Fatal(err)
	}
	_, from, err := server.ReadFrom(b)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err = server.WriteTo(b[:3], from); err != nil {
		w.t.Fatal(err)
	}
	if _, err = client.Read(b); err != nil {
		w.t.Fatal(err)
	}
}

// TestKernelEvents: what is told of connections whose entries were made by us.
func TestKernelEvents(t *testing.T) {
	w := watch(t, 1<<20)
	begin := time.Now()
	var entries []conntrack.Entry
	for _, at := range [][3]string{{clientV4, serviceV4, serverV4}, {clientV6, serviceV6, serverV6}} {
		for i, c := range conversations {
			e := entry(c.proto, net.JoinHostPort(at[0], fmt.Sprint(40000+i)), net.JoinHostPort(at[1], "80"), net.JoinHostPort(at[2], fmt.Sprint(8080+i)), "")
			if c.nobody {
				e.Destination = netip.AddrPortFrom(e.Destination.Addr().Next(), 80)
			}
			w.establish(e)
			c.talk(w, e)
			entries = append(entries, e)
		}
	}
	for i, e := range entries {
		c := conversations[i%len(conversations)]
		t.Run(fmt.Sprint(c.name, " from ", e.Tuple.Source.Addr()), func(t *testing.T) {
			w.t = t
			// What has timed out goes when the kernel comes across it.
			for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
				if _, err := w.table.Lookup(e.Tuple, 0); conntrack.IsNotFound(err) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the entry does not go: %+v", w.lookup(e.Tuple))
				}
			}
			events := w.until(e.Tuple, c.want[strings.LastIndex(c.want, "DESTROY"):])
			if got := describeAll(events); got != c.want {
				t.Errorf("told\n%s\nwant\n%s", got, c.want)
			}
			checkEvents(t, events, e, begin)
			last := &events[len(events)-1].State
			if last.Sent.Packets == 0 || last.Sent.Bytes < 20*last.Sent.Packets || c.unanswered != (last.Received == conntrack.Counters{}) {
				t.Errorf("sent %+v, received %+v", last.Sent, last.Received)
			}
		})
	}
}

// checkEvents checks what all events of an entry have in common.
func checkEvents(t *testing.T, events []conntrack.Event, entry conntrack.Entry, begin time.Time) {
	t.Helper()
	end := time.Now()
	// Before Linux 6.14 updates do not say when they happened.
	timed := !events[0].At.IsZero()
	at := begin
	for _, e := range events {
		s := e.State
		if s.Endpoint() != entry.Destination || s.Mark != entry.Mark || s.ID != events[0].State.ID || s.Status&conntrack.StatusDestinationNAT == 0 {
			t.Errorf("%v of another entry: %+v", e.Kind, s)
		}
		if e.Kind == conntrack.Destroyed {
			if !s.HasCounters || s.Start.Before(begin) || s.Stop.Before(s.Start) || s.Stop.After(end) || e.At != s.Stop {
				t.Errorf("%v %+v, between %v and %v", e.Kind, e, begin, end)
			}
			continue
		}
		if s.HasCounters || !s.Start.IsZero() || !s.Stop.IsZero() {
			t.Errorf("%v has counters or times: %+v", e.Kind, s)
		}
		if timed && (e.At.Before(at) || e.At.After(end)) || !timed && !e.At.IsZero() {
			t.Errorf("%v at %v, not between %v and %v", e.Kind, e.At, at, end)
		}
		if timed {
			at = e.At
		}
	}
}

// TestKernelCounts: what an event and a look-up count, to the byte.
func TestKernelCounts(t *testing.T) {
	w := watch(t, 1<<20)
	for _, tt := range []struct {
		entry  conntrack.Entry
		header uint64
	}{
		{entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", ""), 20 + 8},
		{entry(17, "["+clientV6+"]:40000", "["+serviceV6+"]:53", "["+serverV6+"]:5353", ""), 40 + 8},
	} {
		w.establish(tt.entry)
		c, s := w.udp(tt.entry)
		w.ask(c, s) // five bytes there and three back
		now := w.lookup(tt.entry.Tuple)
		w.remove(tt.entry.Tuple)
		events := w.until(tt.entry.Tuple, "DESTROY replied early asked")
		for what, s := range map[string]*conntrack.State{"look-up": &now, "event": &events[len(events)-1].State} {
			sent, received := conntrack.Counters{Packets: 1, Bytes: tt.header + 5}, conntrack.Counters{Packets: 1, Bytes: tt.header + 3}
			if !s.HasCounters || s.Sent != sent || s.Received != received || s.Start != now.Start || s.Start.IsZero() || s.Stop.IsZero() != (what == "look-up") {
				t.Errorf("%s: %+v, want %+v sent and %+v received", what, s, sent, received)
			}
		}
	}
}

// TestKernelCountsNothing: what is switched off is not told.
func TestKernelCountsNothing(t *testing.T) {
	w := watch(t, 1<<20)
	for _, setting := range []string{"net.netfilter.nf_conntrack_acct", "net.netfilter.nf_conntrack_timestamp"} {
		if err := w.host.SetSysctl(setting, "0"); err != nil {
			t.Fatal(err)
		}
	}
	e := entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", "")
	w.establish(e)
	c, s := w.udp(e)
	w.ask(c, s)
	w.remove(e.Tuple)
	for _, e := range w.until(e.Tuple, "DESTROY replied early asked") {
		if e.State.HasCounters || !e.State.Start.IsZero() || !e.State.Stop.IsZero() || !e.At.IsZero() {
			t.Errorf("%v %+v", e.Kind, e)
		}
	}
}

// TestKernelReplacedEntry: the end of the old entry is told before anything of the new one,
// and the two differ by the time they began.
func TestKernelReplacedEntry(t *testing.T) {
	w := watch(t, 1<<20)
	e := entry(6, clientV4+":40000", serviceV4+":80", serverV4+":8080", "")
	w.establish(e)
	c, s := w.dial(e)
	w.closeTCP(e.Tuple, s, c) // the server waits for what is late, the client's port is free
	w.until(e.Tuple, "TIME_WAIT replied assured")
	old := w.lookup(e.Tuple)
	e.Destination = netip.MustParseAddrPort(serverV4 + ":8081")
	if o := w.establish(e); o != conntrack.Replaced {
		t.Fatalf("outcome %v", o)
	}
	anew := w.lookup(e.Tuple)
	if _, err := w.client.Dial(context.Background(), "tcp", e.Tuple.Source, e.Tuple.Destination); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("connected where nobody listens: %v", err)
	}
	events := w.until(e.Tuple, "DESTROY CLOSE early")
	const want = "TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured early asked, SYN_SENT, DESTROY CLOSE early"
	if got := describeAll(events); !strings.HasSuffix(got, want) {
		t.Fatalf("told %s, want %s at the end", got, want)
	}
	ends := []conntrack.State{events[len(events)-3].State, events[len(events)-1].State}
	if ends[0].Start != old.Start || ends[1].Start != anew.Start || !ends[0].Start.Before(ends[1].Start) {
		t.Errorf("ended: from %v and from %v; looked up: from %v and from %v", ends[0].Start, ends[1].Start, old.Start, anew.Start)
	}
}

// TestKernelEndsOnly: updates are not told, until they are wanted again; not even for entries
// made meanwhile.
func TestKernelEndsOnly(t *testing.T) {
	w := watch(t, 1<<20)
	if err := w.watcher.EndsOnly(true); err != nil {
		t.Fatal(err)
	}
	talk := func(port int) conntrack.Entry {
		e := entry(17, fmt.Sprintf("%s:%d", clientV4, port), serviceV4+":53", fmt.Sprintf("%s:%d", serverV4, port), "")
		w.establish(e)
		c, s := w.udp(e)
		w.ask(c, s)
		return e
	}
	e := talk(40000)
	w.remove(e.Tuple)
	if got := describeAll(w.until(e.Tuple, "DESTROY replied early asked")); strings.Contains(got, ",") {
		t.Errorf("told %s, want the end only", got)
	}
	if err := w.watcher.EndsOnly(false); err != nil {
		t.Fatal(err)
	}
	w.until(talk(40001).Tuple, "replied")
}

// TestKernelExtensionIsTold: whoever changes an entry over netlink causes an update, which
// names the port that asked for it.
func TestKernelExtensionIsTold(t *testing.T) {
	w := watch(t, 1<<20)
	e := entry(17, clientV4+":40000", serviceV4+":53", serverV4+":5353", "")
	w.establish(e)
	c, s := w.udp(e)
	w.ask(c, s) // it has one second left, and is extended
	if o := w.establish(e); o != conntrack.Kept {
		t.Fatalf("outcome %v", o)
	}
	w.until(e.Tuple, "replied asked")
}

// TestKernelOverrun: that events were lost is said when all that came before were given;
// what happens then is told again.
func TestKernelOverrun(t *testing.T) {
	w := watch(t, 1) // the kernel takes its own minimum
	tuple := func(i int) conntrack.Entry {
		return entry(17, fmt.Sprintf("%s:%d", clientV4, 10000+i), serviceV4+":53", serverV4+":5353", "")
	}
	const n = 500
	for i := range n {
		w.establish(tuple(i))
		w.remove(tuple(i).Tuple)
	}
	into := make([]conntrack.Event, 3)
	given := 0
	for {
		k, err := w.watcher.Receive(into)
		if errors.Is(err, conntrack.ErrOverrun) && k == 0 {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range into[:k] {
			if e.State.Original != tuple(given).Tuple {
				t.Fatalf("event %d is about %v", given, e.State.Original)
			}
			given++
		}
	}
	if given == 0 || given == n {
		t.Fatalf("%d of %d events were given", given, n)
	}
	w.establish(tuple(n))
	w.remove(tuple(n).Tuple)
	w.until(tuple(n).Tuple, "DESTROY early asked")
	if len(w.events) != 1 {
		t.Errorf("after the loss was told, events of %d entries came; want 1", len(w.events))
	}
}

// TestKernelCloseEndsReceive: also while it waits.
func TestKernelCloseEndsReceive(t *testing.T) {
	w := watch(t, 1<<20)
	received := make(chan error)
	go func() {
		_, err := w.watcher.Receive(make([]conntrack.Event, 1))
		received <- err
	}()
	if err := w.watcher.EndsOnly(true); err != nil {
		t.Error(err)
	}
	if err := w.watcher.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-received:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("error %v, want %v", err, os.ErrClosed)
		}
	case <-time.After(patience):
		t.Fatal("Receive did not return")
	}
	for what, err := range map[string]error{"EndsOnly": w.watcher.EndsOnly(false), "Close": w.watcher.Close()} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// TestKernelEventsSwitchedOff: Watch says so, and what to do.
func TestKernelEventsSwitchedOff(t *testing.T) {
	w := watch(t, 1<<20)
	for value, ok := range map[string]bool{"0": false, "1": true, "2": true} {
		if err := w.host.SetSysctl("net.netfilter.nf_conntrack_events", value); err != nil {
			t.Fatal(err)
		}
		err := w.host.Do(func() error {
			watcher, err := conntrack.Watch(conntrack.WatchConfig{Buffer: 1 << 16})
			if err == nil {
				err = watcher.Close()
			}
			return err
		})
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "sysctl -w net.netfilter.nf_conntrack_events=2")) {
			t.Errorf("nf_conntrack_events=%s: %v", value, err)
		}
	}
}
