package hubble

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Encoder writes a stream of items as Hubble's JSON lines. It is not safe for concurrent
// use.
type Encoder struct {
	json *json.Encoder
	last *Time // of what was written last: about then is when something is missing
}

// NewEncoder makes an encoder that writes to w.
func NewEncoder(w io.Writer) *Encoder {
	e := &Encoder{json: json.NewEncoder(w)}
	e.json.SetEscapeHTML(false)
	return e
}

// Encode writes the lines of an item. It has the signature that [observe.Observer.Flows]
// wants.
func (e *Encoder) Encode(i observe.Item) error {
	responses := []Response{}
	if i.Missed != nil {
		l := Lost(i.Missed)
		l.Time = e.last
		responses = append(responses, l)
	}
	if i.Record != nil {
		flows, err := Flows(i.Record)
		if err != nil {
			return err
		}
		responses = append(responses, flows...)
	}
	for _, r := range responses {
		if err := e.json.Encode(r); err != nil {
			return err
		}
		if r.Time != nil {
			e.last = r.Time
		}
	}
	return nil
}

// uuid names one object of Hubble's: the same one whenever it is asked for. It is empty
// where the record has no ID.
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
