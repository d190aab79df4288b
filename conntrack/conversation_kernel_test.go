package conntrack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// dial connects the client over TCP, to a server that listens or to an address without one.
func (w *watched) dial(e conntrack.Entry) (client, server *net.TCPConn) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
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

// closeTCP shuts down one end and, when that was acknowledged, the other.
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

// conversations are those of TestKernelEvents, with the events that each must cause.
var conversations = []struct {
	name  string
	proto uint8
	// noServer: the flow goes to an address that nothing answers from.
	noServer bool
	talk     func(w *watched, e conntrack.Entry)
	want     string
}{
	{"tcp closed by the client", 6, false, func(w *watched, e conntrack.Entry) {
		c, s := w.dial(e)
		w.closeTCP(e.Tuple, c, s)
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, FIN_WAIT replied assured, CLOSE_WAIT replied assured, " +
		"LAST_ACK replied assured, TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured"},
	{"tcp closed by the server", 6, false, func(w *watched, e conntrack.Entry) {
		c, s := w.dial(e)
		w.closeTCP(e.Tuple, s, c)
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, FIN_WAIT replied assured, CLOSE_WAIT replied assured, " +
		"LAST_ACK replied assured, TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured"},
	{"tcp reset", 6, false, func(w *watched, e conntrack.Entry) {
		c, _ := w.dial(e)
		if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
			w.t.Fatal(err)
		}
	}, "SYN_SENT, SYN_RECV replied, ESTABLISHED replied assured, CLOSE replied assured, DESTROY CLOSE replied assured"},
	{"tcp refused", 6, false, func(w *watched, e conntrack.Entry) {
		_, err := w.client.Dial(context.Background(), "tcp", e.Tuple.Source, e.Tuple.Destination)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			w.t.Fatalf("connected without a listener: %v", err)
		}
	}, "SYN_SENT, DESTROY CLOSE early"},
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
			w.t.Fatal("connected without a server")
		}
	}, "SYN_SENT, DESTROY SYN_SENT"},
	{"udp answered", 17, false, func(w *watched, e conntrack.Entry) {
		c, s := w.udp(e)
		w.exchange(c, s)
	}, "replied, DESTROY replied"},
	{"udp to and fro", 17, false, func(w *watched, e conntrack.Entry) {
		c, s := w.udp(e)
		// Until the kernel takes it for a stream (nf_conntrack_udp_packet).
		for begin := time.Now(); w.lookup(e.Tuple).Status&conntrack.StatusAssured == 0; time.Sleep(100 * time.Millisecond) {
			w.exchange(c, s)
			if time.Since(begin) > testTimeout {
				w.t.Fatal("not assured")
			}
		}
	}, "replied, replied assured, DESTROY replied assured"},
	{"udp unanswered", 17, true, func(w *watched, e conntrack.Entry) {
		c, err := w.client.Dial(context.Background(), "udp", e.Tuple.Source, e.Tuple.Destination)
		if err != nil {
			w.t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			w.t.Fatal(err)
		}
	}, "DESTROY"},
	{"sctp shut down", 132, false, func(w *watched, e conntrack.Entry) {
		w.sctp(e, 1, 2, 10, 11, 7, 8, 14) // INIT, INIT ACK, COOKIE ECHO, COOKIE ACK, SHUTDOWN, SHUTDOWN ACK, SHUTDOWN COMPLETE
	}, "CLOSED, COOKIE_WAIT replied, COOKIE_ECHOED replied, ESTABLISHED replied assured, SHUTDOWN_SENT replied assured, " +
		"SHUTDOWN_ACK_SENT replied assured, CLOSED replied assured, DESTROY CLOSED replied assured"},
	{"sctp aborted", 132, false, func(w *watched, e conntrack.Entry) {
		w.sctp(e, 1, 6) // INIT, ABORT
	}, "CLOSED, NONE replied, DESTROY CLOSED replied"},
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
		_ = c.SetDeadline(time.Now().Add(testTimeout))
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

// exchange has a datagram sent, and one sent back.
func (w *watched) exchange(client net.Conn, server net.PacketConn) {
	w.t.Helper()
	b := make([]byte, 16)
	_ = client.SetDeadline(time.Now().Add(testTimeout))
	_ = server.SetDeadline(time.Now().Add(testTimeout))
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
