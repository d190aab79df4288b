package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// observer makes requests in a lab and collects their records and connection entries.
type observer struct {
	lab    *Lab
	events *Subscription
	unread []*flow.Record // received while waiting for another one
}

func newObserver(l *Lab) *observer { return &observer{lab: l, events: l.Subscribe(eventBuffer)} }

func (o *observer) close() { o.events.Close() }

// exchange is a request with its reply, its decision and the kernel's entry. The connection is
// open until Close.
type exchange struct {
	net.Conn
	source netip.AddrPort
	answer Answer
	record *flow.Record
	flow   conntrack.Flow
}

// get makes an HTTP request from a host; node is the node that decides it.
func (o *observer) get(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error) {
	x, err := o.dial(ctx, host, "tcp", to)
	if err != nil {
		return nil, err
	}
	body, err := x.request("/")
	if err == nil {
		var line []byte
		if line, err = io.ReadAll(body); err == nil {
			x.answer, _, err = ParseAnswer(line)
		}
	}
	return o.complete(ctx, x, node, decision.TCP, to, err)
}

// download fetches bytes and counts them.
func (o *observer) download(ctx context.Context, host, node string, to netip.AddrPort, bytes int64) (*exchange, int64, error) {
	x, err := o.dial(ctx, host, "tcp", to)
	if err != nil {
		return nil, 0, err
	}
	var n int64
	body, err := x.request("/download?bytes=" + strconv.FormatInt(bytes, 10))
	if err == nil {
		n, err = io.Copy(io.Discard, body)
	}
	x, err = o.complete(ctx, x, node, decision.TCP, to, err)
	return x, n, err
}

// send sends a datagram from a host and waits for the reply.
func (o *observer) send(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error) {
	x, err := o.dial(ctx, host, "udp", to)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	var n int
	if _, err = x.Write([]byte("hello")); err == nil {
		if n, err = x.Read(b); err == nil {
			x.answer, _, err = ParseAnswer(b[:n])
		}
	}
	return o.complete(ctx, x, node, decision.UDP, to, err)
}

// refused connects to a service without endpoints and returns the error.
func (o *observer) refused(ctx context.Context, host string, to netip.AddrPort) error {
	x, err := o.dial(ctx, host, "tcp", to)
	if err == nil {
		err = x.Close()
	}
	return err
}

func (o *observer) dial(ctx context.Context, host, network string, to netip.AddrPort) (*exchange, error) {
	ns, err := o.lab.Namespace(host)
	if err != nil {
		return nil, err
	}
	c, err := ns.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	return &exchange{Conn: c, source: addrPort(c.LocalAddr().String())}, nil
}

// request requests a path and returns the body, without closing the connection.
func (x *exchange) request(path string) (io.Reader, error) {
	if _, err := fmt.Fprintf(x, "GET %s HTTP/1.1\r\nHost: lab\r\n\r\n", path); err != nil {
		return nil, err
	}
	r, err := http.ReadResponse(bufio.NewReader(x), nil)
	if err != nil {
		return nil, err
	}
	if r.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("GET %s: %s", path, r.Status), r.Body.Close())
	}
	return r.Body, nil
}

