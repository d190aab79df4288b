package text

import (
	"io"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubble"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// hubbleLines prints the flows as Cilium's Hubble does; see package hubble.
type hubbleLines struct {
	unbuffered
	encoder *hubble.Encoder
}

func newHubble(w io.Writer, _ string, _ Options) (Printer, error) {
	return hubbleLines{encoder: hubble.NewEncoder(w)}, nil
}

func (p hubbleLines) Print(r *flow.Record) error { return p.encoder.Encode(observe.Item{Record: r}) }

// PrintMissed implements [MissedPrinter].
func (p hubbleLines) PrintMissed(m *observe.Missed) error {
	return p.encoder.Encode(observe.Item{Missed: m})
}
