package audit

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// WriteTable writes the services of one node as a text table, one line for each service port. Wide
// adds policies and the like, and lists all endpoints.
func WriteTable(w io.Writer, wide bool, nodes ...*Node) error {
	const none = "<none>"
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprint(t, "SERVICE\tTYPE\tCLUSTER-IP\tEXTERNAL-IP\tPORT(S)\tENDPOINTS")
	if wide {
		fmt.Fprint(t, "\tINTERNAL\tEXTERNAL\tAFFINITY\tSOURCE-RANGES\tCHAIN")
	}
	fmt.Fprintln(t)
	for _, n := range nodes {
		for _, s := range n.Services {
			columns := []string{
				s.Title(), s.Type(),
				cmp.Or(validText(s.ClusterIP), none), cmp.Or(joined(s.addresses()), none),
				s.ports(), s.endpoints(wide),
			}
			if wide {
				columns = append(columns, s.InternalPolicy.String(), s.externalPolicy(), cmp.Or(s.affinity(), none), cmp.Or(joined(s.SourceRanges), none), cmp.Or(s.chain(), none))
			}
			fmt.Fprintln(t, strings.Join(columns, "\t"))
		}
	}
	return t.Flush()
}

// validText is the text of an address or a prefix; empty: there is none.
func validText(v interface {
	fmt.Stringer
	IsValid() bool
}) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}

func texts[T fmt.Stringer](values []T) (words []string) {
	for _, v := range values {
		words = append(words, v.String())
	}
	return words
}

func joined[T fmt.Stringer](values []T) string { return strings.Join(texts(values), ",") }

// ports is "80:30080/TCP", as kubectl has it.
func (s *Service) ports() string {
	text := "?"
	if s.Port != 0 {
		text = fmt.Sprint(s.Port)
	}
	switch {
	case s.NodePort != 0:
		text += fmt.Sprintf(":%d", s.NodePort)
	case s.hiddenNodePort:
		text += ":?"
	}
	return text + "/" + s.Protocol.String()
}

// fewEndpoints is how many are listed in a narrow column.
const fewEndpoints = 3

// endpoints lists them with their shares; all of them also with where they are.
func (s *Service) endpoints(all bool) string {
	var words []string
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if more := len(s.Endpoints) - i; !all && i == fewEndpoints && more > 1 {
			words = append(words, fmt.Sprintf("%d more", more))
			break
		}
		var notes facts
		notes.add(e.shares() != "all flows", "%s", e.shares())
		notes.add(all && e.Locality == OnThisNode, "here")
		text := e.place()
		if len(notes) > 0 {
			text += " (" + strings.Join(notes, ", ") + ")"
		}
		words = append(words, text)
	}
	if s.Dropped {
		words = append(words, "none on this node (dropped under policy Local)")
	}
	switch {
	case s.Refused && len(words) == 0:
		return "none (refused)"
	case len(words) == 0:
		return "none in the file"
	}
	return strings.Join(words, ", ")
}

func (s *Service) externalPolicy() string {
	if !s.External() && s.HealthCheckNodePort == 0 {
		return "<none>"
	}
	return s.ExternalPolicy.String()
}

func (s *Service) affinity() string { return affinityText(s.AffinitySeconds) }

func affinityText(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf("ClientIP %ds", seconds)
}

func (s *Service) chain() string {
	if s.suffix == "" {
		return ""
	}
	return s.chainKind + s.suffix
}

// String returns the configuration in one line.
func (p *Proxy) String() string {
	text := "kube-proxy"
	if p.Version != "" {
		text += " " + p.Version
	}
	if p.mode == proxymode.ModeNFTables {
		text += " in nftables mode"
	}
	var all facts
	add := all.add
	add(p.PodCIDR.IsValid(), "pods are %s", p.PodCIDR)
	add(p.Bridge != "", "pods are behind %s", p.Bridge)
	add(p.InterfacePrefix != "", "pods are behind %s+", p.InterfacePrefix)
	add(p.NodePodCIDR.IsValid() && len(all) > 0, "those of this node %s", p.NodePodCIDR)
	add(p.NodePodCIDR.IsValid() && len(all) == 0, "pods of this node are %s", p.NodePodCIDR)
	add(p.MasqueradeAll, "all ClusterIP flows are masqueraded")
	add(p.MasqueradeMark != 0, "masquerade mark %#x", p.MasqueradeMark)
	add(!p.LocalhostNodePorts && len(p.NodePortAddresses) == 0, "no node ports on 127.0.0.1")
	add(p.NFAcct, "nfacct counters")
	add(p.PassesInvalid, "INVALID packets pass")
	add(len(p.ServiceCIDRs) > 0, "cluster IPs are in %s", joined(p.ServiceCIDRs))
	add(len(p.NodePortAddresses) > 0, "node ports on %s only", joined(p.NodePortAddresses))
	if len(all) == 0 {
		return text
	}
	return text + "; " + strings.Join(all, ", ")
}

