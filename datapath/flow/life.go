package flow

import "time"

// Life is what became of a flow after its decision, as the kernel's connection tracking
// saw it. At a record of a stream it is what was known when the event happened.
type Life struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // when it got into the state
	// Answered: packets came back.
	Answered bool `json:"answered"`
	// Over: the kernel has no entry of it, so that the record is final. See [Life.Open] for
	// whether it may go on.
	Over bool `json:"over"`
	// KernelState is conntrack's word for a TCP connection's or SCTP association's state,
	// SYN_SENT for example.
	KernelState string `json:"kernelState,omitempty"`
	// SeenSource is the ip:port that the endpoint sees the flow come from; known with the
	// first event of the kernel.
	SeenSource string `json:"seenSource,omitempty"`
	// Sent and Received count from the client's side, IP headers included, each segmented
	// packet as the kernel handles it. They are of the time CountedAt; nil: not known yet,
	// or never (net.netfilter.nf_conntrack_acct is off).
	Sent      *Count     `json:"sent,omitempty"`
	Received  *Count     `json:"received,omitempty"`
	CountedAt *time.Time `json:"countedAt,omitempty"`
	// Duration is from the entry's making to its end, in seconds; until then to Since.
	Duration float64 `json:"duration"`
	// Repeated counts first packets that came again.
	Repeated uint32 `json:"repeated,omitempty"`
	// Incomplete: events of the kernel were lost or not asked for, so that states may be
	// missing from History.
	Incomplete bool `json:"incomplete,omitempty"`
	// History are the events so far, in order, at most eight; only with a single flow.
	History []Moment `json:"history,omitempty"`
}

// Count is how much went one way.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Moment is when something happened.
type Moment struct {
	Event Event     `json:"event"`
	Time  time.Time `json:"time"`
}

// Stages are how long the packet spent where, in seconds. Those of user space are of the
// batch it was decided in: it waited for the others.
type Stages struct {
	// Waited is from the packet's arrival at the node until the daemon had it: mostly in
	// the queue. nil: not known, as of packets made on the node.
	Waited   *float64 `json:"waited,omitempty"`
	Decided  float64  `json:"decided"`  // until all were decided
	Written  float64  `json:"written"`  // until their entries were in the connection table
	Accepted float64  `json:"accepted"` // until their verdicts were with the kernel
}

// Hold is what somebody did to a flow that was held at the queue.
type Hold struct {
	ID      string  `json:"id"`
	Seconds float64 `json:"seconds"` // how long it was held
	// Action is how it ended: see the constants.
	Action string `json:"action"`
}

// How holds end.
const (
	HoldReleased  = "released"
	HoldChosen    = "chosen" // with another endpoint than was drawn
	HoldDropped   = "dropped"
	HoldCancelled = "cancelled"
	HoldExpired   = "expired" // nobody let it go in time
)