// complete adds the decision and the kernel's entry.
func (o *observer) complete(ctx context.Context, x *exchange, node string, p decision.Protocol, to netip.AddrPort, err error) (*exchange, error) {
	if err == nil {
		x.record, err = o.record(ctx, func(r *flow.Record) bool {
			return r.Node == node && r.Source == x.source.String() && r.Destination == to.String() && r.Protocol == p.String()
		})
	}
	if err == nil {
		x.flow, err = entry(o.lab.topology.hosts[node], p, x.source, to)
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// record waits for a decision.
func (o *observer) record(ctx context.Context, is func(*flow.Record) bool) (*flow.Record, error) {
	for i, r := range o.unread {
		if is(r) {
			o.unread = append(o.unread[:i], o.unread[i+1:]...)
			return r, nil
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no decision was recorded: %w", context.Cause(ctx))
		case e, ok := <-o.events.C:
			switch {
			case !ok:
				return nil, errors.New("the lab has stopped")
			case e.Died != nil:
				return nil, e.Died
			case e.Record == nil:
			case is(e.Record):
				return e.Record, nil
			default:
				o.unread = append(o.unread, e.Record)
			}
		}
	}
}

// entry looks the kernel's entry for a connection up, in the node's namespace.
func entry(node *netns.Namespace, p decision.Protocol, from, to netip.AddrPort) (conntrack.Flow, error) {
	var c *conntrack.Conn
	err := node.Do(func() (err error) {
		c, err = conntrack.Dial(nil)
		return err
	})
	if err != nil {
		return conntrack.Flow{}, err
	}
	defer c.Close()
	// Not Get: on Linux 6.18 it was seen to wait forever for a response. The tables here are
	// small.
	flows, err := c.Dump(nil)
	if err != nil {
		return conntrack.Flow{}, err
	}
	for _, f := range flows {
		t := f.TupleOrig
		if decision.Protocol(t.Proto.Protocol) == p &&
			netip.AddrPortFrom(t.IP.SourceAddress, t.Proto.SourcePort) == from &&
			netip.AddrPortFrom(t.IP.DestinationAddress, t.Proto.DestinationPort) == to {
			return f, nil
		}
	}
	return conntrack.Flow{}, fmt.Errorf("the kernel has no entry for %s -> %s on node %s", from, to, node.Name())
}

// translated is the translated destination of an entry: the source of its replies.
func translated(f *conntrack.Flow) netip.AddrPort {
	return netip.AddrPortFrom(f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort)
}

var tcpStates = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}

// entryLines formats an entry like conntrack -L, with a line for each direction.
func entryLines(f *conntrack.Flow) []string {
	tuple := func(t conntrack.Tuple, c conntrack.Counter) string {
		return fmt.Sprintf("src=%s dst=%s sport=%d dport=%d packets=%d bytes=%d",
			t.IP.SourceAddress, t.IP.DestinationAddress, t.Proto.SourcePort, t.Proto.DestinationPort, c.Packets, c.Bytes)
	}
	p := decision.Protocol(f.TupleOrig.Proto.Protocol)
	head := fmt.Sprintf("%s %d %d", p.Lower(), uint8(p), f.Timeout)
	if tcp := f.ProtoInfo.TCP; tcp != nil && int(tcp.State) < len(tcpStates) {
		head += " " + tcpStates[tcp.State]
	}
	tail := ""
	switch {
	case !f.Status.SeenReply():
		tail = " [UNREPLIED]"
	case f.Status.Assured():
		tail = " [ASSURED]"
	}
	return []string{
		head + fmt.Sprintf("%s mark=%d", tail, f.Mark),
		"  " + tuple(f.TupleOrig, f.CountersOrig),
		"  " + tuple(f.TupleReply, f.CountersReply),
	}
}

// queued is the number of packets that entered the queues of a namespace so far,
// by the kernel's own count.
func queued(n *netns.Namespace) (uint64, error) {
	var text []byte
	// /proc/net shows the namespace of the thread that opens it.
	err := n.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		return err
	})
	if err != nil {
		return 0, err
	}
	return parseQueues(string(text))
}

// parseQueues sums the column id_sequence: the number of the last packet that
// entered each queue (seq_show in net/netfilter/nfnetlink_queue.c).
func parseQueues(table string) (sum uint64, err error) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 8 {
			return 0, fmt.Errorf("nfnetlink_queue: line %q", line)
		}
		n, err := strconv.ParseUint(f[7], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("nfnetlink_queue: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// addrPort reads an address and port this program wrote; the zero one otherwise.
func addrPort(s string) netip.AddrPort {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// addrOf returns the address of an address and port, as text.
func addrOf(s string) string { return addrPort(s).Addr().String() }

// cause is the kernel's error, without the errors that wrap it.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
