package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// addPart puts the chains and rules of a part into their table.
func (l *lister) addPart(p *part) {
	if len(p.chains) == 0 || BuiltinChains(p.table) == nil {
		return
	}
	t := l.dump.Table(p.table)
	if t == nil {
		t = &Table{Name: p.table, Line: p.chains[0].Line}
		l.dump.Tables = append(l.dump.Tables, t)
	}
	declared := l.declared[p.table]
	if declared == nil {
		declared = make(map[string]*Chain)
		l.declared[p.table] = declared
	}
	for _, c := range p.chains {
		l.number = c.Line
		if old := declared[c.Name]; old != nil {
			l.fail(c.column, fmt.Sprintf("chain %s of table %s is listed already, at line %d", c.Name, t.Name, old.Line),
				`each chain once; if it is another table's, a line like "# iptables -t filter -L" above it`)
			continue
		}
		switch builtin := Builtin(t.Name, c.Name); {
		case builtin && c.Policy == PolicyNone:
			l.fail(c.column, fmt.Sprintf("the built-in chain %s of table %s has no policy", c.Name, t.Name), `"(policy ACCEPT)" behind its name`)
		case !builtin && c.Policy != PolicyNone:
			l.fail(c.column, fmt.Sprintf("chain %s has a policy, but table %s has no such built-in chain", c.Name, t.Name), p.otherTable())
		}
		t.Chains, declared[c.Name] = append(t.Chains, &c.Chain), &c.Chain
		c.Open = p.command.part
		for i, row := range c.rows {
			l.addRule(t, c, row)
			if r := t.Rules[len(t.Rules)-1]; !c.columns.interfaces && c.hidesInterface(r, i == len(c.rows)-1) {
				r.Matches = append(r.Matches, UnknownMatch{Match: notListed, Args: []Token{Text("not listed")}})
				r.SetArgs(Tokens(r.Matches, r.Target))
			}
		}
	}
}

// otherTable returns the remedy for a chain that the part's table does not have.
func (p *part) otherTable() string {
	if p.command.line == 0 {
		return `a line like "# iptables -t mangle -L" above the listing`
	}
	return fmt.Sprintf("the command line of this listing above it; that in line %d is for table %s", p.command.line, p.table)
}

// notListed is the name of a match for the interfaces of a rule, which a listing without -v lacks.
const notListed = "interfaces"

// hidesInterface reports whether a rule without a condition has one: without it, the rules behind it or the chain's policy would have
// no effect, or Docker, libvirt or Cilium writes the rule, always for an interface. Only the last rule of iptables-services, which rejects all,
// is often followed by rules that other programs append.
func (c *listedChain) hidesInterface(r *Rule, last bool) bool {
	if slices.ContainsFunc(r.Matches, func(m Match) bool { return m.module() != "comment" }) {
		return false
	}
	switch t := r.Target.(type) {
	case Verdict, Reject, Goto:
		if t == (Reject{"icmp-host-prohibited"}) || t == (Reject{"icmp6-adm-prohibited"}) {
			return false
		}
		return !last || r.Target == Accept && c.Policy == PolicyDrop || strings.HasPrefix(c.Name, "LIBVIRT_") || c.Name == "CILIUM_FORWARD"
	case Jump:
		return c.Name == "DOCKER-ISOLATION-STAGE-1"
	}
	return false
}

func (l *lister) addRule(t *Table, c *listedChain, row *row) {
	w := wording{family: l.dump.Family, row: row}
	args, fault := w.translate()
	r := &Rule{Line: row.line, Chain: c.Name, Counters: row.counters}
	t.Rules = append(t.Rules, r)
	if w.names {
		l.note("names", row.line, "listed without -n: names of services and networks are read as the usual numbers (http is 80)")
	}
	for kind, text := range w.notes {
		l.note(kind, row.line, "%s", text)
	}
	declared := map[string]bool{}
	if chain := row.target.Text; chain != "" && targets[chain] == nil && !isOtherTarget(chain) {
		if fault := chainNameFault(chain); fault != "" {
			l.errors.add(row.line, &Error{Column: row.target.Column, Problem: fault, Want: "a target or a chain"})
			return
		}
		declared[chain] = true
	}
	// A chain may have a target's name: iptables uses the chain then.
	if chain := row.target.Text; l.listed(t.Name, chain) {
		declared[chain] = true
	}
	lost, e := r.Interpret(args, l.dump.Family, t.Name, declared)
	if fault = cmp.Or(fault, e); fault != nil {
		l.addUnread(t, r, row, fault, declared[row.target.Text])
		return
	}
	for _, text := range lost {
		l.note(text, row.line, "%s", text)
	}
	if w.unprinted != nil {
		r.Target = *w.unprinted
	}
	r.SetArgs(Tokens(r.Matches, r.Target))
}

