package nftables

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format says how to print.
type Format struct {
	Handles   bool // as nft -a
	Stateless bool // as nft -s: without what has been counted
	Terse     bool // as nft -t: without the elements of sets
	Canonical bool // with one spelling of what versions of nft, its text and its JSON write in several ways
}

// printer collects text.
type printer struct {
	strings.Builder
	Format
	seconds, joined bool // as of the ruleset
	tabs            int
}

// WriteTo prints the ruleset as nft list ruleset does.
func (r *Ruleset) WriteTo(w io.Writer) (int64, error) { return r.Print(w, Format{}) }

// Print prints the ruleset in a format.
func (r *Ruleset) Print(w io.Writer, f Format) (int64, error) {
	p := &printer{Format: f, seconds: r.Seconds, joined: r.Joined}
	var written int64
	for _, t := range r.Tables {
		p.table(t)
		n, err := io.WriteString(w, p.String())
		written += int64(n)
		if err != nil {
			return written, err
		}
		p.Reset()
	}
	return written, nil
}

// String is the rule as nft prints it, without its handle.
func (r *Rule) String() string { return r.Format(Format{}) }

// Format is the rule in a format, without its handle.
func (r *Rule) Format(f Format) string {
	p := &printer{Format: f}
	p.rule(r)
	return p.String()
}

// Format is the element in a format.
func (e *Element) Format(f Format) string {
	p := &printer{Format: f}
	p.element(e)
	return p.String()
}

// Text is a statement or an expression as nft prints it.
func Text(of Expr) string {
	p := &printer{}
	of.print(p)
	return p.String()
}

// put appends strings, numbers, expressions and statements.
func (p *printer) put(parts ...interface{}) {
	for _, part := range parts {
		switch part := part.(type) {
		case string:
			p.WriteString(part)
		case uint64:
			p.WriteString(strconv.FormatUint(part, 10))
		case Expr:
			part.print(p)
		}
	}
}

// given appends an expression behind a text, if there is one.
func (p *printer) given(before string, e Expr) {
	if e != nil {
		p.put(before, e)
	}
}

// nonzero appends a number behind its name, if it is not 0.
func (p *printer) nonzero(name string, n uint64) {
	if n != 0 {
		p.put(name, n)
	}
}

func (p *printer) indent() {
	for range p.tabs {
		p.WriteByte('\t')
	}
}

func (p *printer) line(parts ...interface{}) {
	p.indent()
	p.put(parts...)
	p.WriteByte('\n')
}

// optional prints a line if it has a value.
func (p *printer) optional(name, value string) {
	if value != "" {
		p.line(name, value)
	}
}

func (p *printer) comment(text string) {
	if text != "" {
		p.line("comment ", quote(text))
	}
}

func quote(s string) string { return `"` + s + `"` }

// words prints a list without spaces.
func (p *printer) words(list []string) { p.put(strings.Join(list, ",")) }

func (p *printer) duration(d time.Duration) string {
	if p.seconds {
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	}
	return formatDuration(d)
}

// open prints the head of a block.
func (p *printer) open(kind, name string, handle uint64) {
	p.indent()
	p.put(kind, " ", name, " {")
	p.handle(handle)
	p.WriteByte('\n')
	p.tabs++
}

func (p *printer) handle(n uint64) {
	if p.Handles && n != 0 {
		p.put(" # handle ", n)
	}
}

func (p *printer) end() {
	p.tabs--
	p.line("}")
}

func (p *printer) table(t *Table) {
	if t.Warning != "" {
		p.line("# ", t.Warning)
	}
	p.open("table", string(t.Family)+" "+t.Name, t.Handle)
	if t.Flags != nil {
		p.line("flags ", strings.Join(t.Flags, ","))
	}
	p.comment(t.Comment)
	first := true
	blank := func() {
		if !first {
			p.WriteByte('\n')
		}
		first = false
	}
	for _, o := range t.Objects {
		blank()
		p.open(o.Kind, o.Name, o.Handle)
		p.comment(o.Comment)
		if o.Body != nil {
			o.Body.printBody(p)
		}
		p.end()
	}
	for _, s := range t.Sets {
		blank()
		p.set(s)
	}
	for _, f := range t.Flowtables {
		blank()
		p.flowtable(t.Family, f)
	}
	for _, c := range t.Chains {
		blank()
		p.chain(t.Family, c)
	}
	p.end()
}

func (p *printer) flowtable(family Family, f *Flowtable) {
	p.open("flowtable", f.Name, f.Handle)
	if f.Hook != "" {
		p.line("hook ", f.Hook, " priority ", formatPriority(family, f.Hook, f.Priority))
	}
	if f.Devices != nil {
		p.line("devices = ", deviceList(f.Devices))
	}
	if f.Flags != nil {
		p.line("flags ", strings.Join(f.Flags, ","))
	}
	if f.Counter {
		p.line("counter")
	}
	p.end()
}

func deviceList(devices []string) string {
	var all []string
	for _, d := range devices {
		all = append(all, quote(d))
	}
	return "{ " + strings.Join(all, ", ") + " }"
}

