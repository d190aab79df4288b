package flowtext

import (
	"fmt"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"strings"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Story renders a record in detail: the verdict with its reason, the walk through the
// chains, and the endpoints. rules adds the rules of the walk as iptables-save
// prints them. It ends with a newline.
func (s Style) Story(r *flow.Record, rules bool) string {
	var b strings.Builder
	from := ""
	if r.Local {
		from = ", sent by the node itself"
	}
	if r.Node != "" {
		from += ", on node " + r.Node
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
		b.WriteString("\n  reply path\n")
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
		return s.Paint(Dim, "passes unchanged") + ": " + reasons[r.Reason]
	case decision.Reject.String():
		return s.Paint(Red, "rejected") + ": " + reasons[r.Reason]
	}
	return s.Paint(Red, "dropped") + ": " + reasons[r.Reason]
}

// how describes, after the endpoint, its selection.
func (s Style) how(r *flow.Record) string {
	if r.Reason == decision.Bound.String() {
		return " (session affinity: same endpoint as the client's earlier flows)"
	}
	return choice(r)
}

// entries describes the address types of a service.
var entries = map[string]string{
	decision.EntryClusterIP.String():    "cluster IP",
	decision.EntryExternalIP.String():   "external IP",
	decision.EntryLoadBalancer.String(): "load balancer IP",
	decision.EntryNodePort.String():     "node port",
}

// reasons describes the reasons of verdicts.
var reasons = map[string]string{
	decision.NotAService.String():      "no service has this destination",
	decision.NoEndpoints.String():      "the service has no usable endpoint in the cluster",
	decision.NoLocalEndpoints.String(): "the traffic policy is Local, and only other nodes have usable endpoints",
	decision.SourceNotAllowed.String(): "the source is not in the service's loadBalancerSourceRanges",
	decision.ForeignLocalnet.String():  "a loopback destination requires a loopback source",
	decision.NotFiltered.String():      "the service has no usable endpoint, but the packet does not traverse kube-proxy's filter rules",
	decision.DroppedByHand.String():    "held at the queue and dropped by the user",
}

// branches describes, after the endpoint, why the external traffic policy does not apply.
var branches = map[string]string{
	decision.BranchPodShortcut.String():  "; externalTrafficPolicy Local does not apply to pods",
	decision.BranchNodeShortcut.String(): "; externalTrafficPolicy Local does not apply to the node itself",
}

// marks describes why the source is masqueraded.
var marks = map[string]string{
	decision.MarkAll.String():      "--masquerade-all is set",
	decision.MarkOutside.String():  "the source is not a pod, and the reply must return through this node",
	decision.MarkExternal.String(): "the endpoint may be on any node, and the reply must return through this one",
	decision.MarkLocal.String():    "the source is this node, and the reply must return to it",
	decision.MarkHairpin.String():  "hairpin: the endpoint would reply to itself directly, without the translation",
	flow.HostMasquerade:            "a masquerade rule of the host",
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
		return "unchanged: marked for masquerade, but delivered on this node before POSTROUTING"
	}
	return "unchanged"
}

// exclusions describes why an endpoint is excluded.
var exclusions = map[string]string{
	decision.NotReady.String():    "not ready",
	decision.NotServing.String():  "terminating, not serving",
	decision.Terminating.String(): "terminating, and other endpoints are ready",
	decision.OtherZone.String():   "topology hints for other zones",
	decision.OtherNode.String():   "topology hints for other nodes",
	decision.NotLocal.String():    "on another node, and the traffic policy is Local",
	decision.OtherFamily.String(): "other address family",
	decision.Unused.String():      "no traffic to the service uses this policy",
	decision.NotBound.String():    "session affinity selects another endpoint",
}

// endpoints renders the table of endpoints.
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
