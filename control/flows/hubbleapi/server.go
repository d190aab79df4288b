// Package hubbleapi serves an [observe.Observer] with Hubble's API (observer.Observer in Cilium's
// api/v1/observer/observer.proto), so that "hubble observe --server" and other clients of a node's
// Hubble can use nfqproxy. See package hubble for the conversion of records.
//
// It implements gRPC without its library: over HTTP/2 without TLS, with package net/http. For TLS,
// use a proxy in front of it. It is unauthenticated, as a node's Hubble is: every client that can
// reach it can read all flows.
package hubbleapi

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nfqproxy/nfqproxy/control/flows/hubble"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/limit"
)

// The limits of connections, and of calls in progress, including those that follow.
var (
	connections = limit.Numbers{Total: 64, Each: 16, Reserved: 16}
	calls       = limit.Numbers{Total: 32, Each: 8, Reserved: 8}
)

// serverName is the server's in metrics.
const serverName = "Hubble API"

// Handler serves Hubble's calls. Requests must use HTTP/2; see [Serve]. The set counts its quotas;
// it may be nil.
func Handler(o observe.Observer, limits *limit.Set) http.Handler {
	s := &server{o}
	quota := limits.New(serverName, "calls", calls)
	methods := map[string]method{
		"/observer.Observer/GetFlows":       s.flows,
		"/observer.Observer/GetNodes":       s.nodes,
		"/observer.Observer/GetNamespaces":  s.namespaces,
		"/observer.Observer/ServerStatus":   s.status,
		"/observer.Observer/GetAgentEvents": unimplemented("events of Cilium's agent"),
		"/observer.Observer/GetDebugEvents": unimplemented("events of Cilium's datapath"),
		"/grpc.health.v1.Health/Check":      healthy,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 || r.Method != http.MethodPost || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			http.Error(w, "This is Hubble's gRPC API: use hubble observe --server "+r.Host, http.StatusUnsupportedMediaType)
			return
		}
		call := methods[r.URL.Path]
		if call == nil {
			call = unimplemented("method " + strings.TrimPrefix(r.URL.Path, "/"))
		}
		release, err := quota.Take(limit.Of(r))
		if err != nil {
			call = func(context.Context, []byte, func([]byte) error) error {
				return failure(codeResourceExhausted, "%v", err)
			}
		} else {
			defer release()
		}
		serveGRPC(w, r, call)
	})
}

// Serve serves Hubble's calls on the listener, which it closes, until the context ends; then the
// error is nil. Streams end with it. The set counts its quotas; it may be nil.
func Serve(ctx context.Context, l net.Listener, o observe.Observer, limits *limit.Set) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // HTTP/1 requests get an explanation
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Handler: Handler(o, limits), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: 2 * calls.Each},
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnContext:    limit.ConnContext,
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	l = limit.Listen(l, limits.Connections(serverName, connections), goAway)
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// goAway is a refusal that a client of HTTP/2 shows: the server's settings, and
// GOAWAY with the code ENHANCE_YOUR_CALM (RFC 9113, 6.5 and 6.8).
func goAway(err error) []byte {
	const settings, goaway, enhanceYourCalm = 4, 7, 11
	text := err.Error()
	b := []byte{0, 0, 0, settings, 0, 0, 0, 0, 0}
	b = append(b, 0, byte((8+len(text))>>8), byte(8+len(text)), goaway, 0, 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, enhanceYourCalm)
	return append(b, text...)
}

type server struct{ observer observe.Observer }

