// Package statustext renders the status of daemons as text.
package statustext

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
)

// Render renders the status of nodes, one block for each. It ends with a newline.
func Render(nodes []observe.Status, style flowtext.Style) string {
	var b strings.Builder
	bad := 0
	for i := range nodes {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(nodes[i].Problems) > 0 {
			bad++
		}
		node(&b, &nodes[i], style)
	}
	switch {
	case len(nodes) < 2:
	case bad == 0:
		fmt.Fprintf(&b, "\nAll %d nodes are all right.\n", len(nodes))
	default:
		fmt.Fprintf(&b, "\n%d of %d nodes: %s.\n", bad, len(nodes), style.Paint(flowtext.Red, "problems"))
	}
	return b.String()
}

// node renders one node.
func node(b *strings.Builder, s *observe.Status, style flowtext.Style) {
	result := style.Paint(flowtext.Green, "all right")
	if n := len(s.Problems); n > 0 {
		result = style.Paint(flowtext.Red, flowtext.Count(uint64(n), "problem"))
	}
	fmt.Fprintf(b, "%s: %s\n", style.Paint(flowtext.Bold, s.Node), result)
	for _, p := range s.Problems {
		fmt.Fprintf(b, "  %s %s (%s)\n", style.Paint(flowtext.Red, "!"), p.Text, p.Code)
	}
	if s.Daemon == nil {
		return
	}
	d := s.Daemon
	line(b, "daemon", fmt.Sprintf("version %s, process %d, started %s", d.Version, d.ProcessID, ago(d, d.Started)))
	line(b, "objects", source(d))
	line(b, "service table", table(d)...)
	line(b, "new flows", deciders(d, style)...)
	line(b, "kernel rules", rules(d)...)
	if c := d.Connections; c != nil {
		line(b, "connections", fill(c, style))
	}
	line(b, "losses", losses(d)...)
	line(b, "host's nat rules", hostNAT(&d.HostNAT, style)...)
	line(b, "host's firewall", firewall(&d.HostFirewall))
	line(b, "confinement", confinement(&d.Confinement, style)...)
	queues(b, d, style)
}

// line writes a line with its label, and further lines below it.
func line(b *strings.Builder, label string, texts ...string) {
	for _, text := range texts {
		fmt.Fprintf(b, "  %-16s  %s\n", label, text)
		label = ""
	}
}

// ago is how long before the time of the status a moment was.
func ago(d *observe.Daemon, t time.Time) string {
	age := max(0, d.Time.Sub(t))
	if age < time.Second {
		return "now"
	}
	return flowtext.Duration(age.Truncate(time.Second)) + " ago"
}

// fill is how full the connection table is.
func fill(c *observe.Connections, style flowtext.Style) string {
	text := flowtext.Count(c.Entries, "entry") + " in the connection table"
	if c.Limit == 0 {
		return text + ", without a limit"
	}
	text += fmt.Sprintf(", %.0f %% of its limit of %d", 100*float64(c.Entries)/float64(c.Limit), c.Limit)
	if c.NearlyFull() {
		text = style.Paint(flowtext.Yellow, text)
	}
	return text
}

func source(d *observe.Daemon) string {
	text := "from the API server"
	if at := d.Source.Saved; at != nil {
		text += ", saved " + ago(d, *at)
	}
	if w := d.Source.WaitingFor; w != "" {
		text += "; waiting for " + w
	}
	return text
}

func table(d *observe.Daemon) []string {
	t := d.Table
	if t == nil {
		return []string{"none yet"}
	}
	list := []string{fmt.Sprintf("generation %d, made %s: %s, %s, %s", t.Generation, ago(d, t.Built),
		flowtext.Count(uint64(t.Services), "service"), flowtext.Count(uint64(t.ServicePorts), "service port"), flowtext.Count(uint64(t.Endpoints), "endpoint"))}
	return append(list, few(t.Conflicts)...)
}

// shown is how many texts of a list are shown.
const shown = 3

// few are the first texts of a list.
func few(list []string) []string {
	if len(list) <= shown {
		return list
	}
	return append(slices.Clone(list[:shown]), fmt.Sprintf("and %d more (-o json lists all)", len(list)-shown))
}

func deciders(d *observe.Daemon, style flowtext.Style) []string {
	var list []string
	for _, f := range []string{"IPv4", "IPv6"} {
		text := style.Paint(flowtext.Yellow, "unknown")
		switch d.DecidedBy[f] {
		case observe.DecidedByDaemon:
			text = "decided by the daemon"
		case observe.DecidedByCopy:
			text = style.Paint(flowtext.Red, "decided by the kernel's copy")
		}
		list = append(list, f+": "+text)
	}
	return []string{strings.Join(list, "; "), "decided by the kernel's copy since the start: " + flowtext.Count(d.DecidedByCopy, "packet")}
}

