package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Question is about a connection, as users write it.
type Question struct {
	// From is a Pod (NAMESPACE/NAME, or NAME), a Node, an address or "outside".
	From string `json:"from"`
	// To is a Service (NAME.NAMESPACE, NAMESPACE/NAME, or NAME), a Pod (pod/NAMESPACE/NAME), a Node or an
	// address, with :PORT; a Service with one port needs none.
	To string `json:"to"`
	// Protocol is tcp, udp or sctp; empty: the protocol of the Service's port, or tcp without one.
	Protocol string `json:"protocol,omitempty"`
	// Namespace is the namespace of a Pod's name without one, and of a Service's if the source is no Pod; empty: default.
	Namespace string `json:"namespace,omitempty"`
	// Node is the name of the node at which the packet starts or arrives, where the ends do not show it: they do if
	// the source runs on a known node, and if the destination is the address of a node.
	Node string `json:"node,omitempty"`
	// Decided: the node was seen to decide such a packet.
	Decided bool `json:"decided,omitempty"`
}

// Answer tells what happens to the connection, and why.
type Answer struct {
	// Works: it reaches an endpoint that should answer, as far as the objects show. Outcome tells whether all connections do.
	Works   bool    `json:"works"`
	Outcome Outcome `json:"outcome"`
	// Headline is the outcome as a sentence without a full stop: with numbers if some connections fail, with Unless, and
	// without the cause. See [Answer.Settle].
	Headline string `json:"headline"`
	// Unless is a condition under which it is the other way round; empty: the objects show none.
	Unless string `json:"unless,omitempty"`
	// Cause is the reason why it does not work; nil iff Works.
	Cause *Finding `json:"cause,omitempty"`
	// Notes are about what does not work besides.
	Notes []Finding `json:"notes,omitempty"`

	Source      End `json:"source"`
	Destination End `json:"destination"`
	// Node is the name of the node that decides, and NodeIs why it is that one. Empty: not known.
	Node   string `json:"node"`
	NodeIs string `json:"nodeIs"`
	// Passed are the nodes before that one which let the packet pass untranslated.
	Passed []Place `json:"passed,omitempty"`
	// Record is the decision, with those of Passed as its Others; nil if no packet gets that far.
	Record *flow.Record `json:"record,omitempty"`
	// Endpoints are the ones that the decision could select, in order.
	Endpoints []Endpoint `json:"endpoints,omitempty"`

	by     string // what it is from; empty: objects
	sticky bool   // session affinity binds the source to one endpoint
	chosen bool   // the client selects one of the endpoints, which DNS has
	abroad bool   // the destination is no address of a Service, but may well answer
}

// End is an end of the connection.
type End struct {
	Name    string `json:"name"`              // as "pod shop/client"
	Address string `json:"address,omitempty"` // the source has no port
}

// Place is a node on the way of the packet.
type Place struct {
	Node string `json:"node"`
	Is   string `json:"is"` // why the packet comes there
}

// Endpoint is one that the decision could select.
type Endpoint struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	// Problem is the reason why it will not answer; nil: none is known.
	Problem *Finding `json:"problem,omitempty"`
	// Flows are the recent ones; nil: none is known.
	Flows *Flows `json:"flows,omitempty"`
}

// QuestionError is a mistake in a question: a name in it does not exist, or is ambiguous.
type QuestionError struct {
	Field string // of [Question], as in JSON
	what  string
	Err   error
}

// Error names the part of the question.
func (e *QuestionError) Error() string { return e.what + ": " + e.Err.Error() }

// Unwrap returns the error without the part.
func (e *QuestionError) Unwrap() error { return e.Err }

// Why answers a question. An error is a [*QuestionError].
func (c *Cluster) Why(q Question) (*Answer, error) {
	from, err := c.source(q.From, q.Namespace)
	if err != nil {
		return nil, &QuestionError{"from", "source", err}
	}
	namespace := q.Namespace
	if from.pod != nil {
		namespace = from.pod.Namespace
	}
	text, named, err := CutProtocol(q.To)
	if err != nil {
		return nil, &QuestionError{"to", "destination", err}
	}
	to, err := c.destination(text, namespace)
	if err != nil {
		return nil, &QuestionError{"to", "destination", err}
	}
	w := &inquiry{Cluster: c, from: from, to: to, answer: &Answer{Source: End{Name: from.text}, Destination: End{Name: to.text}}}
	if named != 0 {
		w.protocol = &named
	}
	if q.Protocol != "" {
		p, err := decision.ParseProtocol(q.Protocol)
		if err == nil && named != 0 && named != p {
			err = fmt.Errorf("the protocol is %s, but the destination %s is %s", p, q.To, named)
		}
		if err != nil {
			return nil, &QuestionError{"protocol", "protocol", err}
		}
		w.protocol = &p
	}
	if q.Node != "" && !slices.Contains(c.nodes.names, q.Node) {
		return nil, &QuestionError{"node", "node", fmt.Errorf("there is no Node %s; known: %s", q.Node, nearest.Few(c.nodes.names))}
	}
	w.given, w.decided = q.Node, q.Decided
	asked := to.service // of type ExternalName, it may lead to another one
	switch {
	case to.unnamed != nil:
		w.cause(*to.unnamed)
	case to.service != nil:
		if to.balancer && !from.outside { // what reaches a node comes from the load balancer
			through := *from
			through.addrs, through.outside, through.pod, through.node, through.on = c.outsiders(), true, nil, "", ""
			w.from = &through
		}
		if err = w.service(); w.from != from {
			w.answer.Source.Address = ""
		}
	default:
		err = w.address()
	}
	if err != nil {
		return nil, &QuestionError{"to", "destination", err}
	}
	if p := from.pod; p != nil && asked != nil && p.Namespace != asked.Namespace && !strings.ContainsAny(text, "/.") && w.answer.Cause == nil && w.answer.Unless == "" {
		name, _, _ := strings.Cut(text, ":")
		w.answer.Unless = fmt.Sprintf("the source uses the name %s alone, which DNS looks up in its own namespace %s (from there it is %s.%s)", name, p.Namespace, name, asked.Namespace)
	}
	if node := w.cutOff(); node != "" && w.answer.Cause == nil && w.answer.Unless == "" {
		w.answer.Unless = fmt.Sprintf("node %s, which is not ready, is off or cannot be reached", node)
	}
	if state := c.idle(from.pod); state != "" && w.answer.Cause == nil && w.answer.Unless == "" {
		w.answer.Unless = fmt.Sprintf("the source, Pod %s, still does not run (%s)", nameOf(from.pod), state)
	}
	if from.pod != nil && asked != nil && w.answer.Cause == nil {
		if f := c.noDNS(from.pod); f != nil {
			w.note(*f)
		}
	}
	w.answer.Settle()
	return w.answer, nil
}

// inquiry is the work on one question.
type inquiry struct {
	*Cluster
	from, to *party
	protocol *decision.Protocol // nil: not given
	given    string             // the node; "": not given
	decided  bool               // the given node did decide such a packet
	answer   *Answer
	// port is the port of the Service that the question is about; nil: of none.
	port *corev1.ServicePort
	// reading and hops are those of an attempt to follow the packet.
	reading reading
	hops    []hop
	claimed *Finding // another Service gets the packets; nil: none does
}

func (w *inquiry) cause(f Finding) { w.answer.Cause = &f }

func (w *inquiry) note(f Finding) { w.answer.Notes = append(w.answer.Notes, f) }
