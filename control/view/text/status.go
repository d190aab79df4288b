package text

import (
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Status renders the status of nodes, one block for each. It ends with a newline.
func (s Style) Status(nodes []observe.Status) string {
	var b strings.Builder
	bad, others := 0, 0
	for i := range nodes {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(nodes[i].Problems) > 0 {
			bad++
		}
		if nodes[i].Proxy != "" {
			others++
		}
		s.status(&b, &nodes[i])
	}
	switch {
	case len(nodes) < 2:
	case bad == 0 && others == 0:
		fmt.Fprintf(&b, "\nAll %d nodes are healthy.\n", len(nodes))
	case bad == 0:
		fmt.Fprintf(&b, "\n%d of %d nodes have no daemon; no daemon has a problem.\n", others, len(nodes))
	default:
		fmt.Fprintf(&b, "\n%d of %d nodes: %s.\n", bad, len(nodes), s.Paint(Red, "problems"))
	}
	return b.String()
}

// status renders one node.
func (s Style) status(b *strings.Builder, n *observe.Status) {
	result := s.Paint(Green, "healthy")
	switch {
	case n.Proxy != "":
		result = "no daemon: " + n.Proxy
	case len(n.Problems) > 0:
		result = s.Paint(Red, quantity.Count(len(n.Problems), "problem"))
	}
	fmt.Fprintf(b, "%s: %s\n", s.Paint(Bold, n.Node), result)
	for _, p := range n.Problems {
		fmt.Fprintf(b, "  %s %s (%s)\n", s.Paint(Red, "!"), p.Text, p.Code)
	}
	if n.Proxy != "" {
		labeled(b, statusLabel, "flows", "not recorded: nfqproxy's daemon does that")
	}
	if n.Daemon == nil {
		return
	}
	d := n.Daemon
	labeled(b, statusLabel, "daemon", fmt.Sprintf("version %s, process %d, started %s", d.Version, d.ProcessID, ago(d, d.Started)))
	labeled(b, statusLabel, "objects", objectsSource(d))
	labeled(b, statusLabel, "service table", tableStatus(d)...)
	if d.Observed != "" {
		labeled(b, statusLabel, "new flows", "decided by "+d.Observed+"; this daemon only observes")
		labeled(b, statusLabel, "conntrack events", s.events(d.Kernel)...)
	} else {
		labeled(b, statusLabel, "new flows", s.deciders(d)...)
		labeled(b, statusLabel, "kernel rules", kernelRules(d)...)
	}
	if c := d.Connections; c != nil {
		labeled(b, statusLabel, "connections", s.fill(c))
	}
	if d.Observed != "" {
		labeled(b, statusLabel, "confinement", s.confinement(&d.Confinement)...)
		return
	}
	labeled(b, statusLabel, "losses", losses(d)...)
	labeled(b, statusLabel, "host's nat rules", s.hostNAT(&d.HostNAT)...)
	labeled(b, statusLabel, "host's firewall", firewall(&d.HostFirewall))
	labeled(b, statusLabel, "confinement", s.confinement(&d.Confinement)...)
	b.WriteString(s.queues(d))
}

// statusLabel is the width of the labels of a status.
const statusLabel = 17

// ago is how long before the time of the status a moment was.
func ago(d *observe.Daemon, t time.Time) string {
	age := max(0, d.Time.Sub(t))
	if age < time.Second {
		return "now"
	}
	return unit.Duration(age.Truncate(time.Second)) + " ago"
}

// fill is how full the connection table is.
func (s Style) fill(c *observe.Connections) string {
	text := quantity.Count(c.Entries, "entry") + " in the connection table"
	if c.Limit == 0 {
		return text + ", without a limit"
	}
	text += fmt.Sprintf(", %.0f %% of its limit of %d", 100*float64(c.Entries)/float64(c.Limit), c.Limit)
	if c.NearlyFull() {
		text = s.Paint(Yellow, text)
	}
	return text
}

func objectsSource(d *observe.Daemon) string {
	text := "from the API server"
	if at := d.Source.Saved; at != nil {
		text += ", saved " + ago(d, *at)
	}
	if w := d.Source.WaitingFor; w != "" {
		text += "; waiting for " + w
	}
	return text
}

func tableStatus(d *observe.Daemon) []string {
	t := d.Table
	if t == nil {
		return []string{"none yet"}
	}
	list := []string{fmt.Sprintf("generation %d, built %s: %s, %s, %s", t.Generation, ago(d, t.Built),
		quantity.Count(t.Services, "service"), quantity.Count(t.ServicePorts, "service port"), quantity.Count(t.Endpoints, "endpoint"))}
	return append(list, firstFew(t.Conflicts)...)
}

// firstFew are the first texts of a list.
func firstFew(list []string) []string {
	const most = 3
	if list = first(most, list); len(list) > most {
		list[most] += " (-o json lists all)"
	}
	return list
}

func (s Style) deciders(d *observe.Daemon) []string {
	var list []string
	for _, f := range []string{"IPv4", "IPv6"} {
		text := s.Paint(Yellow, "unknown")
		switch d.DecidedBy[f] {
		case observe.DecidedByDaemon:
			text = "decided by the daemon"
		case observe.DecidedByCopy:
			text = s.Paint(Red, "decided by the kernel's copy")
		}
		list = append(list, f+": "+text)
	}
	return []string{strings.Join(list, "; "), "decided by the kernel's copy since the start: " + quantity.Count(d.DecidedByCopy, "packet")}
}

// events is how an observing daemon follows connections.
func (s Style) events(k *observe.Kernel) []string {
	if k == nil || !k.Following {
		return []string{s.Paint(Red, "not received: flows have no records")}
	}
	list := []string{fmt.Sprintf("%s received; lost %s; %s of the connection table", quantity.Count(k.Events, "event"), quantity.Count(k.Overruns, "time"), quantity.Count(k.Resyncs, "dump"))}
	if k.Paused {
		list = append(list, s.Paint(Yellow, "too many new flows: only a sample has records"))
	}
	if !k.Accounting {
		list = append(list, "bytes are not counted (net.netfilter.nf_conntrack_acct is 0; --accounting sets it)")
	}
	if !k.Timestamps {
		list = append(list, "start times of older connections are unknown (net.netfilter.nf_conntrack_timestamp is 0; --accounting sets it)")
	}
	return list
}

func kernelRules(d *observe.Daemon) []string {
	r := &d.Rules
	size := ""
	if r.Compared != nil {
		size = fmt.Sprintf(", compared %s: %s, %s, %s", ago(d, *r.Compared), quantity.Count(r.Chains, "chain"), quantity.Count(r.Rules, "rule"), quantity.Count(r.Elements, "set element"))
	}
	result := "not compared"
	switch {
	case r.InStep:
		result = "match the service table"
	case r.Compared != nil:
		result = "differ from the service table"
	}
	checked := "not checked yet"
	if r.Audited != nil {
		checked = "last check " + ago(d, *r.Audited)
	}
	return []string{result + size, fmt.Sprintf("%s; reinstalled %s, repaired %s", checked, quantity.Count(r.Reinstalled, "time"), quantity.Count(r.Repaired, "time"))}
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
			list = append(list, quantity.Count(loss.n, loss.noun)+" "+loss.text)
		}
	}
	if list == nil {
		return []string{"none"}
	}
	return list
}

