package lab

import (
	"bufio"
	"context"
	"encoding/json"
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

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
)

// observer makes requests in a lab and collects their records and connection entries.
type observer struct{ lab *Lab }

// exchange is a request with its reply, its decision and the kernel's entry. The connection is
// open until Close.
type exchange struct {
	net.Conn
	source netip.AddrPort
	answer Answer
	record *flow.Record
	entry  conntrack.State
}

// get makes an HTTP request from a host; node is the node that decides it.
func (o *observer) get(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error) {
	return o.exchange(ctx, host, node, decision.TCP, to, func(x *exchange) error {
		body, err := x.request("/")
		if err != nil {
			return err
		}
		line, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		x.answer, _, err = ParseAnswer(line)
		return err
	})
}

// download fetches bytes and counts them.
func (o *observer) download(ctx context.Context, host, node string, to netip.AddrPort, bytes int64) (x *exchange, n int64, err error) {
	x, err = o.exchange(ctx, host, node, decision.TCP, to, func(x *exchange) error {
		body, err := x.request("/download?bytes=" + strconv.FormatInt(bytes, 10))
		if err != nil {
			return err
		}
		n, err = io.Copy(io.Discard, body)
		return err
	})
	return x, n, err
}

// send sends a datagram from a host and waits for the reply.
func (o *observer) send(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error) {
	return o.exchange(ctx, host, node, decision.UDP, to, func(x *exchange) error {
		if _, err := x.Write([]byte("hello")); err != nil {
			return err
		}
		b := make([]byte, 64<<10)
		n, err := x.Read(b)
		if err != nil {
			return err
		}
		x.answer, _, err = ParseAnswer(b[:n])
		return err
	})
}

// demoQuery is the name that every cluster's DNS has.
const demoQuery = "dns-version." + dns.Domain

// lookup sends a DNS query from a host.
func (o *observer) lookup(ctx context.Context, host, node string, to netip.AddrPort) (*exchange, error) {
	return o.exchange(ctx, host, node, decision.UDP, to, func(x *exchange) error {
		line, err := dns.Identify(ctx, x.Conn, demoQuery)
		if err != nil {
			return err
		}
		return json.Unmarshal(line, &x.answer)
	})
}

// refused connects to a service without endpoints and returns the error.
func (o *observer) refused(ctx context.Context, host string, to netip.AddrPort) error {
	x, err := o.dial(ctx, host, decision.TCP, to)
	if err == nil {
		err = x.Close()
	}
	return err
}

func (o *observer) dial(ctx context.Context, host string, p decision.Protocol, to netip.AddrPort) (*exchange, error) {
	ns, err := o.lab.Namespace(host)
	if err != nil {
		return nil, err
	}
	c, err := ns.Dial(ctx, p.Lower(), netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	return &exchange{Conn: c, source: addrPort(c.LocalAddr().String())}, nil
}

// exchange makes a request from a host, and adds the decision and the kernel's entry.
func (o *observer) exchange(ctx context.Context, host, node string, p decision.Protocol, to netip.AddrPort, request func(*exchange) error) (*exchange, error) {
	x, err := o.dial(ctx, host, p, to)
	if err != nil {
		return nil, err
	}
	err = request(x)
	if err == nil {
		x.record, err = o.record(ctx, node, observe.FlowQuery{Source: x.source.String(), Destination: to.String(), Protocol: p.String()})
	}
	if err == nil {
		x.entry, err = entry(o.lab.topology.find(node).Namespace, p, x.source, to)
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
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

// record waits for a decision of a node, which may be known already.
func (o *observer) record(ctx context.Context, node string, q observe.FlowQuery) (*flow.Record, error) {
	client, err := o.lab.NodeObserver(node)
	if err != nil {
		return nil, err
	}
	q.Follow, q.Limit, q.Steps = true, "1", true
	r, err := remote.First(ctx, client, q)
	if err != nil {
		err = fmt.Errorf("no decision was recorded: %w", err)
	}
	return r, err
}

// entry looks the kernel's entry for a connection up, in the node's namespace.
func entry(node *netns.Namespace, p decision.Protocol, from, to netip.AddrPort) (s conntrack.State, err error) {
	err = withEntries(node, func(t *conntrack.Table) (err error) {
		s, err = t.Lookup(conntrack.Tuple{Source: from, Destination: to, Protocol: uint8(p)}, 0)
		return err
	})
	if conntrack.IsNotFound(err) {
		err = fmt.Errorf("the kernel has no entry for %s -> %s on node %s", from, to, node.Name())
	}
	return s, err
}

// entryLines formats an entry like conntrack -L, with a line for each direction.
func entryLines(s *conntrack.State) []string {
	tuple := func(t conntrack.Tuple, c conntrack.Counters) string {
		return fmt.Sprintf("  src=%s dst=%s sport=%d dport=%d packets=%d bytes=%d",
			t.Source.Addr(), t.Destination.Addr(), t.Source.Port(), t.Destination.Port(), c.Packets, c.Bytes)
	}
	p := decision.Protocol(s.Original.Protocol)
	head := fmt.Sprintf("%s %d %d", p.Lower(), uint8(p), s.Timeout)
	if p == decision.TCP {
		head += " " + s.TCP.String()
	}
	switch {
	case s.Status&conntrack.StatusSeenReply == 0:
		head += " [UNREPLIED]"
	case s.Status&conntrack.StatusAssured != 0:
		head += " [ASSURED]"
	}
	return []string{fmt.Sprintf("%s mark=%d", head, s.Mark), tuple(s.Original, s.Sent), tuple(s.Reply, s.Received)}
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
