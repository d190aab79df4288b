// Package hubbleapi serves an [observe.Observer] with Hubble's API (observer.Observer in Cilium's
// api/v1/observer/observer.proto, and peer.Peer), so that "hubble observe --server", hubble-relay and
// other clients of a node's Hubble can use nfqproxy. See package hubble for the conversion of records.
//
// It serves HTTP/2, without TLS and authentication or with mutual TLS: every client that can connect can
// read all flows, as with a node's Hubble.
package hubbleapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubble"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
)

// The limits of connections, and of calls in progress, including those that follow.
var (
	connections = limit.Numbers{Total: 64, Each: 16, Reserved: 16}
	calls       = limit.Numbers{Total: 32, Each: 8, Reserved: 8}
)

// serverName is the server's in metrics.
const serverName = "Hubble API"

// relayCalls are the limits with mutual TLS: the clients are relays, each with calls of many users.
var relayCalls = limit.Numbers{Total: 32, Each: 24, Reserved: 8}

// Config is the configuration of a server.
type Config struct {
	Observer observe.Observer
	// Peers lets a relay find the nodes; nil: the service is not supported.
	Peers  *Peers
	TLS    TLS        // without files: no TLS
	Limits *limit.Set // counts the quotas; it may be nil
	Log    *slog.Logger
}

// Serve serves Hubble's calls on the listener, which it closes, until the context ends; then the
// error is nil. Streams end with it.
func Serve(ctx context.Context, l net.Listener, c Config) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // HTTP/1 requests get an explanation
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Handler: Handler(c), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: 2 * c.calls().Each},
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnContext:    limit.ConnContext,
		ErrorLog:       slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug), // of clients without a certificate
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	quota := c.Limits.Connections(serverName, connections)
	if c.TLS.Enabled() {
		l = tls.NewListener(limit.Listen(l, quota, nil), c.TLS.server()) // no response is possible before the handshake
	} else {
		l = limit.Listen(l, quota, goAway)
	}
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// calls are the limits of calls.
func (c *Config) calls() limit.Numbers {
	if c.TLS.Enabled() {
		return relayCalls
	}
	return calls
}

// goAway is a refusal that a client of HTTP/2 shows.
func goAway(err error) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	// A buffer does not fail.
	_ = f.WriteSettings()
	_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(err.Error()))
	return b.Bytes()
}

type server struct {
	hubblepb.UnimplementedObserverServer
	observer observe.Observer
}