// addUnread is for a rule that cannot be read.
func (l *lister) addUnread(t *Table, r *Rule, row *row, fault *Error, jumps bool) {
	if !l.mend {
		l.errors.add(row.line, fault)
		return
	}
	r.Matches, r.Target = []Match{UnknownMatch{Match: Unreadable, Args: row.rest}}, UnknownTarget{Target: row.target.Text}
	what := fmt.Sprintf("what it does (%s)", row.target.Text)
	if jumps {
		r.Target, what = Jump{row.target.Text}, "whether it matches"
	}
	l.dump.Notes = append(l.dump.Notes, Note{row.line, fmt.Sprintf("%s: the rule of chain %s of table %s is kept, but %s is not known", fault.Problem, r.Chain, t.Name, what)})
	r.SetArgs(Tokens(r.Matches, r.Target))
}

// listed reports whether any part lists a chain of the table.
func (l *lister) listed(table, chain string) bool {
	return l.chains[tableChain{table, chain}]
}

// IsChainName reports whether a word behind -j can only be the name of a chain, because there is no such target.
func IsChainName(word string) bool {
	return targets[word] == nil && !isOtherTarget(word) && chainNameFault(word) == ""
}

// chainNameFault returns the reason why a chain cannot have that name; empty: it can.
func chainNameFault(name string) string {
	switch {
	case len(name) > maxChainName:
		return fmt.Sprintf("the chain's name %.40q is too long: it has %d of at most %d characters", name, len(name), maxChainName)
	case name == "", strings.Contains(name, `"`), strings.ContainsAny(name[:1], "-!"):
		return fmt.Sprintf("%.40q cannot be the name of a chain", name)
	}
	return ""
}

