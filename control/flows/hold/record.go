package hold

import (
	"sync"

	"github.com/nfqproxy/nfqproxy/control/flows/journal"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/kubechains"
)

// recordOf makes the record of a flow that is held, with all steps, when it is first asked
// for: a long walk is nothing for a worker to wait for.
func (h *Holder) recordOf(f flow.Flow) func() *flow.Record {
	return sync.OnceValue(func() *flow.Record {
		r := flow.New(f.Table, &f.Packet, &f.Decision)
		r.Time, r.Queue, r.TableAge = &f.Time, &f.Queue, f.TableAge.Seconds()
		journal.AddNames(r, &f, h.config.Names)
		r.Steps = kubechains.Walk(f.Table, &f.Packet, &f.Decision)
		return r
	})
}

// recordOfGone makes the record of a flow that was let go, with the steps that it had.
func (h *Holder) recordOfGone(f *flow.Flow, had []flow.Step) *flow.Record {
	r := f.Record()
	journal.AddNames(r, f, h.config.Names)
	if journal.HasSteps(f) {
		r.Steps = had
	}
	return r
}
