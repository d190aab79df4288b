package labapi

import (
	"slices"
	"strings"
)

// FaultKind is a kind of fault.
type FaultKind struct {
	Name string `json:"name"`
	What string `json:"what"` // what is wrong
	// NodesOnly: the host is a node.
	NodesOnly  bool             `json:"nodesOnly"`
	Parameters []FaultParameter `json:"parameters"`

	// check returns a parameter, and what is wrong with it beside the others; nil: nothing can be.
	check func(*Fault) (field, wrong string)
}

// FaultParameter is a parameter of a kind of fault: a field of [Fault].
type FaultParameter struct {
	Name     string `json:"name"`
	What     string `json:"what"` // what it means
	Required bool   `json:"required"`
	Type     string `json:"type"` // see the Parameter constants
	// Options are the options of a choice; the first is the default.
	Options []string `json:"options,omitempty"`
	Example string   `json:"example,omitempty"`
}

// The types of a FaultParameter.
const (
	ParameterText   = "text"
	ParameterNumber = "number"
	ParameterChoice = "choice" // one of its Options
	ParameterFlag   = "flag"   // true or false
)

// FaultKinds are the kinds of faults, by name.
var FaultKinds = []FaultKind{
	{
		Name: "delay", What: "packets that the host sends are delayed; requires the kernel's netem",
		Parameters: []FaultParameter{required("delay", "how long to delay packets"), optional("jitter", "extra random delay, up to this")},
		check: func(f *Fault) (string, string) {
			return "jitter", unless(f.Jitter <= f.Delay, "want a duration up to the delay")
		},
	},
	{
		Name: "firewall", What: "a rule in FORWARD drops packets to an address", NodesOnly: true,
		Parameters: []FaultParameter{
			required("to", "address or CIDR"), optional("port", "the destination port"), optional("protocol", "the port's protocol"),
			optional("reject", "reject packets instead of dropping them"),
		},
	},
	{Name: "freeze", What: "the node's proxy, nfqproxyd or kube-proxy, is stopped (SIGSTOP)", NodesOnly: true, Parameters: []FaultParameter{}},
	{
		Name: "full-table", What: "the connection table accepts only a number of new connections, as if it were full", NodesOnly: true,
		Parameters: []FaultParameter{optional("connections", "how many connections the table accepts")},
	},
	{Name: "kill", What: "the node's proxy, nfqproxyd or kube-proxy, is killed (SIGKILL), and not restarted", NodesOnly: true, Parameters: []FaultParameter{}},
	{
		Name: "loss", What: "some of the packets that reach the host are lost",
		Parameters: []FaultParameter{required("percent", "how many of the packets are lost, in percent")},
	},
	{
		Name: "route", What: "the node's route to an address leads to another machine, or nowhere", NodesOnly: true,
		Parameters: []FaultParameter{required("to", "address or CIDR"), optional("via", "the next hop; if not given, packets are dropped")},
		check: func(f *Fault) (string, string) {
			return "via", unless(!f.Via.IsValid() || f.Via.Is4() == f.To.Addr().Is4(), "want an address of the same family as the destination")
		},
	},
	{
		Name: "rp-filter", What: "the node drops packets that arrive on another interface than its route to their source uses (net.ipv4.conf.*.rp_filter=1)",
		NodesOnly: true, Parameters: []FaultParameter{},
	},
	{
		Name: "stale-entry", What: "a UDP entry of a client leads to an endpoint that is gone", NodesOnly: true,
		Parameters: []FaultParameter{
			required("from", "ADDRESS:PORT of the client"), required("to", "the address of a Service"), required("port", "the destination port"),
			required("endpoint", "ADDRESS:PORT in the entry"),
		},
		check: func(f *Fault) (string, string) {
			return "to", unless(f.To.IsSingleIP(), "want one address")
		},
	},
}

func unless(ok bool, wrong string) string {
	if ok {
		return ""
	}
	return wrong
}

func required(name, what string) FaultParameter {
	p := optional(name, what)
	p.Required = true
	return p
}

func optional(name, what string) FaultParameter {
	p := faultFieldOf(name)
	return FaultParameter{Name: name, What: what, Type: p.kind, Options: p.options, Example: p.example}
}

// FaultKindOf finds a kind by its name.
func FaultKindOf(name string) (*FaultKind, bool) {
	i := slices.IndexFunc(FaultKinds, func(k FaultKind) bool { return k.Name == name })
	if i < 0 {
		return nil, false
	}
	return &FaultKinds[i], true
}

// FaultKindNames are the names of FaultKinds.
func FaultKindNames() (names []string) {
	for _, k := range FaultKinds {
		names = append(names, k.Name)
	}
	return names
}

// has reports whether the kind has a parameter.
func (k *FaultKind) has(name string) bool {
	return slices.ContainsFunc(k.Parameters, func(p FaultParameter) bool { return p.Name == name })
}

func (k *FaultKind) requires(name string) bool {
	return slices.ContainsFunc(k.Parameters, func(p FaultParameter) bool { return p.Name == name && p.Required })
}

// parameterNames lists them for a message.
func (k *FaultKind) parameterNames() string {
	if len(k.Parameters) == 0 {
		return "none"
	}
	var names []string
	for _, p := range k.Parameters {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