// GetFlows sends, for a flow that is over, or older than the request, its decision and its present
// state.
func (s *server) GetFlows(request *hubblepb.GetFlowsRequest, stream grpc.ServerStreamingServer[hubblepb.GetFlowsResponse]) error {
	r, err := parseFlowsRequest(request)
	if err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // so that a following client sees the response at once
		return err
	}
	if r.follow {
		return s.follow(r, stream)
	}
	if r.number > 0 && !r.first {
		return s.last(r, stream)
	}
	enough := errors.New("enough")
	var sent uint64
	err = s.responses(stream.Context(), r, "0", func(answer *hubblepb.GetFlowsResponse) error {
		if r.number > 0 && sent == r.number { // the first ones are wanted
			return enough
		}
		if answer.GetFlow() != nil {
			sent++
		}
		return stream.Send(answer)
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// maxNewest bounds the memory of the newest flows, in bytes of responses.
const maxNewest = 4 << 20

// last sends the newest r.number flows, and the missed items between them. They are known only at
// the end.
func (s *server) last(r *flowsRequest, stream grpc.ServerStreamingServer[hubblepb.GetFlowsResponse]) error {
	type line struct {
		answer *grpc.PreparedMsg // encoded: a message as a struct takes several times as much memory
		size   int
		flow   bool
	}
	var newest []line
	var flows uint64 // of newest
	size := 0
	err := s.responses(stream.Context(), r, "0", func(answer *hubblepb.GetFlowsResponse) error {
		l := line{new(grpc.PreparedMsg), proto.Size(answer), answer.GetFlow() != nil}
		if err := l.answer.Encode(stream, answer); err != nil {
			return err
		}
		newest = append(newest, l)
		size += l.size
		if l.flow {
			flows++
		}
		for flows > r.number {
			if newest[0].flow {
				flows--
			}
			size -= newest[0].size
			newest = newest[1:]
		}
		if size > maxNewest {
			return status.Errorf(codes.ResourceExhausted, "the last %d flows exceed %d MiB: request fewer, or use --since", r.number, maxNewest>>20)
		}
		return nil
	})
	for i := 0; i < len(newest) && err == nil; i++ {
		err = stream.SendMsg(newest[i].answer)
	}
	return err
}

// follow sends events from now on, after those since the time or, without one, of the newest
// r.number flows.
func (s *server) follow(r *flowsRequest, stream grpc.ServerStreamingServer[hubblepb.GetFlowsResponse]) error {
	if r.first {
		return status.Error(codes.InvalidArgument, "first and follow cannot be used together")
	}
	limit := ""
	switch {
	case r.all:
		limit = "0"
	case r.number > 0 && r.since.IsZero():
		limit = strconv.FormatUint(r.number, 10)
	}
	return s.responses(stream.Context(), r, limit, stream.Send)
}

// responses calls each with every response to the request: flows, and missing ones.
func (s *server) responses(ctx context.Context, r *flowsRequest, limit string, each func(*hubblepb.GetFlowsResponse) error) error {
	q := observe.FlowQuery{Follow: r.follow, Limit: limit}
	if !r.since.IsZero() {
		q.Since = r.since.Format(time.RFC3339Nano)
	}
	var lines hubble.Lines
	return s.observer.Flows(ctx, q, func(i observe.Item) error {
		list, err := lines.Of(i)
		if err != nil {
			return err
		}
		for _, answer := range list {
			if f := answer.GetFlow(); f != nil && !r.wants(f) {
				continue
			}
			if err := each(answer); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *server) GetNodes(ctx context.Context, _ *hubblepb.GetNodesRequest) (*hubblepb.GetNodesResponse, error) {
	stats, err := s.observer.Stats(ctx)
	if err != nil {
		return nil, err
	}
	answer := new(hubblepb.GetNodesResponse)
	for _, n := range stats {
		answer.Nodes = append(answer.Nodes, &hubblepb.Node{
			Name: n.Node, Version: n.Version, State: hubblepb.NodeState_NODE_CONNECTED,
			UptimeNs: uptime(&n), NumFlows: uint64(n.Known.Flows), MaxFlows: uint64(n.Known.Capacity), SeenFlows: seen(&n),
		})
	}
	return answer, nil
}

// GetNamespaces returns those of services that had flows.
func (s *server) GetNamespaces(ctx context.Context, _ *hubblepb.GetNamespacesRequest) (*hubblepb.GetNamespacesResponse, error) {
	names := make(map[string]bool)
	_, err := observe.EachService(ctx, s.observer, observe.ServiceQuery{Active: true}, func(*observe.Services) error { return nil }, func(s *observe.Service) error {
		names[s.Namespace] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer := new(hubblepb.GetNamespacesResponse)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		answer.Namespaces = append(answer.Namespaces, &hubblepb.Namespace{Namespace: n})
	}
	return answer, nil
}

func (s *server) ServerStatus(ctx context.Context, _ *hubblepb.ServerStatusRequest) (*hubblepb.ServerStatusResponse, error) {
	stats, err := s.observer.Stats(ctx)
	if err != nil {
		return nil, err
	}
	answer := &hubblepb.ServerStatusResponse{
		NumConnectedNodes: wrapperspb.UInt32(uint32(len(stats))), NumUnavailableNodes: wrapperspb.UInt32(0),
	}
	for _, n := range stats {
		answer.NumFlows += uint64(n.Known.Flows)
		answer.MaxFlows += uint64(n.Known.Capacity)
		answer.SeenFlows += seen(&n)
		answer.UptimeNs = max(answer.UptimeNs, uptime(&n))
		answer.Version = n.Version
	}
	return answer, nil
}

func (*server) GetAgentEvents(*hubblepb.GetAgentEventsRequest, grpc.ServerStreamingServer[hubblepb.GetAgentEventsResponse]) error {
	return unsupported("events of Cilium's agent")
}

func (*server) GetDebugEvents(*hubblepb.GetDebugEventsRequest, grpc.ServerStreamingServer[hubblepb.GetDebugEventsResponse]) error {
	return unsupported("events of Cilium's datapath")
}

// healthy answers the health check that hubble status begins with.
type healthy struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (healthy) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// uptime is how long a node's daemon has run, in nanoseconds.
func uptime(s *observe.Stats) uint64 {
	return uint64(max(0, time.Since(s.Started)))
}

// seen is the number of flows that a node decided.
func seen(s *observe.Stats) (n uint64) {
	for _, v := range s.Verdicts {
		n += v
	}
	return n
}