func rules(d *observe.Daemon) []string {
	r := &d.Rules
	size := ""
	if r.Compared != nil {
		size = fmt.Sprintf(", compared %s: %s, %s, %s of sets", ago(d, *r.Compared), flowtext.Count(uint64(r.Chains), "chain"), flowtext.Count(uint64(r.Rules), "rule"), flowtext.Count(uint64(r.Elements), "element"))
	}
	result := "not compared"
	switch {
	case r.InStep:
		result = "equal to the service table"
	case r.Compared != nil:
		result = "different from the service table"
	}
	checked := "not checked yet"
	if r.Audited != nil {
		checked = "last check " + ago(d, *r.Audited)
	}
	return []string{result + size, fmt.Sprintf("%s; installed again %s, repaired %s", checked, flowtext.Count(r.Reinstalled, "time"), flowtext.Count(r.Repaired, "time"))}
}

func losses(d *observe.Daemon) []string {
	l, why := &d.Losses, "a reader was too slow"
	if d.FlowLog != "" {
		why = "the flow log cannot be written"
	}
	var list []string
	for _, loss := range []struct {
		n          uint64
		noun, text string
	}{
		{l.Undecided, "packet", "undecided: overflow of a queue (the kernel's copy decides those to services)"},
		{l.TableFull, "connection entry", "not created: the connection table is full"},
		{l.NoRoute, "connection entry", "not created: no route to the endpoint"},
		{l.OtherFailures, "connection entry", "not created: other errors"},
		{l.Evicted, "connection entry", "without a reply removed early: the connection table is more than half full"},
		{l.ForgottenClients, "client", "without session affinity: too many clients"},
		{l.InvalidDropped, "packet", "dropped: invalid for connection tracking"},
		{l.Records, "flow record", "lost: " + why},
	} {
		if loss.n > 0 {
			list = append(list, flowtext.Count(loss.n, loss.noun)+" "+loss.text)
		}
	}
	if list == nil {
		return []string{"none"}
	}
	return list
}

func hostNAT(n *observe.HostNAT, style flowtext.Style) []string {
	if !n.Applied {
		return []string{"not applied (--host-masquerade=off)"}
	}
	list := []string{"applied; " + flowtext.Count(n.Masqueraded, "flow") + " masqueraded"}
	if len(n.Unknown) > 0 || n.UnknownFlows > 0 {
		list = append(list, style.Paint(flowtext.Yellow, "not evaluated")+": "+flowtext.Count(n.UnknownFlows, "flow")+" with an unchanged source")
		list = append(list, few(n.Unknown)...)
	}
	return list
}

func firewall(f *observe.HostFirewall) string {
	state := "no fault"
	if f.Fault != "" {
		state = "rules are missing"
	}
	return state + "; repaired " + flowtext.Count(f.Repaired, "time")
}

func confinement(s *observe.Confinement, style flowtext.Style) []string {
	var names []string
	for _, c := range s.Capabilities {
		names = append(names, c.Name)
	}
	if names == nil {
		names = []string{"none"}
	}
	parts := []string{"capabilities: " + strings.Join(few(names), " ")}
	if s.NoNewPrivs {
		parts = append(parts, "no new privileges")
	}
	if s.SystemCalls > 0 {
		parts = append(parts, flowtext.Count(uint64(s.SystemCalls), "system call"))
	}
	if s.Program != "" {
		parts = append(parts, "may start "+s.Program)
	}
	if s.LandlockABI > 0 {
		parts = append(parts, fmt.Sprintf("changes of files in %s (Landlock %d)", flowtext.Count(uint64(len(s.Changes)), "place"), s.LandlockABI))
	}
	list := []string{strings.Join(parts, "; ")}
	for _, m := range s.Missing {
		list = append(list, style.Paint(flowtext.Yellow, "not in force")+": "+m)
	}
	return list
}

// queues writes a table.
func queues(b *strings.Builder, d *observe.Daemon, style flowtext.Style) {
	if len(d.Queues) == 0 {
		return
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "  QUEUE\tFLOWS\tPORT ID\tPACKETS\tWAITING\tOVERRUN\tREFUSED\tWORKER")
	for _, q := range d.Queues {
		worker := "ready"
		if q.Stuck {
			worker = style.Paint(flowtext.Red, "stuck")
		}
		flows := "to services"
		if q.NoService {
			flows = "others"
		}
		fmt.Fprintf(w, "  %d\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", q.Number, flows, q.PortID, q.Packets, q.Waiting, q.Overrun, q.Refused, worker)
	}
	_ = w.Flush() // to memory
}