// flows serves GetFlows. For a flow that is over, or older than the request, it sends its decision
// and its present state.
func (s *server) flows(ctx context.Context, request []byte, send func([]byte) error) error {
	r, err := parseFlowsRequest(request)
	if err != nil {
		return err
	}
	if r.follow {
		return s.follow(ctx, r, send)
	}
	if r.number > 0 && !r.first {
		return s.last(ctx, r, send)
	}
	enough := errors.New("enough")
	var sent uint64
	err = s.responses(ctx, r, "0", func(answer []byte, flow bool) error {
		if r.number > 0 && sent == r.number { // the first ones are wanted
			return enough
		}
		if flow {
			sent++
		}
		return send(answer)
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
func (s *server) last(ctx context.Context, r *flowsRequest, send func([]byte) error) error {
	type line struct {
		answer []byte
		flow   bool
	}
	var newest []line
	var flows uint64 // of newest
	size := 0
	err := s.responses(ctx, r, "0", func(answer []byte, flow bool) error {
		newest = append(newest, line{answer, flow})
		size += len(answer)
		if flow {
			flows++
		}
		for flows > r.number {
			if newest[0].flow {
				flows--
			}
			size -= len(newest[0].answer)
			newest = newest[1:]
		}
		if size > maxNewest {
			return failure(codeResourceExhausted, "the last %d flows exceed %d MiB: request fewer, or use --since", r.number, maxNewest>>20)
		}
		return nil
	})
	for i := 0; i < len(newest) && err == nil; i++ {
		err = send(newest[i].answer)
	}
	return err
}

// follow sends events from now on, after those since the time or, without one, of the newest
// r.number flows.
func (s *server) follow(ctx context.Context, r *flowsRequest, send func([]byte) error) error {
	if r.first {
		return failure(codeInvalidArgument, "first and follow exclude each other")
	}
	limit := ""
	switch {
	case r.all:
		limit = "0"
	case r.number > 0 && r.since.IsZero():
		limit = strconv.FormatUint(r.number, 10)
	}
	return s.responses(ctx, r, limit, func(answer []byte, _ bool) error { return send(answer) })
}

// responses calls each with every response to the request: flows, and missing ones.
func (s *server) responses(ctx context.Context, r *flowsRequest, limit string, each func(answer []byte, flow bool) error) error {
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
		for k := range list {
			f := list[k].Flow
			if f != nil && !r.wants(f) {
				continue
			}
			if err := each(list[k].AppendProto(nil), f != nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// nodes serves GetNodes.
func (s *server) nodes(ctx context.Context, _ []byte, send func([]byte) error) error {
	const connected = 1 // relay.NodeState
	stats, err := s.observer.Stats(ctx)
	if err != nil {
		return err
	}
	var answer []byte
	for _, n := range stats {
		var b []byte
		b = appendText(b, 1, n.Node)
		b = appendText(b, 2, n.Version)
		b = appendNumber(b, 4, connected)
		b = appendNumber(b, 6, uptime(&n))
		b = appendNumber(b, 7, uint64(n.Known.Flows))
		b = appendNumber(b, 8, uint64(n.Known.Capacity))
		b = appendNumber(b, 9, seen(&n))
		answer = appendMessage(answer, 1, b)
	}
	return send(answer)
}

// namespaces serves GetNamespaces: those of services that had flows.
func (s *server) namespaces(ctx context.Context, _ []byte, send func([]byte) error) error {
	names := make(map[string]bool)
	_, err := observe.EachService(ctx, s.observer, observe.ServiceQuery{Active: true}, func(*observe.Services) error { return nil }, func(s *observe.Service) error {
		names[s.Namespace] = true
		return nil
	})
	if err != nil {
		return err
	}
	var answer []byte
	for _, n := range slices.Sorted(maps.Keys(names)) {
		answer = appendMessage(answer, 1, appendText(nil, 2, n))
	}
	return send(answer)
}

// status serves ServerStatus.
func (s *server) status(ctx context.Context, _ []byte, send func([]byte) error) error {
	stats, err := s.observer.Stats(ctx)
	if err != nil {
		return err
	}
	var known, capacity, all, longest uint64
	var version string
	for _, n := range stats {
		known += uint64(n.Known.Flows)
		capacity += uint64(n.Known.Capacity)
		all += seen(&n)
		longest = max(longest, uptime(&n))
		version = n.Version
	}
	var answer []byte
	answer = appendNumber(answer, 1, known)
	answer = appendNumber(answer, 2, capacity)
	answer = appendNumber(answer, 3, all)
	answer = appendNumber(answer, 4, longest)
	answer = appendMessage(answer, 5, appendNumber(nil, 1, uint64(len(stats))))
	answer = appendMessage(answer, 6, nil) // none is unavailable
	answer = appendText(answer, 8, version)
	return send(answer)
}

// healthy serves the health check that hubble status begins with.
func healthy(_ context.Context, _ []byte, send func([]byte) error) error {
	const serving = 1 // grpc.health.v1.HealthCheckResponse.ServingStatus
	return send(appendNumber(nil, 1, serving))
}

func unimplemented(what string) method {
	return func(context.Context, []byte, func([]byte) error) error {
		return failure(codeUnimplemented, "not supported by nfqproxy: %s", what)
	}
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

func appendText(b []byte, n protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func appendNumber(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendMessage(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}
