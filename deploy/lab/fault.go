package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Fault is something wrong in a running lab, for students to find and for tools to show.
type Fault struct {
	ID   int    `json:"id"`   // 1 and up, in the order of the faults; 0: not yet one of a lab
	Kind string `json:"kind"` // of FaultKinds
	Host string `json:"host"` // a node, pod or client
	// Delay is of each packet that the host sends, with a random part up to Jitter: delay.
	Delay  time.Duration `json:"delay,omitzero"`
	Jitter time.Duration `json:"jitter,omitzero"`
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

// FaultKind is a kind of fault.
type FaultKind struct {
	Name, What string
	nodes      bool // for nodes only
	check      func(*Fault) error
}

// FaultKinds are the kinds of faults, by name.
var FaultKinds = []FaultKind{
	{"delay", "packets that the host sends are late (--delay, --jitter; requires the kernel's netem)", false, func(f *Fault) error {
		return want(f.Delay > 0 && f.Delay <= time.Minute && f.Jitter >= 0 && f.Jitter <= f.Delay, "--delay from 1us to 1m, and --jitter not above it")
	}},
	{"firewall", "a rule in FORWARD drops packets to an address (--to, --port, --protocol, --reject)", true, func(f *Fault) error {
		return errors.Join(want(f.To.IsValid(), "--to, an address or CIDR"), want(f.Port == 0 || f.Protocol != 0, "--protocol with --port"))
	}},
	{"freeze", "the node's daemon does not run (SIGSTOP)", true, nil},
	{"full-table", "the connection table takes no more than --connections new connections, as if it was full", true, func(f *Fault) error {
		return want(f.Connections <= 1<<20, "--connections up to 1048576")
	}},
	{"kill", "the node's daemon is killed (SIGKILL), and not started again", true, nil},
	{"loss", "some of the packets that reach the host are lost (--percent)", false, func(f *Fault) error {
		return want(f.Percent > 0 && f.Percent <= 100, "--percent above 0, up to 100")
	}},
	{"route", "the node's route to an address leads to another machine, or nowhere (--to, --via)", true, func(f *Fault) error {
		return want(f.To.IsValid() && (!f.Via.IsValid() || f.Via.Is4() == f.To.Addr().Is4()), "--to, an address or CIDR, and --via of the same family")
	}},
	{"rp-filter", "the node drops packets whose source it would reach by another device (net.ipv4.conf.*.rp_filter=1)", true, nil},
	{"stale-entry", "a UDP entry of a client leads to an endpoint that is gone (--from, --to, --port, --endpoint)", true, func(f *Fault) error {
		return errors.Join(want(f.From.IsValid() && f.From.Port() != 0, "--from ADDRESS:PORT"), want(f.To.IsSingleIP() && f.Port != 0, "--to, the address of the Service, and --port"),
			want(f.Endpoint.IsValid() && f.Endpoint.Port() != 0, "--endpoint ADDRESS:PORT"))
	}},
}

func want(ok bool, what string) error {
	if ok {
		return nil
	}
	return errors.New("want " + what)
}

// FaultKindNames are the names of FaultKinds.
func FaultKindNames() (names []string) {
	for _, k := range FaultKinds {
		names = append(names, k.Name)
	}
	return names
}

// validate completes a fault of a lab and checks it.
func (f *Fault) validate(s *Spec) error {
	i := slices.IndexFunc(FaultKinds, func(k FaultKind) bool { return k.Name == f.Kind })
	if i < 0 {
		return fmt.Errorf("no fault %q: want one of %s", f.Kind, strings.Join(FaultKindNames(), ", "))
	}
	k := FaultKinds[i]
	host, err := s.Resolve(f.Host)
	if err != nil {
		return err
	}
	if f.Host = host; host == fabricName || k.nodes && s.node(host) == nil {
		return fmt.Errorf("%s is not a node: the fault %s is one of nodes", host, k.Name)
	}
	if k.check != nil {
		if err := k.check(f); err != nil {
			return fmt.Errorf("fault %s: %w", k.Name, err)
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
	if f.Port != 0 {
		to += fmt.Sprintf(" port %d/%s", f.Port, f.Protocol)
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
