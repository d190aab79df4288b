package flow

import "time"

// Life is the life cycle of a flow after its decision, as seen by the kernel's connection tracking. In a stream it is
// what was known at the event.
type Life struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // when it entered the state
	// Answered: reply packets were seen.
	Answered bool `json:"answered"`
	// AnsweredAfter is the time from the decision to the first packet of the reply, in seconds, above 0; absent: there
	// was none, or its time is unknown.
	AnsweredAfter float64 `json:"answeredAfter,omitempty"`
	// Over: its conntrack entry is gone, so the record is final. See also [Life.Open].
	Over bool `json:"over"`
	// KernelState is conntrack's name for the state of a TCP connection or SCTP association, for
	// example SYN_SENT.
	KernelState string `json:"kernelState,omitempty"`
	// SeenSource is the source ip:port as seen by the endpoint; known from the first conntrack
	// event on.
	SeenSource string `json:"seenSource,omitempty"`
	// Sent and Received are the counters from the client's point of view, IP headers included; a packet of segmentation
	// offload counts once. They are valid at CountedAt; nil: unknown yet, or accounting is off
	// (net.netfilter.nf_conntrack_acct).
	Sent      *Count     `json:"sent,omitempty"`
	Received  *Count     `json:"received,omitempty"`
	CountedAt *time.Time `json:"countedAt,omitempty"`
	// Duration is the time from the creation of the conntrack entry to its end, in seconds;
	// before its end, to Since.
	Duration float64 `json:"duration"`
	// Repeated counts retransmissions of the first packet.
	Repeated uint32 `json:"repeated,omitempty"`
	// Incomplete: conntrack events were lost or not requested, so states may be missing from
	// History.
	Incomplete bool `json:"incomplete,omitempty"`
	// History lists the events so far, in order, at most eight; only in responses for a single flow.
	History []Moment `json:"history,omitempty"`
}

// Count is the traffic in one direction.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Moment is an event and its time.
type Moment struct {
	Event Event     `json:"event"`
	Time  time.Time `json:"time"`
}

// Stages are the latencies of the packet by stage, in seconds. The stages in user space are those
// of its batch: a packet waits for the whole batch.
type Stages struct {
	// Waited is the time from the packet's arrival at the node until the daemon read it, mostly spent in the queue. nil:
	// unknown, as for packets sent by the node itself.
	Waited   *float64 `json:"waited,omitempty"`
	Decided  float64  `json:"decided"`  // until all packets of the batch were decided
	Written  float64  `json:"written"`  // until their entries were in the conntrack table
	Accepted float64  `json:"accepted"` // until the kernel had their verdicts
}

// Hold is the user's action on a flow that was held at the queue.
type Hold struct {
	ID      string  `json:"id"`
	Seconds float64 `json:"seconds"` // how long it was held
	// Action is how the hold ended: see the constants.
	Action string `json:"action"`
}

// The actions that end a hold.
const (
	HoldReleased  = "released"
	HoldChosen    = "chosen" // released with another endpoint than the selected one
	HoldDropped   = "dropped"
	HoldCancelled = "cancelled"
	HoldExpired   = "expired" // released by timeout
)
