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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
)

// timeouts is how long a request may take.
type timeouts struct {
	connect          time.Duration // until a connection is made, its name included
	answer, datagram time.Duration // until the answer, on a connection and after a datagram
	// held is how often it is looked whether the flow is held at a queue, when the time for its first answer is over:
	// it is waited for as long as a flow is.
	held time.Duration
}

// defaultTimeouts lets TCP send its first packet three times (after 1 s and 3 s).
var defaultTimeouts = timeouts{connect: 5 * time.Second, answer: 10 * time.Second, datagram: 5 * time.Second, held: 250 * time.Millisecond}

// wait returns a context that ends after the duration, or later, when no node holds a flow any more.
func (l *Lab) wait(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for wait := d; ; wait = l.timeouts.held {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			if !l.holdsFlow(ctx) {
				cancel(context.DeadlineExceeded)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// holdsFlow reports whether a node holds a flow.
func (l *Lab) holdsFlow(ctx context.Context) bool {
	if l.Observer == nil {
		return false
	}
	holder := l.Observer.Holder()
	if holder == nil {
		return false
	}
	holds, err := holder.Holds(ctx)
	return err == nil && slices.ContainsFunc(holds, func(h observe.Hold) bool { return h.State == observe.HoldHolding })
}

// Request sends a request from a host of the lab, as [labapi.Requester].
func (l *Lab) Request(ctx context.Context, q labapi.Request) (*labapi.Response, error) {
	invalid := func(field string, err error) (*labapi.Response, error) {
		return nil, desired.Invalid(field, err)
	}
	ns, err := l.Namespace(q.From)
	if err != nil {
		return invalid("from", err)
	}
	t, field, err := parseTarget(q.To, q.Protocol)
	if err != nil {
		return invalid(field, err)
	}
	connecting, cancel := l.wait(ctx, l.timeouts.connect)
	defer cancel()
	began := time.Now()
	r := new(labapi.Response)
	defer func() { r.Seconds = time.Since(began).Seconds() }()
	at, err := netip.ParseAddr(t.host)
	if err != nil {
		if at, err = l.lookup(connecting, ns, t.host, r); err != nil {
			r.Error = fmt.Sprintf("%s: %v", t.host, err)
			return r, nil
		}
	}
	if t.port == 0 {
		if t.port, err = portOf(l.cluster.now.Load().services, at, t.protocol); err != nil {
			return invalid("to", fmt.Errorf("%q: %w", q.To, err))
		}
	}
	to := netip.AddrPortFrom(at, t.port)
	r.Destination = to.String()
	network := t.protocol.Lower()
	late := "no connection" // the reason, if the time is over
	conn, err := ns.Dial(connecting, network, netip.AddrPort{}, to)
	if err == nil {
		late = "no answer"
		r.Source = conn.LocalAddr().String()
		timeout := l.timeouts.answer
		if network == "udp" {
			timeout = l.timeouts.datagram
		}
		ctx, cancel := l.wait(ctx, timeout)
		defer cancel()
		switch {
		case l.serverAt(to, t.protocol) == labapi.DNSServer:
			err = readIdentity(ctx, conn, r)
		case t.http:
			err = readHTTP(ctx, conn, t, r)
		default:
			err = readResponse(ctx, conn, r)
		}
	}
	if err != nil {
		r.Error = reasonOf(err, late)
	}
	return r, nil
}

// lookup resolves a name as the programs of a host do, and notes how.
func (l *Lab) lookup(ctx context.Context, ns *netns.Namespace, name string, r *labapi.Response) (netip.Addr, error) {
	resolver := dns.Resolver{
		Hosts: ns.File(hostsFile), Config: ns.File(resolvFile),
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return ns.Dial(ctx, network, netip.AddrPort{}, to)
		},
	}
	for _, m := range machinesOf(l.Spec()) {
		if m.Who() != ns.Name() {
			continue
		}
		for _, a := range m.addresses {
			resolver.Families = append(resolver.Families, decision.FamilyOf(a))
		}
	}
	slices.Sort(resolver.Families)
	found, err := resolver.Lookup(ctx, name)
	r.Lookup = &labapi.Lookup{Name: name, Addresses: found.Addresses, Queries: []labapi.LookupQuery{}}
	for _, q := range found.Queries {
		r.Lookup.Queries = append(r.Lookup.Queries, labapi.LookupQuery{Name: q.Name, Type: q.Type, Server: q.Server.String(), Source: q.Source.String(), Answer: q.Answer})
	}
	if err != nil {
		r.Lookup.Addresses = []netip.Addr{}
		return netip.Addr{}, err
	}
	return found.Addresses[0], nil
}

// readIdentity sends a DNS query, and reads who answers it.
func readIdentity(ctx context.Context, conn net.Conn, r *labapi.Response) error {
	defer conn.Close()
	line, err := dns.Identify(ctx, conn, demoQuery)
	if err != nil {
		return err
	}
	noteAnswer(line, r)
	return nil
}

// readHTTP sends an HTTP request, and reads its response.
func readHTTP(ctx context.Context, conn net.Conn, t target, r *labapi.Response) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: nfqproxy\r\nConnection: close\r\n\r\n", t.path, hostHeader(t)); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	r.Status = answer.Status
	line, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if len(line) > 0 {
		err = nil // of a part of it
	}
	noteAnswer(line, r)
	return err
}

// hostHeader is the destination as a header of HTTP has it: without the port that is the default.
func hostHeader(t target) string {
	host := net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
	return strings.TrimSuffix(host, ":80")
}

// noteAnswer notes who answered, if it was a server of the lab: others may send anything.
func noteAnswer(line []byte, r *labapi.Response) {
	var a Answer
	if json.Unmarshal(line, &a) == nil {
		r.By, r.Client = a.Who(), a.Client
	}
}

// readResponse sends a line, and reads the answer. Servers that are not the lab's may give anything.
func readResponse(ctx context.Context, conn net.Conn, r *labapi.Response) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := conn.Write([]byte("GET /\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, 4096).ReadString('\n')
	if line == "" {
		return err
	}
	noteAnswer([]byte(line), r)
	return nil
}

// reasonOf is an error in the words of the system, without addresses; late is the one of a timeout.
func reasonOf(err error, late string) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return late
	case errors.Is(err, io.EOF):
		return "connection closed without an answer"
	}
	return strings.TrimSpace(err.Error())
}
