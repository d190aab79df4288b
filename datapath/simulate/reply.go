package simulate

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Reply tells the way of the answer to a decided flow, back through the node's
// connection tracking.
func (s *Simulator) Reply(r *flow.Record) *flow.Reply {
	switch r.Verdict {
	case decision.DNAT.String():
		return s.translated(r)
	case decision.Reject.String():
		return &flow.Reply{Steps: []string{
			fmt.Sprintf("the node answers %s with ICMP port unreachable: the client sees \"connection refused\" at once", r.Source),
		}}
	case decision.Drop.String():
		return &flow.Reply{Steps: []string{"there is no answer: the client waits until it gives up"}}
	}
	return &flow.Reply{
		Source: r.Destination, Destination: r.Source, SeenSource: r.Destination, SeenDestination: r.Source,
		Steps: []string{"nothing was translated, so nothing has to be translated back"},
	}
}

func (s *Simulator) translated(r *flow.Record) *flow.Reply {
	client := netip.MustParseAddrPort(r.Source)
	seen := client // whom the endpoint answers
	if r.Masquerade {
		// Which address of the node depends on its routes; its own is the usual one.
		seen = netip.AddrPortFrom(s.table.Node().IP(decision.FamilyOf(client.Addr())), client.Port())
	}
	reply := &flow.Reply{Source: r.Endpoint, Destination: seen.String(), SeenSource: r.Destination, SeenDestination: r.Source}
	name := seen.String()
	if !seen.Addr().IsValid() {
		name = "an address of the node"
		reply.Destination = ""
	}
	say := func(format string, args ...any) { reply.Steps = append(reply.Steps, fmt.Sprintf(format, args...)) }
	say("the endpoint answers whom it saw: %s -> %s", r.Endpoint, name)
	switch {
	case r.Masquerade:
		say("that is this node, so the answer comes back here, on whatever node the endpoint is")
	case r.MasqueradeReason != "":
		say("the endpoint is on this node, so the answer starts here")
	default:
		say("that is the client itself: the answer has to pass this node, where the client's packets were translated (the client's pod or the endpoint is here)")
	}
	say("conntrack finds the entry by its reply tuple; no rule is looked at any more")
	if r.Masquerade {
		say("un-SNAT: the destination becomes %s again", r.Source)
	}
	say("un-DNAT: the source becomes %s again", r.Destination)
	say("the client gets the answer from the address it asked, and never learns of %s", r.Endpoint)
	return reply
}