// facts collects what is so.
type facts []string

func (f *facts) add(is bool, format string, args ...any) {
	if is {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

// WriteText writes the comparison as text: one sign in front of each line, as diff does.
func (c *Comparison) WriteText(w io.Writer) error {
	t := &printer{w: w}
	if len(c.Services) > 0 {
		t.section("Services")
	}
	for i := range c.Services {
		t.service(&c.Services[i])
	}
	if len(c.Servers) > 0 {
		t.section("Virtual servers")
	}
	for _, v := range c.Servers {
		t.line("  %s %s", changeSigns[v.Change], v.Server)
		t.details("      ", v.Details)
	}
	if len(c.Proxy) > 0 {
		t.section("Configuration of the proxy")
		t.details("  ", c.Proxy)
	}
	for i := range c.Tables {
		t.table(&c.Tables[i])
	}
	switch {
	case c.Reordered > 0 && c.Same():
		t.line("No difference, except for the order of services' rules (%d moved), which has no effect (--all shows it).", c.Reordered)
	case c.Same():
		t.line("No difference.")
	}
	if len(c.Notes) > 0 {
		t.section("Not compared")
	}
	for _, n := range c.Notes {
		t.line("  %s", n)
	}
	return t.err
}

// WriteServices writes the changes of services, as WriteText does.
func (c *Comparison) WriteServices(w io.Writer) error {
	t := &printer{w: w}
	for i := range c.Services {
		t.service(&c.Services[i])
	}
	return t.err
}

// printer writes lines until there is an error.
type printer struct {
	w     io.Writer
	begun bool
	err   error
}

func (t *printer) line(format string, args ...any) {
	t.begun = true
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format+"\n", args...)
	}
}

// section begins one, after a blank line.
func (t *printer) section(title string) {
	if t.begun {
		t.line("")
	}
	t.line("%s", title)
}

// changeSigns stand in front of what changed.
var changeSigns = map[Change]string{Added: "+", Removed: "-", Changed: "~"}

func (t *printer) service(c *ServiceChange) {
	s := c.Service()
	head := s.Title()
	if s.Name != (decision.ServicePortName{}) && s.ClusterIP.IsValid() {
		head += "  " + s.ClusterIP.String() + " " + s.ports()
	}
	t.line("  %s %s", changeSigns[c.Change()], head)
	switch c.Change() {
	case Changed:
		t.details("      ", c.Details)
	case Added:
		for _, p := range s.properties() {
			t.line("      %s", p)
		}
		t.line("      endpoints %s", s.endpoints(true))
	}
}

// properties returns the service's properties besides its ClusterIP and endpoints.
func (s *Service) properties() (all facts) {
	add := all.add
	add(s.NodePort != 0, "node port %d", s.NodePort)
	add(len(s.ExternalIPs) > 0, "external IP %s", joined(s.ExternalIPs))
	add(len(s.LoadBalancerIPs) > 0, "load balancer IP %s", joined(s.LoadBalancerIPs))
	add(len(s.SourceRanges) > 0, "source ranges %s", joined(s.SourceRanges))
	add(s.InternalPolicy == decision.Local, "internal traffic policy Local")
	add(s.ExternalPolicy == decision.Local, "external traffic policy Local")
	add(s.AffinitySeconds != 0, "session affinity %s", s.affinity())
	add(s.HealthCheckNodePort != 0, "health check node port %d", s.HealthCheckNodePort)
	return all
}

func (t *printer) details(indent string, all []Detail) {
	for _, d := range all {
		t.line("%s%s %s", indent, changeSigns[d.Change], d.Text)
	}
}

func (t *printer) table(d *TableChange) {
	title := "Table " + d.Name
	if d.Change != Changed {
		title += fmt.Sprintf(" (%s)", d.Change)
	}
	t.section(title)
	width := 0
	for _, c := range d.Chains {
		for _, r := range c.Rules {
			width = max(width, len(fmt.Sprint(max(r.LineBefore, r.LineAfter))))
		}
	}
	for i := range d.Chains {
		t.chain(&d.Chains[i], width)
	}
}

func (t *printer) chain(c *ChainChange, width int) {
	switch {
	case c.PolicyBefore != c.PolicyAfter:
		t.line("  ~ %s: policy %s -> %s", c.Name, c.PolicyBefore, c.PolicyAfter)
	case c.Change == Changed:
		t.line("    %s", c.Name)
	default:
		t.line("  %s %s", changeSigns[c.Change], c.Name)
	}
	for _, r := range c.Rules {
		switch r.Change {
		case Moved:
			t.line("      > %*d  %s (was line %d)", width, r.LineAfter, r.Rule, r.LineBefore)
		case Removed:
			t.line("      - %*d  %s", width, r.LineBefore, r.Rule)
		default:
			t.line("      + %*d  %s", width, r.LineAfter, r.Rule)
		}
	}
}
