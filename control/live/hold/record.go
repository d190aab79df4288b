package hold

import (
	"sync"

	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// recordOf makes the record of a held flow, with all steps, at the first request: a worker must not
// wait for a long walk.
func (h *Holder) recordOf(f flow.Flow) func() *flow.Record {
	return sync.OnceValue(func() *flow.Record {
		r := flow.New(f.Table, &f.Packet, &f.Decision)
		r.Time, r.Queue, r.TableAge = &f.Time, &f.Queue, f.TableAge.Seconds()
		r.AddNames(h.config.Names)
		r.Steps = kubechains.Walk(f.Table, &f.Packet, &f.Decision)
		return r
	})
}

// recordOfReleased makes the record of a released flow, with the steps that it had.
func (h *Holder) recordOfReleased(f *flow.Flow, had []flow.Step) *flow.Record {
	r := f.Record()
	r.AddNames(h.config.Names)
	if journal.HasSteps(f) {
		r.Steps = had
	}
	return r
}
