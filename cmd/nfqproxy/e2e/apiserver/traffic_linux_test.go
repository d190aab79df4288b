package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// vantages are where flows are tried from, one on each node: a pod and a node itself.
var vantages = []string{"shell", "node-b"}

// front is one address of a service port.
type front struct {
	network  string // tcp or udp
	at       netip.AddrPort
	podPort  uint16
	vantages []string
}

// fronts are the cluster IPs of a service of [apiCluster.service].
func fronts(s *corev1.Service) []front {
	var list []front
	for _, ip := range s.Spec.ClusterIPs {
		a := netip.MustParseAddr(ip)
		list = append(list, front{"tcp", netip.AddrPortFrom(a, 80), tcpPort, vantages}, front{"udp", netip.AddrPortFrom(a, 53), udpPort, vantages})
	}
	return list
}

// nodePort is the TCP node port on an address, asked from outside.
func nodePort(s *corev1.Service, at netip.Addr) front {
	return front{"tcp", netip.AddrPortFrom(at, uint16(s.Spec.Ports[0].NodePort)), tcpPort, []string{"outside"}}
}

// Source ports of attempts and of a load's UDP flows are below those the kernel gives out
// and those of the daemons' heartbeats (datapath's heartbeatPort), and above those the daemons listen at.
// No attempt gets one twice. The load gets one again only when all others were used:
// to the kernel, and to the proxy, datagrams with the same ports are the same flow, which
// may be bound to an endpoint that is on its way out.
const (
	firstAttemptPort, attemptPorts = 11000, 9000
	firstLoadPort, loadPorts       = 20000, 9800
)

// attempt is one new flow and what became of it.
type attempt struct {
	record *flow.Record
	pod    string // that answered
	err    error  // why none did
}

// attemptTimeout is how long one attempt may take of many.
const attemptTimeout = 10 * time.Second

// attempt makes a flow whose decision can be told from all others by its source port. If its record is lost,
// it makes others.
func (c *apiCluster) attempt(from string, f front) attempt {
	c.T.Helper()
	for range 6 {
		if a := c.attemptOnce(from, f); a.record != nil {
			return a
		}
	}
	c.T.Fatalf("no record of a flow from %s to %s %s", from, f.network, f.at)
	return attempt{}
}

// attemptOnce makes one flow. Its record is nil if it was lost.
func (c *apiCluster) attemptOnce(from string, f front) attempt {
	c.T.Helper()
	c.ports++
	if c.ports == attemptPorts {
		c.T.Fatal("out of source ports")
	}
	source := netip.AddrPortFrom(c.AddressOf(from, decision.FamilyOf(f.at.Addr())), firstAttemptPort+c.ports)
	ctx, cancel := context.WithTimeout(c.T.Context(), attemptTimeout)
	defer cancel()
	conn, err := c.Host(from).Dial(ctx, f.network, source, f.at)
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte("who are you?\n"))
	}
	a := attempt{record: c.decision(f, source), err: err}
	if a.record == nil || err != nil {
		return a
	}
	if a.record.Verdict == "accept" && f.network == "udp" {
		// UDP sockets are not told that a network is unreachable.
		a.err = errors.New("nobody will answer")
		return a
	}
	c.Must(conn.SetDeadline(time.Now().Add(attemptTimeout)))
	answer, err := e2etest.ReadAnswer(conn)
	a.pod, a.err = answer.Pod, err
	return a
}

// decision waits for the record of a flow, on whatever node. It returns nil if the flow log has lost
// records: on a busy machine the test reads slowly.
func (c *apiCluster) decision(f front, source netip.AddrPort) *flow.Record {
	c.T.Helper()
	protocol := strings.ToUpper(f.network)
	match := func(r *flow.Record) bool {
		return r.Protocol == protocol && r.Source == source.String() && r.Destination == f.at.String()
	}
	for end := time.Now().Add(e2etest.Timeout); time.Now().Before(end); {
		if r := c.LookForRecord(attemptTimeout, match); r != nil {
			return r
		}
		for _, node := range []string{"node-a", "node-b"} {
			if n := c.Metric(node, "nfqproxy_flow_records_lost_total"); n > 0 {
				c.T.Logf("%s has lost %.0f records", node, n)
				return nil
			}
		}
	}
	c.T.Fatalf("waited %s for the decision on %s %s > %s", e2etest.Timeout, protocol, source, f.at)
	return nil
}

