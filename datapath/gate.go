package datapath

import (
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Gate picks flows that are to be held: their first packets stay in the kernel's queue
// without a verdict, while everything else goes on. All workers call it at once, for each
// batch or each flow: it must not block.
type Gate interface {
	// Armed says whether Take might take a flow. It is asked once for each batch.
	Armed() bool
	// Take is asked about each flow that is decided while the gate is armed. One that it
	// takes waits until it is let go; not by Take itself.
	Take(HeldFlow) bool
	// Repeated tells of another packet of a flow that is held. It was dropped.
	Repeated(HeldFlow)
	// Close lets all flows go as they were decided, and takes no more. The engine calls it
	// when it stops.
	Close()
}

// HeldFlow is a flow that was decided, and whose first packet waits for its verdict. It is
// safe for concurrent use.
type HeldFlow interface {
	// Flow is the flow as it was decided, at its Time; it is not to be changed. What is found
	// out when it goes is not known yet: the connection entry, and what the host's own rules
	// would do.
	Flow() *flow.Flow
	// LetGo carries a decision out: the flow's own, or another one by the same table. It
	// returns when the packet has its verdict, and gives the flow as the sink is told of it;
	// told is what is said of how it was held. Of several calls only one does so: the others
	// give nil.
	LetGo(d decision.Decision, told flow.Hold) *flow.Flow
}
