package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Rerun decides the flows of a [History] anew, by the algorithms of a table, with the state that its own decisions
// make. Connections are open for as long as they were recorded; algorithms hear when they end, but not
// how their endpoints answered. It is for one run, of one goroutine.
type Rerun struct {
	table    *decision.Table
	balancer *balance.Balancer
	affinity *affinity.Table
	rand     decision.Rand
	now      time.Time
	open     []*running // that have not ended, in the order of their ends
}

// running is a flow whose connection is open.
type running struct {
	*Recorded
	conn balance.Connection
	has  bool // an algorithm picked its endpoint
}

// Watcher follows a [Rerun].
type Watcher interface {
	// Decided is called for each flow in the order of time, before it counts as open. An error ends the run.
	Decided(f *Recorded, d *decision.Decision) error
	// Ended is called for each flow once: at the end of its connection or of the log.
	Ended(f *Recorded, at time.Time)
}

// NewRerun makes a Rerun. algorithms nil: the built-in ones. A table whose node detects pods by interface
// is an error: see [NewLog].
func NewRerun(t *decision.Table, algorithms *balance.Registry, r decision.Rand) (*Rerun, error) {
	if err := interfaceNotNeeded(t); err != nil {
		return nil, err
	}
	if algorithms == nil {
		algorithms = balance.NewRegistry()
	}
	again := &Rerun{table: t, rand: r}
	again.balancer = balance.New(algorithms, func() int64 { return again.now.UnixNano() })
	again.balancer.Follow(t)
	again.affinity = affinity.NewAt(func() time.Time { return again.now })
	return again, nil
}

// Run decides all flows. Errors are those of the watcher.
func (a *Rerun) Run(h *History, w Watcher) error {
	for _, f := range h.Flows {
		a.advance(f.Start, w)
		a.now = f.Start
		d := decision.Decide(a.table, f.Packet, a.rand, a.affinity, a.balancer)
		if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
			a.affinity.Bind(d.ServicePort, d.Endpoint(), f.Packet.Source.Addr())
		}
		if err := w.Decided(f, &d); err != nil {
			return err
		}
		r := &running{Recorded: f}
		r.conn, r.has = a.balancer.Connection(&d)
		at, _ := slices.BinarySearchFunc(a.open, r, func(a, b *running) int { return cmp.Or(a.End.Compare(b.End), -1) })
		a.open = slices.Insert(a.open, at, r)
	}
	a.advance(h.End, w)
	for _, f := range a.open { // and those that had not ended
		w.Ended(f.Recorded, h.End)
	}
	return nil
}

// advance ends the connections that end until a time.
func (a *Rerun) advance(to time.Time, w Watcher) {
	for len(a.open) > 0 && !a.open[0].End.After(to) {
		f := a.open[0]
		a.open = a.open[1:]
		a.now = f.End
		if f.has {
			f.conn.Observe(balance.Event{Kind: balance.Inactive, At: a.now.UnixNano()})
			f.conn.Observe(balance.Event{Kind: balance.Ended, At: a.now.UnixNano()})
		}
		w.Ended(f.Recorded, f.End)
	}
}
