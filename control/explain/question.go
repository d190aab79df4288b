package explain

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// anyPort stands for a source port that was left out.
const anyPort = 40000

// longestLine is how long a line may be; a question has some hundred bytes.
const longestLine = 1 << 20

// Questions reads one question from each line that is not empty and calls answer with it. It ends
// at the first error, of a line or of answer; the error names the line.
func Questions(in io.Reader, answer func(flow.Question) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		q, err := parse(line)
		if err == nil {
			err = answer(q)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// parse reads one line. A misspelled field is an error: if it were ignored, the answer would be
// about another packet.
func parse(line []byte) (flow.Question, error) {
	var q flow.Question
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("something follows the object: one for each line")
		}
	}
	if err == nil {
		return q, nil
	}
	why := strings.TrimPrefix(err.Error(), "json: ")
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		why = fmt.Sprintf("%s is a %s, not a %s", kind.Field, kind.Type, kind.Value)
	case errors.As(err, &kind):
		why = "this is a JSON " + kind.Value
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "the line ends within the object"
	}
	return flow.Question{}, fmt.Errorf(`want an object such as {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}: %s`, why)
}

// Packet makes a packet of the question. The error is a [*FieldError].
func (n *Names) Packet(q flow.Question) (decision.Packet, error) {
	p := decision.Packet{Local: q.Local, InInterface: q.InInterface}
	if q.Protocol == "" {
		return p, &FieldError{"protocol", errors.New("protocol is missing: tcp, udp or sctp")}
	}
	var err error
	if p.Protocol, err = decision.ParseProtocol(q.Protocol); err != nil {
		return p, &FieldError{"protocol", err}
	}
	if q.Local && q.InInterface != "" {
		return p, &FieldError{"inInterface", fmt.Errorf("a packet that originates on the node has no input interface, but %s is given", q.InInterface)}
	}
	destination, err := n.resolve(q.Destination, p.Protocol)
	if err == nil && destination.port == 0 {
		err = errors.New("a port is missing: write ADDRESS:PORT, [IPV6]:PORT or pod/NAMESPACE/NAME:PORT")
	}
	if err != nil {
		return p, at("destination", q.Destination, err)
	}
	source, err := n.resolve(q.Source, p.Protocol)
	if err != nil {
		return p, at("source", q.Source, err)
	}
	if source.port == 0 {
		source.port = anyPort
	}
	var ok bool
	if p.Source, p.Destination, ok = pair(source, destination); !ok {
		return p, &FieldError{"destination", fmt.Errorf("source %q is %s and destination %q is %s: a packet has one address family",
			q.Source, decision.FamilyOf(source.addrs[0]), q.Destination, decision.FamilyOf(destination.addrs[0]))}
	}
	return p, nil
}

// FieldError is an error in one field of a question.
type FieldError struct {
	Field string // as in JSON
	Err   error
}

// Error is Err's text, which names the field.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

func at(field, value string, err error) error {
	if value == "" {
		return &FieldError{field, fmt.Errorf("%s is missing", field)}
	}
	return &FieldError{field, fmt.Errorf("%s %q: %w", field, value, err)}
}