func (s Style) hostNAT(n *observe.HostNAT) []string {
	if !n.Applied {
		return []string{"not applied (--host-masquerade=off)"}
	}
	list := []string{"applied; " + quantity.Count(n.Masqueraded, "flow") + " masqueraded"}
	if len(n.Unknown) > 0 || n.UnknownFlows > 0 {
		list = append(list, s.Paint(Yellow, "not evaluated")+": "+quantity.Count(n.UnknownFlows, "flow")+" with an unchanged source")
		list = append(list, firstFew(n.Unknown)...)
	}
	return list
}

func firewall(f *observe.HostFirewall) string {
	state := "no fault"
	if f.Fault != "" {
		state = "rules are missing"
	}
	return state + "; repaired " + quantity.Count(f.Repaired, "time")
}

func (s Style) confinement(c *observe.Confinement) []string {
	var names []string
	for _, capability := range c.Capabilities {
		names = append(names, capability.Name)
	}
	if names == nil {
		names = []string{"none"}
	}
	parts := []string{"capabilities: " + strings.Join(firstFew(names), " ")}
	if c.NoNewPrivs {
		parts = append(parts, "no new privileges")
	}
	if c.SystemCalls > 0 {
		parts = append(parts, quantity.Count(c.SystemCalls, "system call"))
	}
	if c.Program != "" {
		parts = append(parts, "may start "+c.Program)
	}
	if c.LandlockABI > 0 {
		parts = append(parts, fmt.Sprintf("may change files in %s (Landlock %d)", quantity.Count(len(c.Changes), "place"), c.LandlockABI))
	}
	list := []string{strings.Join(parts, "; ")}
	for _, m := range c.Missing {
		list = append(list, s.Paint(Yellow, "not in force")+": "+m)
	}
	return list
}

func (s Style) queues(d *observe.Daemon) string {
	if len(d.Queues) == 0 {
		return ""
	}
	rows := [][]string{{"QUEUE", "FLOWS", "PORT ID", "PACKETS", "WAITING", "OVERRUN", "REFUSED", "WORKER"}}
	for _, q := range d.Queues {
		worker := "ready"
		if q.Stuck {
			worker = s.Paint(Red, "stuck")
		}
		flows := "to services"
		if q.NoService {
			flows = "others"
		}
		rows = append(rows, []string{
			fmt.Sprint(q.Number), flows, fmt.Sprint(q.PortID), fmt.Sprint(q.Packets), fmt.Sprint(q.Waiting), fmt.Sprint(q.Overrun), fmt.Sprint(q.Refused), worker,
		})
	}
	return "\n" + Columns("  ", 3, rows)
}
