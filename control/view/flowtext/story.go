package flowtext

import (
	"fmt"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"strings"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Story renders a record as a text to be read: what happens and why, the walk through
// the chains, and the endpoints. rules adds the rules of the walk as iptables-save
// prints them. It ends with a newline.
func (s Style) Story(r *flow.Record, rules bool) string {
	var b strings.Builder
	from := ""
	if r.Local {
		from = ", made on the node itself"
	}
	if r.Node != "" {
		from += ", as node " + r.Node + " sees it"
	}
	fmt.Fprintf(&b, "%s %s -> %s%s\n\n", r.Protocol, r.Source, r.Destination, from)
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s %s\n", what, fmt.Sprintf(format, args...))
	}
	if r.Service != "" {
		line("service", "%s, by its %s", r.Service, entries[r.Entry])
	}
	line("verdict", "%s", s.verdict(r))
	if r.Verdict == decision.DNAT.String() {
		line("source", "%s", s.source(r))
	}
	if r.Hint != "" {
		line("hint", "%s", r.Hint)
	}
	if len(r.Steps) > 0 {
		b.WriteString("\n" + s.walk(r, "  ", rules))
	}
	if len(r.Candidates)+len(r.Excluded) > 0 {
		b.WriteString("\n" + s.endpoints(r))
	}
	if r.Reply != nil {
		b.WriteString("\n  the way back\n")
		for i, step := range r.Reply.Steps {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, step)
		}
	}
	return b.String()
}

func (s Style) verdict(r *flow.Record) string {
	switch r.Verdict {
	case decision.DNAT.String():
		text := s.Paint(Green, r.Endpoint)
		if r.Pod != "" {
			text += ", pod " + r.Pod
		}
		return text + s.how(r) + branches[r.Branch]
	case decision.Accept.String():
		return s.Paint(Dim, "passes untouched") + ": " + reasons[r.Reason]
	case decision.Reject.String():
		return s.Paint(Red, "rejected") + ": " + reasons[r.Reason]
	}
	return s.Paint(Red, "dropped") + ": " + reasons[r.Reason]
}

// how tells, after the endpoint, how it was found.
func (s Style) how(r *flow.Record) string {
	if r.Reason == decision.Bound.String() {
		return " (session affinity: the client went there before)"
	}
	return choice(r)
}

// entries tells ways to a service in words.
var entries = map[string]string{
	decision.EntryClusterIP.String():    "cluster IP",
	decision.EntryExternalIP.String():   "external IP",
	decision.EntryLoadBalancer.String(): "load balancer IP",
	decision.EntryNodePort.String():     "node port",
}

// reasons tells reasons for verdicts in words.
var reasons = map[string]string{
	decision.NotAService.String():      "it is for no service",
	decision.NoEndpoints.String():      "the service has no endpoint that could take it, anywhere in the cluster",
	decision.NoLocalEndpoints.String(): "the traffic policy is Local, and no endpoint on this node could take it; other nodes have some",
	decision.SourceNotAllowed.String(): "the source is not within the service's loadBalancerSourceRanges",
	decision.ForeignLocalnet.String():  "loopback addresses are only for packets from loopback addresses",
	decision.NotFiltered.String():      "no endpoint can take it, but kube-proxy's filter rules are not on this packet's way",
	decision.DroppedByHand.String():    "somebody held it at the queue and dropped it",
}

// branches tells, after the endpoint, which endpoints were to choose from if that is
// not what one would think.
var branches = map[string]string{
	decision.BranchPodShortcut.String():  "; externalTrafficPolicy Local does not bind pods",
	decision.BranchNodeShortcut.String(): "; externalTrafficPolicy Local does not bind the node itself",
}

// marks tells in words why the source is masqueraded.
var marks = map[string]string{
	decision.MarkAll.String():      "--masquerade-all is set",
	decision.MarkOutside.String():  "it is no pod's, and the answer has to come back through this node",
	decision.MarkExternal.String(): "the endpoint may be on any node, and the answer has to come back through this one",
	decision.MarkLocal.String():    "it is this node's, and the answer has to come back here",
	decision.MarkHairpin.String():  "the endpoint would answer itself, past the translation",
	flow.HostMasquerade:            "a rule of the host's own asks for it",
}

func (s Style) source(r *flow.Record) string {
	switch {
	case r.Masquerade:
		text := s.Paint(Yellow, "masqueraded") + " as an address of this node: " + marks[r.MasqueradeReason]
		if r.MasqueradeRule != "" {
			text += "\n            " + s.Paint(Dim, r.MasqueradeRule)
		}
		return text
	case r.MasqueradeReason != "":
		return "stays as it is: marked for masquerading, but delivered on this node, short of POSTROUTING"
	}
	return "stays as it is"
}

// exclusions tells in words why an endpoint could not be chosen.
var exclusions = map[string]string{
	decision.NotReady.String():    "it is not ready",
	decision.NotServing.String():  "it terminates, and serves no more",
	decision.Terminating.String(): "it terminates, and there are others that are ready",
	decision.OtherZone.String():   "topology hints give it to other zones",
	decision.OtherNode.String():   "topology hints give it to other nodes",
	decision.NotLocal.String():    "it is not on this node, and the traffic policy is Local",
	decision.OtherFamily.String(): "it is of the other address family",
	decision.Unused.String():      "no traffic to the service is under this policy",
	decision.NotBound.String():    "session affinity binds the client to another endpoint",
}

// endpoints is the table of endpoints.
func (s Style) endpoints(r *flow.Record) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  ENDPOINT\tCHANCE\t")
	for _, c := range r.Candidates {
		chosen := ""
		if c.Endpoint == r.Endpoint {
			chosen = "<- chosen"
		}
		fmt.Fprintf(w, "  %s\t%.3g\t%s\n", c.Endpoint, c.Probability, chosen)
	}
	for _, e := range r.Excluded {
		why := exclusions[e.Reason]
		if why == "" {
			why = e.Reason // of a later version
		}
		fmt.Fprintf(w, "  %s\t-\t%s\n", e.Endpoint, why)
	}
	_ = w.Flush()
	// The writer pads the last column, too.
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
