// Package observe defines how nodes' flows are observed, as in the flow API (see openapi.yaml in package flowapi): the
// requests, the responses, and the interface [Observer], which a node's daemon and the clients in package remote
// implement.
//
// It is a ground package.
package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Observer provides flows and services. It is safe for concurrent use. Errors of invalid requests
// are an [*Error].
type Observer interface {
	// Flows calls each for every item, in order, until there are no more or, with Follow, until the context ends (then
	// the error is nil) or each fails (then its error is returned).
	Flows(ctx context.Context, q FlowQuery, each func(Item) error) error
	// Flow returns one flow with its steps and its history.
	Flow(ctx context.Context, id string) (*flow.Record, error)
	// Services returns the services, with the distribution of their flows.
	Services(ctx context.Context, q ServiceQuery) (*Services, error)
	// Tables describes the service table of each node.
	Tables(ctx context.Context) ([]Table, error)
	// Stats returns the counters of each node.
	Stats(ctx context.Context) ([]Stats, error)
	// Status describes the daemon of each node.
	Status(ctx context.Context) ([]Status, error)
	// Objects returns a node's current or an earlier service table as Kubernetes objects.
	Objects(ctx context.Context, q ObjectsQuery) (*TableObjects, error)
	// Topology returns the known nodes, pods and machines of the cluster.
	Topology(ctx context.Context) (*Topology, error)
	// Explain simulates a packet on a node, which is optional if there is only one.
	Explain(ctx context.Context, q Question) (*flow.Record, error)
	// Holder returns the Holder; nil: holding flows is not supported.
	Holder() Holder
}

// OnlyFlows is the part of an [Observer] that has only flows: it refuses everything else.
type OnlyFlows struct {
	// Refusal is the message, with %s for what the observer does not have; empty: a general one.
	Refusal string
}

func (o OnlyFlows) refuse(what string) error {
	return &Error{Status: http.StatusNotFound, Message: fmt.Sprintf(cmp.Or(o.Refusal, "only flows are known here, and no %s"), what)}
}

// Services returns an error.
func (o OnlyFlows) Services(context.Context, ServiceQuery) (*Services, error) {
	return nil, o.refuse("counts of Services")
}

// Tables returns an error.
func (o OnlyFlows) Tables(context.Context) ([]Table, error) { return nil, o.refuse("service tables") }

// Stats returns an error.
func (o OnlyFlows) Stats(context.Context) ([]Stats, error) { return nil, o.refuse("counters") }

// Status returns an error.
func (o OnlyFlows) Status(context.Context) ([]Status, error) {
	return nil, o.refuse("status of daemons")
}

// Objects returns an error.
func (o OnlyFlows) Objects(context.Context, ObjectsQuery) (*TableObjects, error) {
	return nil, o.refuse("objects")
}

// Topology returns an error.
func (o OnlyFlows) Topology(context.Context) (*Topology, error) { return nil, o.refuse("topology") }

// Explain returns an error.
func (o OnlyFlows) Explain(context.Context, Question) (*flow.Record, error) {
	return nil, o.refuse("service tables")
}

// Holder returns nil.
func (o OnlyFlows) Holder() Holder { return nil }

// ServiceStreamer is an optional interface of an [Observer] that returns services one by one, so
// that they are never all in memory.
type ServiceStreamer interface {
	// EachService calls head once, with all fields except the services, then each for every
	// service of [Observer.Services], in its order. It ends with the first error of either. A service is valid until each returns. It returns [Services.Next].
	EachService(ctx context.Context, q ServiceQuery, head func(*Services) error, each func(*Service) error) (next string, err error)
}

// EachService is [ServiceStreamer.EachService] for any observer.
func EachService(ctx context.Context, o Observer, q ServiceQuery, head func(*Services) error, each func(*Service) error) (next string, err error) {
	if s, ok := o.(ServiceStreamer); ok {
		return s.EachService(ctx, q, head, each)
	}
	answer, err := o.Services(ctx, q)
	if err != nil {
		return "", err
	}
	besides := *answer
	besides.Services = nil
	if err := head(&besides); err != nil {
		return "", err
	}
	for i := range answer.Services {
		if err := each(&answer.Services[i]); err != nil {
			return "", err
		}
	}
	return answer.Next, nil
}

// Item is one piece of a stream. Exactly one of Record, Missed and Joined is set.
type Item struct {
	Record *flow.Record
	Missed *Missed
	Joined *Joined // with [FlowQuery.Joined] only
	// Encoded is Record as a server encoded it, without the end of the line, for readers that pass it on as it is; nil:
	// it is not encoded yet, or the Record was changed.
	Encoded []byte
}

