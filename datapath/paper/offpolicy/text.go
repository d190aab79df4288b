package offpolicy

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// WriteTo prints the report as text.
func (r *Report) WriteTo(to io.Writer) (int64, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, %d counted; %s, intervals of %v %%, seed %d\n", quantity.Count(r.Flows, "flow"), r.Counted, quantity.Count(r.Replications, "replication"), r.Confidence, r.Seed)
	for i := range r.Services {
		g := &r.Services[i]
		g.write(&b, fmt.Sprintf("%s, by %s: %s", g.Service, g.Algorithm, quantity.Count(g.Flows, "flow")))
	}
	if len(r.Services) > 1 {
		r.All.write(&b, "all services: "+quantity.Count(r.All.Flows, "flow"))
	}
	if len(r.LeftOut) > 0 || r.Others > 0 {
		b.WriteString("\nleft out:\n")
	}
	for _, l := range r.LeftOut {
		fmt.Fprintf(&b, "  %6d  %s\n", l.Flows, l.Reason)
	}
	if r.Others > 0 {
		fmt.Fprintf(&b, "  %6d  of other nodes\n", r.Others)
	}
	return b.WriteTo(to)
}

// units are how outcomes are printed.
var units = map[string]struct {
	label  string
	factor float64
	format string
	suffix string
}{
	Latency:    {"connect latency", 1000, "%.3f", " ms"},
	Refused:    {"refused", 100, "%.2f", " %"},
	Unanswered: {"unanswered", 100, "%.2f", " %"},
	Imbalance:  {"imbalance", 1, "%.3f", ""},
}

// write prints a group with its title.
func (g *Group) write(b *bytes.Buffer, title string) {
	fmt.Fprintf(b, "\n%s\n", title)
	t := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "OUTCOME\tRECORDED\tIPS\tSNIPS\tDR\t")
	for i := range g.Outcomes {
		o := &g.Outcomes[i]
		label := units[o.Name].label
		if !o.Valid {
			label += " (invalid)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", label, o.text(Value{Value: o.Recorded}), o.text(o.IPS), o.text(o.SNIPS), o.text(o.DR))
	}
	_ = t.Flush() // to a buffer
	w := g.Weights
	fmt.Fprintf(b, "weights: mean %.3f, effective %.0f of %s, the largest has %.2f %%\n", w.Mean, w.Effective, quantity.Count(g.Flows, "flow"), 100*w.Largest)
	for _, w := range g.Warnings {
		fmt.Fprintf(b, "warning: %s\n", w.Text)
	}
}

// text is a value with its unit; "-": there is none.
func (o *Outcome) text(v Value) string {
	if v.Value == nil {
		return "-"
	}
	u := units[o.Name]
	text := fmt.Sprintf(u.format, u.factor**v.Value)
	if v.Half != nil {
		text += " ± " + fmt.Sprintf(u.format, u.factor**v.Half)
	}
	return text + u.suffix
}
