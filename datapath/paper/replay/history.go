package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Recorded is a flow of a log. It is not changed once it is read.
type Recorded struct {
	Number int // its position in [History.Flows]
	Line   int // of its record, from 1
	Record *flow.Record
	Packet *decision.Packet
	// Start is the time of its decision, End that of its connection's end. A flow without a life ends at once; one
	// that had not ended, just after the log.
	Start, End time.Time
	Ended      bool // its end is recorded
}

// History are the flows of one node in a flow log.
type History struct {
	Flows      []*Recorded // in the order of their starts; at least one
	Begin, End time.Time   // the first start, and the last start or recorded end
	Others     int         // records of other nodes
}

// ReadHistory reads the flows of a node from a flow log. Of several records of one flow, as streams have them, the
// last one counts. Records without a time, and a log without a record of the node, are errors; they
// name the line.
func ReadHistory(in io.Reader, node string) (*History, error) {
	h := &History{}
	nodes := make(map[string]bool)
	flows := make(map[string]*Recorded) // by ID
	err := eachLine(in, func(n int, line []byte) error {
		r, p, err := parse(line)
		if err == nil && r.Time == nil {
			err = errors.New("the record has no time")
		}
		if err != nil {
			return err
		}
		if nodes[r.Node] = true; r.Node != node {
			h.Others++
			return nil
		}
		f := &Recorded{Line: n, Record: r, Packet: p, Start: *r.Time, End: *r.Time}
		f.end(r.Life)
		if before := flows[r.ID]; before != nil && r.ID != "" {
			*before = *f
			return nil
		}
		flows[r.ID] = f
		h.Flows = append(h.Flows, f)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(h.Flows) == 0 && len(nodes) == 0:
		return nil, errors.New("there is no record in it")
	case len(h.Flows) == 0:
		return nil, noneOf(node, nodes)
	}
	h.order()
	return h, nil
}

// end takes the end over, if there is one.
func (f *Recorded) end(l *flow.Life) {
	switch {
	case l == nil:
	case l.State.Ended():
		if !l.Since.Before(f.Start) {
			f.End, f.Ended = l.Since, true
		}
	case l.Over && l.Duration >= 0 && l.Duration <= longestLife: // without an answer, until its entry was gone
		f.End, f.Ended = f.Start.Add(time.Duration(l.Duration*float64(time.Second))), true
	}
}

// longestLife bounds the duration of a connection, in seconds: a hundred years.
const longestLife = 3e9

// order sorts the flows, and ends those that had not ended.
func (h *History) order() {
	slices.SortStableFunc(h.Flows, func(a, b *Recorded) int { return a.Start.Compare(b.Start) })
	h.Begin, h.End = h.Flows[0].Start, h.Flows[len(h.Flows)-1].Start
	for i, f := range h.Flows {
		f.Number = i
		if f.Ended && f.End.After(h.End) {
			h.End = f.End
		}
	}
	for _, f := range h.Flows {
		if !f.Ended && f.Record.Life != nil {
			f.End = h.End.Add(1)
		}
	}
}

// eachLine calls a function for each line that is not blank, with its number from 1. Errors name the line.
func eachLine(in io.Reader, call func(n int, line []byte) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestRecord)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := call(n, lines.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// parse reads a record and its packet from a line.
func parse(line []byte) (*flow.Record, *decision.Packet, error) {
	r := new(flow.Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, nil, fmt.Errorf("not a record of a flow log: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if r.Version != flow.Version {
		return nil, nil, fmt.Errorf("a record of version %d: only version %d of the flow log is known", r.Version, flow.Version)
	}
	p, err := packetOf(r)
	return r, p, err
}
