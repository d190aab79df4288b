package observe

import (
	"context"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Holder holds new flows at the queue, so that somebody can lead them through the chains
// step by step. Every hold ends by itself after a time, and its flow then goes on as it
// was decided. It is safe for concurrent use. Errors that are the asker's fault are an
// [*Error].
type Holder interface {
	// Hold waits for the next new flow that matches, on each node of the fleet that q.Flow
	// names (all, if it names none); the first one counts.
	Hold(ctx context.Context, q HoldQuery) (*Hold, error)
	Holds(ctx context.Context) ([]Hold, error)
	// Get gives a hold as soon as its generation is greater than the one given, or when the
	// context ends; at once with 0.
	Get(ctx context.Context, id string, after uint64) (*Hold, error)
	// Act does something to it; see the Action constants.
	Act(ctx context.Context, id string, a Act) (*Hold, error)
	// Cancel ends it: a flow that is held goes on as decided.
	Cancel(ctx context.Context, id string) error
}

// HoldQuery says which flow is to be held.
type HoldQuery struct {
	// Flow says which; only Service, Namespace, Pod, Node, Source, Destination, Port and
	// Protocol count. At least one of them has to be given.
	Flow HoldFilter `json:"flow"`
	// Seconds is how long to wait for a flow, and how long to hold it then, each; 0: 60. At
	// most 600.
	Seconds int `json:"seconds"`
}

// HoldFilter is the part of a [FlowQuery] that holds can have.
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

// HoldState is where a hold is.
type HoldState string

// The states of a hold.
const (
	HoldWaiting HoldState = "waiting" // for a flow
	HoldHolding HoldState = "holding" // a flow
	HoldDone    HoldState = "done"    // its flow went on, or none came
)

// Hold is a hold as it is now.
type Hold struct {
	ID         string     `json:"id"`
	Generation uint64     `json:"generation"` // grows with every change
	Query      HoldQuery  `json:"query"`
	State      HoldState  `json:"state"`
	Expires    *time.Time `json:"expires,omitempty"` // of Waiting and Holding; absent when done
	// Record is the flow as it was decided, with all steps; its endpoint is the one that
	// was drawn or chosen. nil: none came yet.
	Record *flow.Record `json:"record,omitempty"`
	// Step is how many of Record.Steps it has taken. Those behind are about to happen.
	Step int `json:"step"`
	// Retransmissions counts further packets of the flow, which are dropped meanwhile.
	Retransmissions int `json:"retransmissions"`
	// Outcome is how it ended: released, chosen, dropped, expired or cancelled; empty: it has
	// not. What expired or was cancelled went where it was drawn, whatever had been chosen.
	Outcome string `json:"outcome,omitempty"`
}

// Act is something done to a held flow.
type Act struct {
	Action string `json:"action"`
	// Endpoint is what is chosen: one of the record's candidates.
	Endpoint string `json:"endpoint,omitempty"`
}

// The actions.
const (
	// ActStep goes one step on; from the last one the flow goes on its way.
	ActStep = "step"
	// ActBack goes one step back: nothing has happened yet.
	ActBack = "back"
	// ActChoose takes another endpoint; the steps from the draw on are other ones then.
	ActChoose = "choose"
	// ActRelease lets the flow go, as it is decided.
	ActRelease = "release"
	// ActDrop drops its packet. If the client sends it again, as TCP does, it is decided anew.
	ActDrop = "drop"
)
