package explain

import (
	"errors"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// anyPort stands for a source port that was left out.
const anyPort = 40000

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
