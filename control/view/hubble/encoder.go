package hubble

import (
	"encoding/json"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
)

// Lines converts a stream of items to Hubble's objects. The zero value is ready for use. It is not
// safe for concurrent use.
type Lines struct {
	last *timestamppb.Timestamp // of the last item: the approximate time of missing ones
}

// Of returns the objects of the next item.
func (l *Lines) Of(i observe.Item) ([]*hubblepb.GetFlowsResponse, error) {
	if i.Missed != nil && !i.Missed.IsLoss() {
		return nil, nil
	}
	if i.Missed != nil {
		missing := Missing(i.Missed)
		missing.Time = l.last
		return []*hubblepb.GetFlowsResponse{missing}, nil
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
	if err != nil {
		return err
	}
	for _, response := range list {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(response)
		if err != nil {
			return err
		}
		// Protojson's white space varies; the encoder removes it.
		if err := e.json.Encode(json.RawMessage(text)); err != nil {
			return err
		}
	}
	return nil
}
