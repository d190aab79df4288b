package engine

import (
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Gate selects flows to hold: their first packets stay in the kernel's queue without a verdict,
// while all other flows continue. All workers call it concurrently, for each batch or each flow:
// it must not block.
type Gate interface {
	// Armed reports whether Take might take a flow. It is called once for each batch.
	Armed() bool
	// Take is called for each flow that is decided while the gate is armed. A flow that it takes
	// waits until it is released, which Take itself must not do.
	Take(HeldFlow) bool
	// Repeated is called for another packet of a held flow, which was dropped.
	Repeated(HeldFlow)
	// Close releases all flows as they were decided, and takes no more. The engine calls it when
	// it stops.
	Close()
}

// HeldFlow is a decided flow whose first packet waits for its verdict. It is safe for concurrent
// use.
type HeldFlow interface {
	// Flow is the flow as it was decided, at its Time; it must not be changed. The connection
	// entry and the effect of the host's own rules are unknown until its release.
	Flow() *flow.Flow
	// Release carries out a decision: the flow's own, or another one by the same table. When the
	// packet has its verdict, it returns the flow as the sink gets it; hold describes how the flow
	// was held. Of several calls only the first does so: the others return nil.
	Release(d decision.Decision, hold flow.Hold) *flow.Flow
}
