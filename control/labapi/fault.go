package labapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	strict "sigs.k8s.io/json"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Fault is something wrong in a running lab, for students to find and for tools to show. Besides its kind and its host it
// has the parameters of its kind; see [FaultKinds].
type Fault struct {
	ID   int    `json:"id,omitempty"` // 1 and up, in the order of the faults; 0: not yet one of a lab
	Kind string `json:"kind"`         // of FaultKinds
	Host string `json:"host"`         // a node, pod or client
	// Text is the description by [Fault.String], which a lab sets.
	Text string `json:"text,omitempty"`

	// Delay is of each packet that the host sends, with a random part up to Jitter: delay.
	Delay  Duration `json:"delay,omitzero"`
	Jitter Duration `json:"jitter,omitzero"`
	// Percent of the packets that reach the host are dropped: loss.
	Percent float64 `json:"percent,omitempty"`
	// To are the destinations: firewall, route; of stale-entry, the address of a Service.
	To netip.Prefix `json:"to,omitzero"`
	// Port and Protocol select packets to To: firewall, stale-entry. Without a port: all.
	Port     uint16            `json:"port,omitempty"`
	Protocol decision.Protocol `json:"protocol,omitempty"`
	// Reject: the firewall answers with an error, instead of dropping.
	Reject bool `json:"reject,omitempty"`
	// Via is the next hop of the route; none: packets are dropped.
	Via netip.Addr `json:"via,omitzero"`
	// From and Endpoint are the client of a stale entry, and where it sends the client's packets.
	From     netip.AddrPort `json:"from,omitzero"`
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	// Connections that the host's table takes: full-table.
	Connections uint32 `json:"connections,omitempty"`
}

// UnmarshalJSON reads a fault with the parameters of its kind and no others, in the forms that [Fault.Set] takes. The
// error is an [*observe.Error].
func (f *Fault) UnmarshalJSON(b []byte) error {
	var fields map[string]json.RawMessage
	if unwanted, err := strict.UnmarshalStrict(b, &fields); err != nil || len(unwanted) > 0 || fields == nil {
		return badFault("", "want a fault, a JSON object with each field once")
	}
	*f = Fault{}
	for name, into := range map[string]any{"id": &f.ID, "kind": &f.Kind, "host": &f.Host, "text": &f.Text} {
		if err := json.Unmarshal(fields[name], into); fields[name] != nil && err != nil {
			return badFault(name, "%s: want a %s", name, map[bool]string{true: "number", false: "string"}[name == "id"])
		}
		delete(fields, name)
	}
	kind, known := FaultKindOf(f.Kind)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		p := faultFieldOf(name)
		if p == nil {
			return badFault(name, "unknown field %q", name)
		}
		if known && !kind.has(name) {
			return badFault(name, "%s: the fault %s has no such parameter; it has %s", name, kind.Name, kind.parameterNames())
		}
		text, is := jsonText(fields[name])
		if want := jsonTypes[p.kind]; is != want {
			return badFault(name, "%s is a JSON %s: want a %s", name, is, want)
		}
		if err := p.read(f, text); err != nil {
			return badFault(name, "%s %q: want %v", name, text, err)
		}
	}
	return nil
}

// jsonText returns a value of JSON without quotes, and its type.
func jsonText(raw json.RawMessage) (text, is string) {
	raw = bytes.TrimSpace(raw)
	switch {
	case json.Unmarshal(raw, &text) == nil && raw[0] == '"':
		return text, "string"
	case raw[0] == 't' || raw[0] == 'f':
		is = "boolean"
	case raw[0] == '{':
		is = "object"
	case raw[0] == '[':
		is = "array"
	case raw[0] == 'n':
		is = "null"
	default:
		is = "number"
	}
	return string(raw), is
}

// jsonTypes are the JSON types of the types of parameters.
var jsonTypes = map[string]string{ParameterText: "string", ParameterChoice: "string", ParameterNumber: "number", ParameterFlag: "boolean"}

func badFault(field, format string, a ...any) error {
	return &observe.Error{Status: http.StatusBadRequest, Field: field, Message: fmt.Sprintf(format, a...)}
}

// Set sets a parameter by its name, to a text: "10.0.0.1" or "10.0.0.0/8", "200ms", "80". The error is what
// the text should be.
func (f *Fault) Set(name, text string) error {
	p := faultFieldOf(name)
	if p == nil {
		return fmt.Errorf("one of the parameters %s", strings.Join(FaultParameterNames(), ", "))
	}
	return p.read(f, text)
}

// Check completes a fault, and checks it, except for its host. The error is an [*observe.Error].
func (f *Fault) Check() error {
	kind, ok := FaultKindOf(f.Kind)
	if !ok {
		return badFault("kind", "no fault %q: want one of %s", f.Kind, strings.Join(FaultKindNames(), ", "))
	}
	if kind.has("protocol") && f.Port != 0 && f.Protocol == 0 {
		f.Protocol = decision.TCP
	}
	for i := range faultFields {
		p := &faultFields[i]
		switch given := p.given(f); {
		case given && !kind.has(p.name):
			return badFault(p.name, "%s: the fault %s has no such parameter; it has %s", p.name, kind.Name, kind.parameterNames())
		case !given && kind.requires(p.name):
			return badFault(p.name, "%s is missing: the fault %s requires %s", p.name, kind.Name, p.want)
		case given && p.valid != nil && !p.valid(f):
			return badFault(p.name, "%s: want %s", p.name, p.want)
		}
	}
	if kind.check != nil {
		if field, wrong := kind.check(f); wrong != "" {
			return badFault(field, "%s: %s", field, wrong)
		}
	}
	return nil
}

// String describes the fault, as in "loss on node-a: 10% of the packets".
func (f *Fault) String() string {
	on := f.Kind + " on " + f.Host
	to := f.To.String()
	if f.To.IsSingleIP() {
		to = f.To.Addr().String()
	}
	switch {
	case f.Kind == "stale-entry":
		to += fmt.Sprintf(" port %d/%s", f.Port, decision.UDP)
	case f.Port != 0:
		to += fmt.Sprintf(" port %d/%s", f.Port, f.Protocol)
	case f.Protocol != 0:
		to += ", " + f.Protocol.String()
	}
	switch f.Kind {
	case "delay":
		on += ": " + f.Delay.String()
		if f.Jitter > 0 {
			on += ", up to " + f.Jitter.String() + " more"
		}
	case "firewall":
		verb := "drops"
		if f.Reject {
			verb = "rejects"
		}
		on += ": " + verb + " packets to " + to
	case "full-table":
		on += fmt.Sprintf(": at %d connections", f.Connections)
	case "loss":
		on += fmt.Sprintf(": %g%% of the packets", f.Percent)
	case "route":
		if f.Via.IsValid() {
			return on + ": " + to + " via " + f.Via.String()
		}
		on += ": " + to + " leads nowhere"
	case "stale-entry":
		on += fmt.Sprintf(": %s to %s leads to %s", f.From, to, f.Endpoint)
	}
	return on
}