// Joined reports what another node decided about the connection of a record: a packet to a service
// passes the node that translates it, and that of its endpoint.
type Joined struct {
	// Flow is the ID of an earlier record in the stream: of the node that translates the packet or, if all nodes pass it
	// unchanged, of the first.
	Flow string `json:"flow"`
	// Other is the other node's record, as it was decided.
	Other *flow.Record `json:"other"`
}

// Missed reports records that the reader does not get; they would have come at about this point of the stream. All
// formats have the same number; docs/reference/flow-api.md says what it counts.
type Missed struct {
	Node   string     `json:"node,omitempty"`
	Missed uint64     `json:"missed"`         // number of records since the last report for the same reason
	Why    string     `json:"why"`            // see the Missed constants
	From   *time.Time `json:"from,omitempty"` // of the time of these records, in a history
	To     *time.Time `json:"to,omitempty"`
}

// Why records are missing.
const (
	// MissedSlow: the reader was too slow.
	MissedSlow = "slow-reader"
	// MissedSampled: rate limit of the API.
	MissedSampled = "sampled"
	// MissedLost: queue overflow on the node; no reader gets them.
	MissedLost = "lost"
	// MissedUnreachable: the node is unreachable; the number is unknown (0).
	MissedUnreachable = "unreachable"
	// MissedNoDaemon: the node has no daemon, so its flows are not recorded; the number is unknown (0).
	MissedNoDaemon = "no-daemon"
	// MissedLeftOut: flows for no service, left out by [FlowQuery.ServicesOnly]. In a list each counts as a flow. With
	// Follow, flows count when they are decided; with a filter on states or events, each record counts.
	MissedLeftOut = "left-out"
	// MissedNotRecorded: in a history, nothing was recorded; the number is unknown (0).
	MissedNotRecorded = "not-recorded"
	// MissedNotWritten: the records could not be written to the history.
	MissedNotWritten = "not-written"
)

// IsLoss reports whether the reader lacks records that it asked for.
func (m *Missed) IsLoss() bool { return m.Why != MissedLeftOut }

// Question is a packet, and the node to simulate it on.
type Question struct {
	flow.Question
	Node string `json:"node,omitempty"`
	// Seed makes the random selection reproducible; nil: random.
	Seed *uint64 `json:"seed,omitempty"`
	// Reply adds the path of the reply.
	Reply bool `json:"reply,omitempty"`
}

// Error is an error in a request.
type Error struct {
	// Status is the HTTP status: 400, 401, 403, 404, 405, 409, 413, 415, 429 or 503; see openapi.yaml.
	Status int `json:"status"`
	// Field is the invalid parameter or field; empty: none.
	Field string `json:"field,omitempty"`
	// Message describes what is wrong and what to do.
	Message string `json:"error"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// ErrSilent is in the error of requests to a node that does not answer: its daemon is stopped or hangs, or packets are
// lost on the path. A daemon that has ended refuses connections, which is another error.
var ErrSilent = errors.New("the daemon hangs or is stopped, or its packets are lost on the way")

// Limits of the flow API for both client and server.
const (
	// KeepAliveSeconds is the interval of keepalives in a stream.
	KeepAliveSeconds = 15
	// PollSeconds is the maximum time that a request for a hold's next generation waits.
	PollSeconds = 30
	// NodeRecords is a node's limit of records per second for all readers together.
	NodeRecords = 5000
)

// EventMissed is the event of a [MissedLine].
const EventMissed = "missed"

// MissedLine is [Missed] as a line between records.
type MissedLine struct {
	Version int    `json:"version"` // flow.Version
	Event   string `json:"event"`   // EventMissed
	Missed
}

// EventJoined is the event of a [JoinedLine].
const EventJoined = "joined"

// JoinedLine is [Joined] as a line between records.
type JoinedLine struct {
	Version int    `json:"version"` // flow.Version
	Event   string `json:"event"`   // EventJoined
	Joined
}

// TableList is the flow API's response with tables.
type TableList struct {
	Tables []Table `json:"tables"`
}

// StatsList is the flow API's response with counters.
type StatsList struct {
	Nodes []Stats `json:"nodes"`
}

// StatusList is the flow API's response with the nodes' daemons.
type StatusList struct {
	Nodes []Status `json:"nodes"`
}

// HoldList is the flow API's response with holds.
type HoldList struct {
	Holds []Hold `json:"holds"`
}

// SocketPath returns the path of a Unix socket's address: unix:/PATH, unix:///PATH or /PATH. false:
// it is another address. The path may be relative, which is an error of the user.
func SocketPath(address string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(address, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return address, strings.HasPrefix(address, "/")
}

// IsLoopback reports whether a host, of an address to connect to or to listen at, is this machine
// only.
func IsLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