// NoteUnlisted adds to the listing what the text does not have: chains, built-in ones, whole tables. It sorts its notes by line.
func (d *Dump) NoteUnlisted() {
	note := func(line int, format string, args ...any) {
		d.Listing.Incomplete = append(d.Listing.Incomplete, Note{line, fmt.Sprintf(format, args...)})
	}
	missing := slices.DeleteFunc(TableNames(), func(name string) bool {
		return d.Table(name) != nil || slices.Contains(d.Listing.Empty, name) || slices.Contains(d.Listing.Hidden, name)
	})
	open := 0
	for _, t := range d.Tables {
		builtins := BuiltinChains(t.Name)
		seen := make(map[string]bool)
		for _, c := range t.Chains {
			builtins = slices.DeleteFunc(builtins, func(name string) bool { return name == c.Name })
			seen[c.Name] = true
			if c.Open {
				open++
			}
		}
		var jumped []string
		line := 0
		for _, r := range t.Rules {
			if chain := r.JumpsTo(); chain != "" && !seen[chain] {
				seen[chain] = true
				jumped = append(jumped, chain)
				line = cmp.Or(line, r.Line)
			}
		}
		if len(jumped) > 0 {
			note(line, "table %s: rules jump to chains that are not listed: %s", t.Name, quantity.Some(jumped, mostListed))
		}
		if len(builtins) > 0 {
			note(t.Line, "table %s: built-in chains are not listed: %s", t.Name, quantity.Some(builtins, mostListed))
		}
	}
	if len(missing) > 0 {
		note(0, "tables are not listed: %s", quantity.Some(missing, mostListed))
	}
	if open > 0 {
		note(0, "%s may have rules that are not in the text", quantity.Count(open, "listed chain"))
	}
	slices.SortStableFunc(d.Listing.Incomplete, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
}

// mostListed is how many names a note lists.
const mostListed = 8

// guessTables finds the tables of parts without a command line. Then the listed chains are known.
func (l *lister) guessTables() {
	for _, p := range l.parts {
		if p.table == "" && len(p.chains) > 0 {
			why := ""
			p.table, why = p.guess()
			line := p.chains[0].Line
			l.note(fmt.Sprintf("table %d", line), line,
				"no command line names the table: assuming %s, %s; if that is wrong, put a line like \"# iptables -t mangle -L\" above it", p.table, why)
		}
		for name := range p.names {
			l.chains[tableChain{p.table, name}] = true
		}
	}
}

// TargetTable is the only table that may have a target; empty: all may, or there is no such target.
func TargetTable(name string) string {
	if t := targets[name]; t != nil {
		return t.table
	}
	return otherTargets[name]
}

// chainsOf are prefixes of the chains that programs make in one table only.
var chainsOf = []struct{ prefix, table string }{
	{"KUBE-SVC-", "nat"}, {"KUBE-SVL-", "nat"}, {"KUBE-SEP-", "nat"}, {"KUBE-EXT-", "nat"}, {"KUBE-XLB-", "nat"},
	{"KUBE-FW-", "nat"}, {"KUBE-MARK-", "nat"}, {"KUBE-POSTROUTING", "nat"}, {"KUBE-PORTALS-", "nat"}, {"KUBE-NODEPORT-", "nat"},
	{"KUBE-LOAD-BALANCER", "nat"}, {"KUBE-LB", "nat"}, {"KUBE-HOSTPORTS", "nat"}, {"KUBE-HP-", "nat"},
	{"KUBE-EXTERNAL-SERVICES", "filter"}, {"KUBE-FORWARD", "filter"}, {"KUBE-FIREWALL", "filter"},
	{"KUBE-PROXY-FIREWALL", "filter"}, {"KUBE-IPVS-", "filter"}, {"KUBE-SOURCE-RANGES-FIREWALL", "filter"}, {"KUBE-NODE-PORT", "filter"},
	{"KUBE-ROUTER-INPUT", "filter"}, {"KUBE-ROUTER-FORWARD", "filter"}, {"KUBE-ROUTER-OUTPUT", "filter"}, {"KUBE-ROUTER-SERVICES", "filter"},
	{"KUBE-POD-FW-", "filter"}, {"KUBE-NWPLCY-", "filter"},
	{"DOCKER-", "filter"}, {"CNI-HOSTPORT-", "nat"}, {"CNI-DN-", "nat"}, {"CNI-SN-", "nat"}, {"CNI-FORWARD", "filter"}, {"CNI-ADMIN", "filter"},
	{"CNI-ISOLATION-", "filter"}, {"NETAVARK-HOSTPORT-", "nat"}, {"NETAVARK-DN-", "nat"}, {"NETAVARK_", "filter"},
	{"WEAVE-NPC", "filter"}, {"WEAVE-EXPOSE", "filter"}, {"WEAVE-CANARY", "mangle"},
	{"FLANNEL-FWD", "filter"}, {"FLANNEL-POSTRTG", "nat"}, {"IP-MASQ", "nat"}, {"KIND-MASQ-AGENT", "nat"}, {"AWS-SNAT-CHAIN-", "nat"},
	{"cali-fw-", "filter"}, {"cali-tw-", "filter"}, {"cali-pi-", "filter"}, {"cali-po-", "filter"}, {"cali-pri-", "filter"}, {"cali-pro-", "filter"},
	{"cali-nat-outgoing", "nat"}, {"cali-fip-", "nat"}, {"cali-FORWARD", "filter"}, {"cali-INPUT", "filter"},
	{"CILIUM_POST_nat", "nat"}, {"CILIUM_PRE_nat", "nat"}, {"CILIUM_OUTPUT_nat", "nat"}, {"CILIUM_PRE_mangle", "mangle"}, {"CILIUM_POST_mangle", "mangle"},
	{"CILIUM_PRE_raw", "raw"}, {"CILIUM_OUTPUT_raw", "raw"}, {"CILIUM_FORWARD", "filter"}, {"CILIUM_INPUT", "filter"}, {"CILIUM_OUTPUT", "filter"},
	{"ISTIO_", "nat"}, {"OPENSHIFT-MASQUERADE", "nat"}, {"OPENSHIFT-FIREWALL-", "filter"}, {"OPENSHIFT-ADMIN-", "filter"}, {"OPENSHIFT-BLOCK-", "filter"},
	{"LIBVIRT_PRT", "nat"}, {"LIBVIRT_FW", "filter"}, {"ufw", "filter"}, {"f2b-", "filter"}, {"fail2ban-", "filter"},
}

// guess returns the table and the reason for it.
func (p *part) guess() (table, why string) {
	for _, c := range p.chains {
		for _, r := range c.rows {
			if table := TargetTable(r.target.Text); table != "" {
				return table, fmt.Sprintf("the only one that may have the target %s (line %d)", r.target.Text, r.line)
			}
		}
	}
	builtins := p.builtins()
	order := []string{"filter", "nat", "mangle", "raw"}
	for _, table := range order {
		all := BuiltinChains(table)
		slices.Sort(all)
		if slices.Equal(all, builtins) {
			return table, "the one with the built-in chains " + strings.Join(builtins, ", ")
		}
	}
	for _, c := range p.chains {
		if table := UsualTable(c.Name); table != "" {
			return table, "the one where chain " + c.Name + " is usual"
		}
		for _, r := range c.rows {
			if table := UsualTable(r.target.Text); table != "" {
				return table, "the one where chain " + r.target.Text + " is usual"
			}
		}
	}
	for _, table := range order {
		if !slices.ContainsFunc(builtins, func(name string) bool { return !Builtin(table, name) }) {
			return table, "the most usual one"
		}
	}
	return order[0], "the most usual one"
}

// UsualTable is the table in which the programs that write such a chain have it; empty: the name is of no known program.
func UsualTable(chain string) string {
	for _, c := range chainsOf {
		if strings.HasPrefix(chain, c.prefix) {
			return c.table
		}
	}
	return ""
}
