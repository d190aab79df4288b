package hold

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// faulty are names that cannot be read.
type faulty struct{ after *atomic.Int64 } // so many calls go well

func (f faulty) Owner(netip.Addr) flow.Owner {
	if f.after.Add(-1) < 0 {
		panic("a fault in names")
	}
	return flow.Owner{}
}

// stuckFlow is a flow that cannot be released.
type stuckFlow struct{ *heldFlow }

func (stuckFlow) Release(decision.Decision, flow.Hold) *flow.Flow { panic("a fault in the datapath") }

// recovered calls a function as net/http calls handlers, and reports whether it panicked.
func recovered(call func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	call()
	return false
}

// TestPanics: a fault in what is done to a flow ends the request, and neither the program nor other
// holds.
func TestPanics(t *testing.T) {
	for name, c := range map[string]struct {
		well  int64 // calls of names that go well
		stuck bool
		act   observe.Act
		state observe.HoldState // of the hold then
	}{
		"a step":        {0, false, observe.Act{Action: observe.ActStep}, observe.HoldHolding},
		"choosing":      {2, false, observe.Act{Action: observe.ActChoose, Endpoint: "10.244.0.4:8080"}, observe.HoldHolding},
		"letting go":    {2, true, observe.Act{Action: observe.ActRelease}, observe.HoldDone},
		"what has gone": {2, false, observe.Act{Action: observe.ActRelease}, observe.HoldDone},
		"dropping":      {2, true, observe.Act{Action: observe.ActDrop}, observe.HoldDone},
	} {
		t.Run(name, func(t *testing.T) {
			well := new(atomic.Int64)
			well.Store(c.well)
			h := New(Config{Node: "node-a", Names: faulty{well}.Owner})
			id := startHold(t, h, "web", 60).ID
			f := arrive(40000, toWeb)
			if c.stuck {
				if !h.Take(stuckFlow{f}) {
					t.Fatal("not taken")
				}
			} else if !h.Take(f) {
				t.Fatal("not taken")
			}
			if !recovered(func() { _, _ = h.Act(t.Context(), id, c.act) }) {
				t.Error("no panic: the test shows nothing")
			}
			h.mu.Lock()
			if got := h.holds[0].state; got != c.state {
				t.Errorf("the hold is %s, want %s", got, c.state)
			}
			h.mu.Unlock()
			// Others go on.
			well.Store(1 << 30)
			id, _ = holding(t, h, "many", toMany)
			if got := act(t, h, id, observe.ActRelease, ""); got.State != observe.HoldDone {
				t.Errorf("another hold is %s", got.State)
			}
			h.Close()
		})
	}
}

// TestExpiryPanics: the goroutine of a hold's end has no other recovery than ours.
func TestExpiryPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := New(Config{Node: "node-a", Log: slog.New(slog.NewTextHandler(&log, nil))})
		id := startHold(t, h, "web", 60).ID
		if !h.Take(stuckFlow{arrive(40000, toWeb)}) {
			t.Fatal("not taken")
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if got := get(t, h, id); got.State != observe.HoldDone || got.Outcome != flow.HoldExpired {
			t.Errorf("the hold is %s (%s)", got.State, got.Outcome)
		}
		if !strings.Contains(log.String(), "a fault in the datapath") || !strings.Contains(log.String(), "hold="+id) {
			t.Errorf("logged: %s", log.String())
		}
	})
}