func (p *printer) chain(family Family, c *Chain) {
	p.open("chain", c.Name, c.Handle)
	p.comment(c.Comment)
	if b := c.Base; b != nil {
		p.indent()
		p.put("type ", b.Type, " hook ", b.Hook)
		switch {
		case len(b.Devices) == 1:
			p.put(" device ", quote(b.Devices[0]))
		case b.Devices != nil:
			p.put(" devices = ", deviceList(b.Devices))
		}
		priority := b.PriorityText
		if priority == "" {
			priority = formatPriority(family, b.Hook, b.Priority)
		}
		p.put(" priority ", priority, ";")
		if b.Policy != "" {
			p.put(" policy ", b.Policy, ";")
		}
		p.WriteByte('\n')
	}
	if c.Flags != nil {
		p.line("flags ", strings.Join(c.Flags, ","))
	}
	for _, r := range c.Rules {
		p.indent()
		p.rule(r)
		p.handle(r.Handle)
		p.WriteByte('\n')
	}
	p.end()
}

func (p *printer) rule(r *Rule) {
	p.statements("", r.Statements)
	if r.Comment != "" {
		p.put(" comment ", quote(r.Comment))
	}
}

// statements appends statements, the first behind a text.
func (p *printer) statements(before string, list []Statement) {
	for _, s := range list {
		p.put(before, s)
		before = " "
	}
}

func (p *printer) set(s *Set) {
	kind := "set"
	switch {
	case s.Meter:
		kind = "meter"
	case s.Map:
		kind = "map"
	}
	p.open(kind, s.Name, s.Handle)
	if s.Key.Of != nil || s.Key.Names != nil {
		p.keyTypes(s)
	}
	if s.Policy != "" {
		p.line("policy ", s.Policy)
	}
	if s.Size != 0 {
		p.indent()
		p.put("size ", s.Size)
		if s.Count != 0 {
			p.put("\t# count ", s.Count)
		}
		p.WriteByte('\n')
	}
	if s.Flags != nil && (s.Timeout == 0 || len(s.Flags) > 1) {
		p.line("flags ", strings.Join(s.Flags, ","))
	}
	if s.Timeout != 0 {
		p.line("timeout ", p.duration(s.Timeout))
	}
	if s.GCInterval != 0 {
		p.line("gc-interval ", p.duration(s.GCInterval))
	}
	if s.AutoMerge {
		p.line("auto-merge")
	}
	if s.Statements != nil {
		p.indent()
		p.statements("", s.Statements)
		p.put("\n")
	}
	p.comment(s.Comment)
	if s.Elements != nil && !p.Terse {
		p.indent()
		p.put("elements = {")
		p.elements(s.Elements, p.perLine(s))
		p.put(" }\n")
	}
	p.end()
}

func (p *printer) keyTypes(s *Set) {
	p.indent()
	if s.Key.Of != nil && !(p.Canonical && typesOf(s.Key.Of) != "") {
		p.put("typeof ")
	} else {
		p.put("type ")
	}
	p.setType(s.Key)
	if s.Map && (s.Value.Of != nil || s.Value.Names != nil) {
		p.put(" : ")
		if s.Value.Interval {
			p.put("interval ")
		}
		p.setType(s.Value)
	}
	p.WriteByte('\n')
}

func (p *printer) setType(t Type) {
	names := strings.Join(t.Names, " . ")
	if p.Canonical && t.Of != nil {
		names = typesOf(t.Of)
	}
	if t.Of != nil && names == "" {
		t.Of.print(p)
		return
	}
	p.put(names)
}

// typesOf are the types behind typeof; empty: they are not known, or not only of one size.
func typesOf(e Expr) string {
	parts, isConcat := e.(Concat)
	if !isConcat {
		parts = Concat{e}
	}
	var names []string
	for _, part := range parts {
		name := typeOf(part)
		if name == "" || name == "integer" {
			return ""
		}
		names = append(names, name)
	}
	return strings.Join(names, " . ")
}

// perLine is how many elements of a set nft prints in a line (nftables, src/expression.c, calculate_delim).
func (p *printer) perLine(s *Set) int {
	if !p.joined && s.apart() {
		return 1
	}
	name := ""
	switch {
	case s.Key.Of != nil:
		name = typeOf(s.Key.Of)
	case len(s.Key.Names) == 1:
		name = s.Key.Names[0]
	}
	switch name {
	case "nf_proto", "integer", "arp_op", "inet_proto", "inet_service", "tcp_flag", "dccp_pkttype", "mark", "iface_index", "classid", "uid", "gid", "ct_dir":
		return 5
	case "ipv4_addr", "ct_state", "ct_status", "pkt_type":
		return 2
	}
	return 1
}

// apart reports whether newer nft prints each element in a line of its own.
func (s *Set) apart() bool {
	return s.Map || slices.ContainsFunc(s.Elements, func(e Element) bool {
		return e.Timeout != 0 || e.Expires != 0 || e.Comment != "" || e.Statements != nil
	})
}

// elements prints elements from behind the opening brace; several lines if there are more than fit in one.
func (p *printer) elements(all []Element, perLine int) {
	for i := range all {
		switch {
		case i == 0:
			p.put(" ")
		case perLine > 0 && i%perLine == 0:
			p.put(",\n\t\t\t     ")
		default:
			p.put(", ")
		}
		p.element(&all[i])
	}
}

func (p *printer) element(e *Element) {
	e.Key.print(p)
	p.elementOptions(e)
	p.given(" : ", e.Value)
}

func (p *printer) elementOptions(e *Element) {
	p.statements(" ", e.Statements)
	if e.Timeout != 0 {
		p.put(" timeout ", p.duration(e.Timeout))
	}
	if e.Expires != 0 && !p.Stateless {
		p.put(" expires ", p.duration(e.Expires))
	}
	if e.Comment != "" {
		p.put(" comment ", quote(e.Comment))
	}
}
