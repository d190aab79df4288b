package hubble

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// Lines converts a stream of items to Hubble's objects. The zero value is ready for use. It is not
// safe for concurrent use.
type Lines struct {
	last *Time // of the last item: the approximate time of missing ones
}

// Of returns the objects of the next item.
func (l *Lines) Of(i observe.Item) ([]Response, error) {
	if i.Missed != nil && i.Missed.Why == observe.MissedLeftOut {
		return nil, nil // nothing is lost
	}
	if i.Missed != nil {
		missing := Missing(i.Missed)
		missing.Time = l.last
		return []Response{missing}, nil
	}
	list, err := Flows(i.Record)
	if err == nil {
		l.last = list[len(list)-1].Time
	}
	return list, err
}

// Encoder writes a stream of items as Hubble's JSON lines. It is not safe for concurrent
// use.
type Encoder struct {
	json  *json.Encoder
	lines Lines
}

// NewEncoder returns an encoder that writes to w.
func NewEncoder(w io.Writer) *Encoder {
	e := &Encoder{json: json.NewEncoder(w)}
	e.json.SetEscapeHTML(false)
	return e
}

// Encode writes the lines of an item. It has the signature of the callback of
// [observe.Observer.Flows].
func (e *Encoder) Encode(i observe.Item) error {
	list, err := e.lines.Of(i)
	for k := 0; k < len(list) && err == nil; k++ {
		err = e.json.Encode(&list[k])
	}
	return err
}

// uuid identifies an object of Hubble; it is deterministic. It is empty if the record has no ID.
func (c *conversation) uuid(f *Flow) string {
	r := c.record
	if r.ID == "" {
		return ""
	}
	var repeated uint32
	if r.Life != nil {
		repeated = r.Life.Repeated
	}
	h := sha256.Sum256(fmt.Append(nil, r.ID, "\n", r.Event, "\n", f.EventType, "\n", f.Summary, "\n", repeated))
	u := h[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // RFC 9562, version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
