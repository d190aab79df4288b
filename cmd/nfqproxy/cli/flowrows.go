package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// maxWaiting is how many rows wait for what other nodes decided, and joinsKept of how many
// connections that is kept for later events.
const (
	maxWaiting = 500
	joinsKept  = 4096
)

// rows prints a list or a stream of flows. A row waits until the next one of a list, or until a
// stream is quiet: by then other nodes may have reported the same connection. What comes later is
// in the rows of the connection's later events.
type rows struct {
	*flowsFlags
	printer  text.Printer
	location *time.Location // nil: the local one
	stderr   io.Writer

	waiting []*flow.Record
	others  map[string][]*flow.Record // by the ID of the flow that they belong to
	order   []string                  // of the keys of others
	shown   map[string]bool           // IDs of others that are in the row of their connection: they get no rows
	printed int
	leftOut uint64
	joined  uint64 // of the flows that are left out: shown in the row of another one
	// most is how many rows a list has that nobody limited; 0: any number. Its rows wait until the end: one more shows that
	// there are others.
	most int
}

// take takes an item of the stream.
func (l *rows) take(item observe.Item) error {
	switch {
	case item.Joined != nil:
		l.join(item.Joined)
		return nil
	case item.Missed != nil && !item.Missed.IsLoss():
		if l.leftOut == 0 && l.query.Follow {
			fmt.Fprintln(l.stderr, "Flows for no service are omitted (--all shows them).")
		}
		l.leftOut += item.Missed.Missed
		return nil
	case item.Missed != nil:
		return errors.Join(l.print(), printMissed(item.Missed, l.printer, l.location, l.stderr))
	}
	if l.most == 0 && (!l.query.Follow || len(l.waiting) >= maxWaiting) {
		if err := l.print(); err != nil {
			return err
		}
	}
	if r := item.Record; !l.shown[r.ID] {
		l.waiting = append(l.waiting, l.withOthers(r))
	}
	return nil
}

// join adds another node's record to the rows of its connection. Its own rows go only if it is in
// one of those.
func (l *rows) join(j *observe.Joined) {
	if l.others == nil {
		l.others, l.shown = make(map[string][]*flow.Record), make(map[string]bool)
	}
	if l.others[j.Flow] == nil {
		if len(l.order) >= joinsKept {
			for _, o := range l.others[l.order[0]] {
				delete(l.shown, o.ID)
			}
			delete(l.others, l.order[0])
			l.order = l.order[1:]
		}
		l.order = append(l.order, j.Flow)
	}
	others := slices.DeleteFunc(slices.Clone(l.others[j.Flow]), func(o *flow.Record) bool { return o.ID == j.Other.ID })
	isNew := len(others) == len(l.others[j.Flow]) // else it is a later event of the other record
	others = append(others, j.Other)
	l.others[j.Flow] = others
	if isNew && j.Other.Reason == decision.NotAService.String() && l.query.ServicesOnly {
		l.joined++
	}
	for i, r := range l.waiting {
		if r.ID == j.Flow {
			l.waiting[i] = l.withOthers(r)
		}
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(r *flow.Record) bool { return l.shown[r.ID] })
}

// withOthers returns the record as a row shows it, with those of other nodes. It does not change
// the record itself.
func (l *rows) withOthers(r *flow.Record) *flow.Record {
	if l.others[r.ID] == nil {
		return r
	}
	c := *r
	c.Others = l.others[r.ID]
	for _, o := range c.Others {
		l.shown[o.ID] = true
	}
	return &c
}

// print passes the waiting rows to the printer.
func (l *rows) print() error {
	for _, r := range l.waiting {
		if err := l.printer.Print(r); err != nil {
			return err
		}
	}
	l.printed += len(l.waiting)
	l.waiting = l.waiting[:0]
	return nil
}

// flush writes all rows.
func (l *rows) flush() error { return errors.Join(l.print(), l.printer.Flush()) }

// finish ends a list that the observer ended with err. The number of omitted flows comes last,
// below the records.
func (l *rows) finish(ctx context.Context, observer observe.Observer, err error) error {
	older := l.most > 0 && len(l.waiting) > l.most
	if older {
		l.waiting = l.waiting[len(l.waiting)-l.most:]
	}
	err = errors.Join(err, l.print())
	if err == nil && l.printed == 0 && !l.query.Follow {
		err = checkNames(ctx, observer, l.query)
	}
	if err != nil {
		return errors.Join(err, l.printer.Flush())
	}
	if l.printed == 0 && !l.query.Follow && l.table() {
		fmt.Fprintln(l.stderr, "No flows found.")
	}
	err = l.printer.Close()
	if err == nil && older {
		fmt.Fprintf(l.stderr, "Only the newest %d flows are shown (--limit 0 shows all).\n", l.most)
	}
	if omitted := l.leftOut - min(l.joined, l.leftOut); err == nil && omitted > 0 {
		fmt.Fprintln(l.stderr, leftOutInWords(omitted))
	}
	if err == nil && !l.query.Follow && l.table() {
		for _, text := range causes(ctx, observer) {
			fmt.Fprintln(l.stderr, "nfqproxy: note: "+text)
		}
	}
	return err
}

// causes are the problems that doctor finds on nodes. They have no rows of their own, and no flow may show them.
func causes(ctx context.Context, observer observe.Observer) (texts []string) {
	list, err := findings.OfNodes(ctx, observer)
	if err != nil {
		return nil // the flows are the answer
	}
	for _, f := range list {
		if f.Wrong() {
			texts = append(texts, fmt.Sprintf("%s (%s)", f.Text, f.Code))
		}
	}
	return texts
}