// reaches waits until new flows from everywhere may go to exactly these pods, and have
// an answer from one of them. It gives the decisions, by the node that made them.
func (c *apiCluster) reaches(list []front, pods ...*pod) map[string]*flow.Record {
	c.T.Helper()
	return c.awaitDecision(list, func(f front, a attempt) error {
		var want, got []string
		var names []string
		for _, p := range pods {
			want = append(want, p.at(decision.FamilyOf(f.at.Addr()), f.podPort))
			names = append(names, p.name)
		}
		for _, e := range a.record.Candidates {
			got = append(got, e.Endpoint)
		}
		slices.Sort(want)
		slices.Sort(got)
		switch {
		case a.record.Verdict != "dnat" || !slices.Equal(got, want):
			return fmt.Errorf("verdict %s, reason %s, candidates %v, want %v", a.record.Verdict, a.record.Reason, got, want)
		case a.err != nil:
			return fmt.Errorf("no answer from %s: %w", a.record.Endpoint, a.err)
		case !slices.Contains(names, a.pod) || a.pod != a.record.Pod:
			return fmt.Errorf("answered by %s; decided for %s %s", a.pod, a.record.Endpoint, a.record.Pod)
		}
		return nil
	})
}

// refuses waits until new flows are rejected because there is no endpoint, and the
// client is told.
func (c *apiCluster) refuses(list []front) {
	c.T.Helper()
	c.awaitDecision(list, func(_ front, a attempt) error {
		if a.record.Verdict != "reject" || a.record.Reason != "no-endpoints" || a.err == nil {
			return fmt.Errorf("verdict %s, reason %s, answer %s (%v); want it rejected", a.record.Verdict, a.record.Reason, a.pod, a.err)
		}
		return nil
	})
}

// ignores waits until the addresses are no service's.
func (c *apiCluster) ignores(list []front) {
	c.T.Helper()
	c.awaitDecision(list, func(_ front, a attempt) error {
		if a.record.Verdict != "accept" || a.record.Service != "" || a.err == nil {
			return fmt.Errorf("verdict %s, service %q, answer %s (%v); want no service", a.record.Verdict, a.record.Service, a.pod, a.err)
		}
		return nil
	})
}

func (c *apiCluster) awaitDecision(list []front, check func(front, attempt) error) map[string]*flow.Record {
	c.T.Helper()
	records := make(map[string]*flow.Record)
	for _, f := range list {
		for _, from := range f.vantages {
			c.await(fmt.Sprintf("%s from %s to %s", f.network, from, f.at), func(context.Context) error {
				a := c.attempt(from, f)
				records[a.record.Node] = a.record
				return check(f, a)
			})
		}
	}
	return records
}

// conversation is a client that keeps its UDP socket, as resolvers and media clients do.
type conversation struct {
	c    *apiCluster
	from string
	conn net.Conn
}

func (c *apiCluster) converse(from string, to netip.AddrPort) *conversation {
	c.T.Helper()
	return &conversation{c, from, c.Dial(from, "udp", e2etest.AnyPort, to.String())}
}

// conversations are one from each vantage to each UDP address.
func (c *apiCluster) conversations(list []front) []*conversation {
	c.T.Helper()
	var all []*conversation
	for _, f := range list {
		for _, from := range f.vantages {
			if f.network == "udp" {
				all = append(all, c.converse(from, f.at))
			}
		}
	}
	return all
}

// next sends a datagram and gives who answers it, or an earlier one. Where nobody does,
// that is an error soon.
func (v *conversation) next() (string, error) {
	if _, err := v.conn.Write([]byte("next?\n")); err != nil {
		return "", err
	}
	if err := v.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return "", err
	}
	a, err := e2etest.ReadAnswer(v.conn)
	return a.Pod, err
}

// movesTo waits until one of the pods answers, and no other ever after.
func (v *conversation) movesTo(pods ...*pod) {
	v.c.T.Helper()
	var names []string
	for _, p := range pods {
		names = append(names, p.name)
	}
	v.c.await(fmt.Sprintf("the conversation of %s with %s to move to %v", v.from, v.conn.RemoteAddr(), names), func(context.Context) error {
		// One right answer could have been on its way already.
		for range 2 {
			switch who, err := v.next(); {
			case err != nil:
				return err
			case !slices.Contains(names, who):
				return fmt.Errorf("%s answers", who)
			}
		}
		return nil
	})
}
