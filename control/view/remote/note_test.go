package remote

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestNote: an answer that was overtaken by a later one does not count.
func TestNote(t *testing.T) {
	f, err := NewRelay([]Member{{Name: "node-a"}}, RelayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &part{Member: Member{Name: "node-a"}}
	h := &relayHold{parts: []*part{p}}
	for _, generation := range []uint64{5, 4, 5} {
		f.holds.note(h, p, &observe.Hold{Generation: generation, State: observe.HoldHolding, Step: int(generation), Record: new(flow.Record)})
		if h.hold.Step != 5 || h.hold.Generation != 1 {
			t.Errorf("after generation %d: %+v", generation, h.hold)
		}
	}
}
