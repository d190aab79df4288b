// Package observe says what can be seen of nodes' flows, and is the client of the flow API
// (see openapi.yaml in package flowapi): the questions, the answers, and [Observer], which a node's
// daemon, a remote API ([Client]) and several nodes together ([Fleet]) all are.
package observe

import (
	"context"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/explain"
)

// Observer answers questions about flows. It is safe for concurrent use. Errors that are
// the asker's fault are an [*Error].
type Observer interface {
	// Flows calls each for every item, in order, until there are no more or, following,
	// until the context ends (then the error is nil) or each fails (then it is that error).
	Flows(ctx context.Context, q FlowQuery, each func(Item) error) error
	// Flow gives one flow with its steps and its life's history.
	Flow(ctx context.Context, id string) (*flow.Record, error)
	// Services gives the services, and how their flows really spread.
	Services(ctx context.Context, q ServiceQuery) (*Services, error)
	// Tables describes the service table of each node.
	Tables(ctx context.Context) ([]Table, error)
	// Stats gives the counters of each node.
	Stats(ctx context.Context) ([]Stats, error)
	// Topology is the map of what is known of the cluster.
	Topology(ctx context.Context) (*Topology, error)
	// Explain tells what would happen to a packet at a node, which may be left empty where
	// there is only one.
	Explain(ctx context.Context, q Question) (*flow.Record, error)
	// Holder is what holds flows; nil: flows cannot be held here.
	Holder() Holder
}

// Item is one piece of a stream. Exactly one field is set.
type Item struct {
	Record *flow.Record
	Missed *Missed
}

// Missed says that records are missing at this place of a stream.
type Missed struct {
	Node   string `json:"node,omitempty"`
	Missed uint64 `json:"missed"` // how many
	Why    string `json:"why"`    // see the Missed constants
}

// Why records are missing.
const (
	// MissedSlow: the reader was too slow.
	MissedSlow = "slow-reader"
	// MissedSampled: there were more than the API gives out in a second.
	MissedSampled = "sampled"
	// MissedLost: the node had no room for them; nobody will ever see them.
	MissedLost = "lost"
	// MissedUnreachable: the node cannot be asked; how many are missing is not known (0).
	MissedUnreachable = "unreachable"
	// MissedLeftOut: they are for no service, and were not wanted ([FlowQuery.ServicesOnly]).
	// In a list each is a flow. Following, flows count when they are decided; with a filter of
	// states or events, each record counts.
	MissedLeftOut = "left-out"
)

// Question is a packet, and where it is to be explained.
type Question struct {
	explain.Question
	Node string `json:"node,omitempty"`
	// Seed makes the draw reproducible; nil: random.
	Seed *uint64 `json:"seed,omitempty"`
	// Reply adds the way of the answer back.
	Reply bool `json:"reply,omitempty"`
}

// Error is a fault of the asker.
type Error struct {
	// Status is the HTTP status: 400, 401, 403, 404, 405, 409, 413, 415, 429 or 503; see openapi.yaml.
	Status int `json:"status"`
	// Field is the parameter or the field that is to blame; empty: none is.
	Field string `json:"field,omitempty"`
	// Message says what is wrong and what to do.
	Message string `json:"error"`
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }
