package replay

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Summary counts the packets and flows of a capture.
type Summary struct {
	Packets     int
	First, Last time.Time // of the earliest and the latest packet; zero if there is none

	Flows    int            // decided
	Verdicts map[string]int // flows by their records' verdict
	Services map[string]int // flows by service

	// Packets that begin no flow.
	NotIP          int
	OtherProtocols int // without ports
	Fragments      int
	Cut            int // before their ports
	Midway         int // of connections whose first packet is not in the capture

	Duplicates int // the same packet seen again within milliseconds
	SentAgain  int // retransmitted SYN and INIT packets
	// Copies are flows whose first packet is one of another flow, seen again after a translation
	// by another proxy: they are not decided.
	Copies int
	// LeftOut are packets left out of the translated capture.
	LeftOut int
}

func (s *Summary) note(b *Block) {
	s.Packets++
	if s.First.IsZero() || b.Time.Before(s.First) {
		s.First = b.Time
	}
	if b.Time.After(s.Last) {
		s.Last = b.Time
	}
}

func (s *Summary) decided(r *flow.Record) {
	s.Flows++
	s.Verdicts[r.Verdict]++
	if r.Service != "" {
		s.Services[r.Service]++
	}
}

// verdictTexts are the verdicts in the order of the output.
var verdictTexts = [][2]string{
	{decision.DNAT.String(), "translated"}, {decision.Reject.String(), "refused"}, {decision.Drop.String(), "dropped"},
	{decision.Accept.String(), "passed unchanged"}, {verdictUnknown, "unknown"},
}

// WriteTo prints the summary as text. It leaves out counts of 0.
func (s *Summary) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s in %s, %s decided", quantity.Count(s.Packets, "packet"), s.Last.Sub(s.First), quantity.Count(s.Flows, "flow"))
	separator := ": "
	for _, v := range verdictTexts {
		if n := s.Verdicts[v[0]]; n > 0 {
			fmt.Fprintf(&b, "%s%d %s", separator, n, v[1])
			separator = ", "
		}
	}
	b.WriteByte('\n')
	for _, line := range []struct {
		n    int
		text string
	}{
		{s.NotIP, "not IP"},
		{s.OtherProtocols, "of other protocols than TCP, UDP and SCTP"},
		{s.Fragments, "fragments"},
		{s.Cut, "truncated before the ports"},
		{s.Midway, "of connections that began before the capture"},
		{s.SentAgain, "retransmitted: the first decision counts"},
		{s.Duplicates, "captured more than once: the first one counts"},
		{s.Copies, "new only because a proxy translated them during the capture: not decided"},
		{s.LeftOut, "left out of the translated capture"},
	} {
		if line.n > 0 {
			fmt.Fprintf(&b, "  %6d  %s\n", line.n, line.text)
		}
	}
	// The busiest first.
	services := slices.SortedFunc(maps.Keys(s.Services), func(a, b string) int {
		return cmp.Or(s.Services[b]-s.Services[a], strings.Compare(a, b))
	})
	for _, name := range services {
		fmt.Fprintf(&b, "  %6d  to %s\n", s.Services[name], name)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
