package observe

import (
	"context"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Holder holds new flows at the queue, to step them through the chains. Every hold has a timeout,
// after which its flow is released as decided. It is safe for concurrent use. Errors of invalid
// requests are an [*Error].
type Holder interface {
	// Hold waits for the next new flow that matches, on the nodes of the relay that q.Flow names (none: all); the first
	// one counts.
	Hold(ctx context.Context, q HoldQuery) (*Hold, error)
	Holds(ctx context.Context) ([]Hold, error)
	// Get returns a hold as soon as its generation is greater than the given one, or when the
	// context ends; with 0 immediately.
	Get(ctx context.Context, id string, after uint64) (*Hold, error)
	// Act acts on the held flow; see the constants.
	Act(ctx context.Context, id string, a Act) (*Hold, error)
	// Cancel ends a hold: a held flow is released as decided.
	Cancel(ctx context.Context, id string) error
}

// HoldQuery selects the flow to hold.
type HoldQuery struct {
	// Flow is the filter: Service, Namespace, Pod, Node, Source, Destination, Port and Protocol.
	// At least one of them is required.
	Flow HoldFilter `json:"flow"`
	// Seconds is the timeout for the arrival of a flow, and again for its release; 0: 60. At
	// most 600.
	Seconds int `json:"seconds"`
}

// HoldFilter is the part of a [FlowQuery] that holds support.
type HoldFilter struct {
	Service     string `json:"service,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"`
	Node        string `json:"node,omitempty"`
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	Port        string `json:"port,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
}

// HoldState is the state of a hold.
type HoldState string

// The states of a hold.
const (
	HoldWaiting HoldState = "waiting" // for a flow
	HoldHolding HoldState = "holding" // a flow
	HoldDone    HoldState = "done"    // its flow was released or dropped, or none matched
)

// Hold is the current state of a hold.
type Hold struct {
	ID         string     `json:"id"`
	Generation uint64     `json:"generation"` // incremented with every change
	Query      HoldQuery  `json:"query"`
	State      HoldState  `json:"state"`
	Expires    *time.Time `json:"expires,omitempty"` // of Waiting and Holding; absent when done
	// Record is the flow as decided, with all steps; its endpoint is the selected or chosen one.
	// nil: no flow yet.
	Record *flow.Record `json:"record,omitempty"`
	// Step is the number of Record.Steps already taken; Record.Steps[Step] is the next one.
	Step int `json:"step"`
	// Retransmissions counts further packets of the flow, which are dropped while it is held.
	Retransmissions int `json:"retransmissions"`
	// Outcome is how it ended: released, chosen, dropped, expired or cancelled; empty: it has
	// not. An expired or cancelled flow goes to the selected endpoint, even if another was chosen.
	Outcome string `json:"outcome,omitempty"`
}

// Act is an action on a held flow.
type Act struct {
	Action string `json:"action"`
	// Endpoint is the chosen endpoint: one of the record's candidates.
	Endpoint string `json:"endpoint,omitempty"`
}

// The actions.
const (
	// ActStep takes one step; after the last one the flow is released.
	ActStep = "step"
	// ActBack goes one step back: the steps have no effect before the release.
	ActBack = "back"
	// ActChoose chooses another endpoint; the steps from the selection on then change.
	ActChoose = "choose"
	// ActRelease releases the flow as decided.
	ActRelease = "release"
	// ActDrop drops its packet. A retransmission by the client, as with TCP, is decided again.
	ActDrop = "drop"
)
