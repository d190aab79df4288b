// Package hubblesource observes a cluster by the API of Cilium's Hubble: it makes connections of the packets and the translations
// at sockets that Hubble reports. On nodes whose Services Cilium serves, the kernel's connection tracking knows neither.
//
// It is the inverse of package hubble, for flows of Cilium itself. What it does not know it does not guess: a Service whose
// translation was not reported, or may have been that of another connection, is not known (decision.TranslationUnknown).
// Hubble knows no candidates, no counters and, of Services, not the port's name. So records have a Service without a port's name,
// and no candidates: nobody knows which endpoints there were.
//
// The translation of a Service's address is known by one of
//
//   - the events of a socket before and after its translation (socketLB.tracing; see sockets.go);
//   - a packet to a Service where it comes in (FROM_ENDPOINT, FROM_NETWORK), and the same packet where it goes out;
//   - a reply where it reaches the client: Cilium has put the Service's address back (source_xlated).
//
// With Cilium's default setting of bpf.monitorAggregation, medium, the second is not reported, and newer versions report only
// one event of sockets in five seconds (https://github.com/cilium/cilium/pull/40807).
package hubblesource

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Source is the [observe.Observer] of a Hubble: hubble-relay's or a node's. It has flows and nodes, and no services, service
// tables, topology and steps. It is safe for concurrent use.
type Source struct {
	observe.OnlyFlows // but for nodes
	// Note is called with advice about what the records lack, once for each node; nil: nowhere. Set it before the first use.
	Note func(string)

	server string
	client hubblepb.ObserverClient
	now    func() time.Time
	noted  sync.Map // the nodes
}

var _ observe.Observer = (*Source)(nil)

var only = observe.OnlyFlows{Refusal: "Hubble has no %s, only flows: use nfqproxy flows or record"}

// The schemes of servers.
const (
	schemePlain = "hubble://"
	schemeTLS   = "hubble+tls://"
	schemeUnix  = "hubble+unix:"
)

// Is reports whether the server is a Hubble.
func Is(server string) bool {
	return strings.HasPrefix(server, schemePlain) || strings.HasPrefix(server, schemeTLS) || strings.HasPrefix(server, schemeUnix)
}

// Open returns the source of the server at hubble://HOST:PORT, hubble+unix:/PATH or, with TLS, hubble+tls://HOST:PORT. The last
// may have the parameters ca, cert and key, with PEM files: the authority of the server's certificate (default: the system's),
// and the client's certificate and key; and name, the name in the server's certificate. It does not connect yet.
func Open(server string) (*Source, error) {
	target, secure, err := dialed(server)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", server, err)
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", server, err)
	}
	short, _, _ := strings.Cut(server, "?")
	return &Source{OnlyFlows: only, server: short, client: hubblepb.NewObserverClient(conn), now: time.Now}, nil
}

var errAddress = errors.New("want hubble://HOST:PORT, hubble+tls://HOST:PORT or hubble+unix:/PATH")

// dialed returns the target of gRPC and the credentials for a server.
func dialed(server string) (target string, secure credentials.TransportCredentials, err error) {
	if path, ok := strings.CutPrefix(server, schemeUnix); ok {
		if path = strings.TrimPrefix(path, "//"); !filepath.IsAbs(path) {
			return "", nil, errAddress
		}
		return "unix:" + path, insecure.NewCredentials(), nil
	}
	u, err := url.Parse(server)
	if err != nil || u.User != nil || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		return "", nil, errAddress
	}
	if host, port, err := net.SplitHostPort(u.Host); err != nil || host == "" || port == "" {
		return "", nil, errAddress
	}
	secure = insecure.NewCredentials()
	query := u.Query()
	if u.Scheme == strings.TrimSuffix(schemeTLS, "://") {
		if secure, err = readTLS(query); err != nil {
			return "", nil, err
		}
		for _, known := range []string{"ca", "cert", "key", "name"} {
			query.Del(known)
		}
	}
	for name := range query {
		return "", nil, fmt.Errorf("parameter %q: only hubble+tls:// has parameters: ca, cert, key and name", name)
	}
	return "passthrough:///" + u.Host, secure, nil
}

func readTLS(q url.Values) (credentials.TransportCredentials, error) {
	c := &tls.Config{ServerName: q.Get("name"), MinVersion: tls.VersionTLS12}
	if file := q.Get("ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("parameter ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("parameter ca: %s has no certificate in PEM form (-----BEGIN CERTIFICATE-----)", file)
		}
	}
	switch cert, key := q.Get("cert"), q.Get("key"); {
	case (cert == "") != (key == ""):
		return nil, errors.New("parameters cert and key: give both or none")
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("parameters cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}

// explain adds advice to an error of a call.
func (s *Source) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch st := status.Convert(err); st.Code() {
	case codes.Unavailable:
		return fmt.Errorf("%s: Hubble does not answer: %s (for hubble-relay, check kubectl port-forward; with TLS, use hubble+tls://)", s.server, st.Message())
	case codes.InvalidArgument:
		return &observe.Error{Status: http.StatusBadRequest, Message: s.server + ": Hubble: " + st.Message()}
	default:
		return fmt.Errorf("%s: Hubble: %s (%s)", s.server, st.Message(), st.Code())
	}
}

// Flow returns a flow that is made of events in Hubble's buffer.
func (s *Source) Flow(ctx context.Context, id string) (found *flow.Record, err error) {
	t, err := s.read(ctx, time.Time{}, func(*observe.Missed) error { return nil })
	if err != nil {
		return nil, err
	}
	for _, c := range t.begun {
		if c.id == id {
			r := c.record(0, c.life())
			r.Life.History = c.history
			return r, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("flow %q not found: its events are not in Hubble's buffer, or not any more", id)}
}

// nodes are the nodes of a relay or, of a node's Hubble, that node.
func (s *Source) nodes(ctx context.Context) ([]*hubblepb.Node, error) {
	answer, err := s.client.GetNodes(ctx, new(hubblepb.GetNodesRequest))
	if err == nil {
		return answer.GetNodes(), nil
	}
	if status.Code(err) != codes.Unimplemented { // by a node
		return nil, s.explain(ctx, err)
	}
	now, err := s.client.ServerStatus(ctx, new(hubblepb.ServerStatusRequest))
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	n := &hubblepb.Node{
		Name: s.server, Version: now.GetVersion(), State: hubblepb.NodeState_NODE_CONNECTED, UptimeNs: now.GetUptimeNs(),
		NumFlows: now.GetNumFlows(), MaxFlows: now.GetMaxFlows(),
	}
	// A node has no other way to tell its name than a flow.
	flows, err := s.client.GetFlows(ctx, &hubblepb.GetFlowsRequest{Number: 1})
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	if response, err := flows.Recv(); err == nil && response.GetNodeName() != "" {
		n.Name = response.GetNodeName()
	}
	return []*hubblepb.Node{n}, nil
}

// Stats returns the nodes that Hubble reaches, with the events that it keeps as their flows.
func (s *Source) Stats(ctx context.Context) ([]observe.Stats, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	list := []observe.Stats{}
	for _, n := range nodes {
		if !connected(n) {
			continue
		}
		list = append(list, observe.Stats{
			Node: nodeName(n.GetName()), Version: cmp.Or(n.GetVersion(), "Cilium"), Started: s.now().Add(-time.Duration(n.GetUptimeNs())),
			Verdicts: map[string]uint64{}, Reasons: map[string]uint64{}, Entries: map[string]uint64{},
			Known: observe.Known{Flows: int(n.GetNumFlows()), Capacity: int(n.GetMaxFlows())}, Kernel: observe.Kernel{Following: true},
		})
	}
	return list, nil
}

// Status returns the nodes, with those that Hubble does not reach.
func (s *Source) Status(ctx context.Context) ([]observe.Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	list := []observe.Status{}
	for _, n := range nodes {
		x := observe.Status{Node: nodeName(n.GetName()), Problems: []observe.Problem{}}
		if connected(n) {
			x.Proxy = "Cilium, observed by Hubble"
		} else {
			x.Problems = append(x.Problems, observe.Problem{Code: observe.ProblemUnreachable, Text: "hubble-relay does not reach the node's Hubble"})
		}
		list = append(list, x)
	}
	return list, nil
}

func connected(n *hubblepb.Node) bool {
	return n.GetState() == hubblepb.NodeState_NODE_CONNECTED || n.GetState() == hubblepb.NodeState_UNKNOWN_NODE_STATE
}
