package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// Match is one condition of a rule: one of the structs of this package with a method module.
type Match interface {
	module() string
	write(*words)
	// test evaluates it for a packet: see [Context.Evaluate]. The facts that a match depends on are
	// its reads, if any: see [Facts].
	test(*Context) Truth
}

// Target is the target of a rule: one of the structs of this package with a method name.
type Target interface {
	name() string
	write(*words)
}

// ModuleOf is the name after -m; "" for the generic matches (-s, -d, -i, -o, -p, -f).
func ModuleOf(m Match) string { return m.module() }

// NameOf is the name after -j or -g.
func NameOf(t Target) string { return t.name() }

// Tokens are the words of a rule as iptables-save prints them; target may be nil. For the text of
// iptables-save, the generic matches must come first, in the order -s, -d, -i, -o, -p, -f.
func Tokens(matches []Match, target Target) []Token {
	w := words{}
	for _, m := range matches {
		if m.module() != "" {
			w.bare("-m", m.module())
		}
		m.write(&w)
	}
	if target != nil {
		if g, ok := target.(Goto); ok {
			w.bare("-g", g.Chain)
		} else {
			w.bare("-j", target.name())
		}
		target.write(&w)
	}
	return w.tokens
}

// Describe is a match as iptables-save prints it.
func Describe(m Match) string {
	if n, ok := m.(NativeMatch); ok {
		return n.Text()
	}
	var words []string
	for _, t := range Tokens([]Match{m}, nil) {
		words = append(words, t.String())
	}
	return strings.Join(words, " ")
}

// words collects the text of matches and targets.
type words struct{ tokens []Token }

func (w *words) bare(text ...string) {
	for _, t := range text {
		w.tokens = append(w.tokens, Word(t))
	}
}

func (w *words) option(negated bool, name string, values ...string) {
	if negated {
		w.bare("!")
	}
	w.bare(name)
	w.bare(values...)
}

// flag is an option without a value, written if it is set.
func (w *words) flag(set bool, name string) {
	if set {
		w.bare(name)
	}
}

func (w *words) text(name, value string) {
	w.bare(name)
	w.tokens = append(w.tokens, Text(value))
}

// shape is the form of a module's option.
type shape struct {
	values    int
	negatable bool
	repeats   bool   // it may be repeated
	as        string // the name it has in iptables-save's output, if this is another
}

var (
	flag    = shape{}
	notFlag = shape{negatable: true}
	one     = shape{values: 1}
	notOne  = shape{values: 1, negatable: true}
	two     = shape{values: 2}
	notTwo  = shape{values: 2, negatable: true}

	repeated = shape{repeats: true}
)

// again is the shape of an option that may be repeated.
func (s shape) again() shape {
	s.repeats = true
	return s
}

func (s shape) named(name string) shape {
	s.as = name
	return s
}

// option is one option of a rule.
type option struct {
	name    Token // its Text is the name that iptables-save prints
	negated bool
	values  []Token
}

// analysis finds the matches and the target of one rule.
type analysis struct {
	family   Family
	table    string // empty: not known
	chain    string
	declared map[string]bool // the table's chains

	args     []Token
	at       int
	sections []*section // in the order of the text
	current  *section   // the section that unknown options belong to; nil: none
	generic  section
	jump     option
	// lost names the matches and targets whose options are not known, though they ought to be.
	lost []string
	// foreign is set for a rule of the other family, which iptables-restore leaves out.
	foreign bool
}

func (a *analysis) fail(t Token, problem, want string) *Error {
	return &Error{Column: t.Column, Problem: problem, Want: want}
}

// genericShapes are the options that need no module (xshared.c, and iptables.c).
var genericShapes = map[string]shape{
	"-s": notOne, "--source": notOne.named("-s"), "--src": notOne.named("-s"),
	"-d": notOne, "--destination": notOne.named("-d"), "--dst": notOne.named("-d"),
	"-i": notOne, "--in-interface": notOne.named("-i"),
	"-o": notOne, "--out-interface": notOne.named("-o"),
	"-p": notOne, "--protocol": notOne.named("-p"), "--proto": notOne.named("-p"),
	"-f": notFlag, "--fragment": notFlag.named("-f"),
	"-m": one, "--match": one.named("-m"),
	"-j": one, "--jump": one.named("-j"),
	"-g": one, "--goto": one.named("-g"),
	"-c": two, "--set-counters": two.named("-c"),
	"-4": flag, "--ipv4": flag.named("-4"), "-6": flag, "--ipv6": flag.named("-6"),
}

// analyse fills in r.Matches and r.Target from the words of the rule. What it returns and sets is that of this rule: an
// analysis is used again for the next one, with the memory of its sections.
func (a *analysis) analyse(r *Rule, args []Token) *Error {
	a.args, a.at, a.current, a.jump, a.chain = args, 0, nil, option{}, r.Chain
	a.sections, a.lost, a.foreign = a.sections[:0], nil, false
	a.generic = section{family: a.family, options: a.generic.options[:0]}
	for a.at < len(a.args) {
		if e := a.next(); e != nil {
			return e
		}
	}
	return a.build(r)
}

// Interpret sets the matches and the target of the rule to what some words mean in a table, whose chains are declared; the table may
// be empty if it is not known. lost says which matches and targets are printed without options that they need.
func (r *Rule) Interpret(words []Token, family Family, table string, declared map[string]bool) (lost []string, fault *Error) {
	a := analysis{family: family, table: table, declared: declared}
	fault = a.analyse(r, words)
	return a.lost, fault
}

// next reads one option.
func (a *analysis) next() *Error {
	first, negated := a.args[a.at], false
	if first.Is("!") && a.at+1 < len(a.args) {
		negated = true
		a.at++
	}
	name := a.args[a.at]
	shape, owner := a.owner(name)
	if owner == nil && (a.unfold(name) || a.imply(name)) {
		a.unfold(a.args[a.at])
		name = a.args[a.at]
		shape, owner = a.owner(name)
	}
	if owner == nil && a.unsupported(name) {
		return nil
	}
	if owner == nil {
		if a.current != nil && a.current.module == nil && a.current.target == nil {
			a.keepUnknown(first)
			return nil
		}
		return a.stray(name)
	}
	if negated && !shape.negatable {
		return a.fail(first, fmt.Sprintf("%s cannot be negated", name.Text), "no ! in front of it")
	}
	o := option{name: name, negated: negated}
	if shape.as != "" {
		o.name.Text = shape.as
	}
	a.at++
	// iptables before 1.4.3 prints the "!" behind the option.
	if shape.negatable && shape.values > 0 && !negated && len(a.args)-a.at > shape.values && a.args[a.at].Is("!") {
		o.negated = true
		a.at++
	}
	if len(a.args)-a.at < shape.values {
		return a.fail(name, fmt.Sprintf("%s at the end of the rule", name.Text), fmt.Sprintf("%d values behind it", shape.values))
	}
	o.values = a.args[a.at : a.at+shape.values]
	a.at += shape.values
	if owner == &a.generic {
		switch o.name.Text {
		case "-m":
			return a.load(o)
		case "-j", "-g":
			return a.loadTarget(o)
		}
	}
	if _, twice := owner.find(o.name.Text); twice && !shape.repeats {
		return a.fail(name, fmt.Sprintf("%s is given a second time", name.Text), "each option once")
	}
	owner.options = append(owner.options, o)
	return nil
}

// owner returns the part of the rule that an option belongs to, nil if there is none: of the
// modules loaded so far the last with an option of that name, as in iptables.
func (a *analysis) owner(name Token) (shape, *section) {
	if name.Quoted {
		return shape{}, nil
	}
	unknown := a.current != nil && a.current.unknown()
	// A module's own option comes before a long generic one: -m policy --proto esp.
	if a.current != nil && strings.HasPrefix(name.Text, "--") {
		if s, ok := a.current.shapes()[name.Text]; ok {
			return s, a.current
		}
	}
	if s, ok := genericShapes[name.Text]; ok {
		// iptables-save prints the short names, and modules have options with the long
		// ones: -m policy --proto esp.
		if !unknown || !strings.HasPrefix(name.Text, "--") || name.Is("--match", "--jump", "--goto") {
			return s, &a.generic
		}
	}
	if unknown {
		return shape{}, nil
	}
	for _, s := range slices.Backward(a.sections) {
		if s.unknown() {
			continue
		}
		if shape, ok := s.shapes()[name.Text]; ok {
			return shape, s
		}
	}
	return shape{}, nil
}

// imply loads the protocol's own module for its option, which "-p tcp --dport 80" needs (xshared.c,
// load_proto).
func (a *analysis) imply(name Token) bool {
	if name.Quoted || a.current != nil && a.current.unknown() {
		return false
	}
	text, _, _ := strings.Cut(name.Text, "=")
	for _, m := range a.implied() {
		for option := range m.shapes {
			if strings.HasPrefix(text, "--") && len(text) > 2 && strings.HasPrefix(option, text) {
				a.add(section{family: a.family, name: Token{Text: m.name, Column: name.Column}, module: m})
				return true
			}
		}
	}
	return false
}

// implied are the modules of the rule's protocol that are not loaded yet.
func (a *analysis) implied() (all []*module) {
	p, ok := a.generic.find("-p")
	if !ok || p.negated {
		return nil
	}
	number, _ := ParseProtocol(p.values[0].Text)
	for _, m := range modules {
		if m.implied != 0 && m.implied == number && m.allows(a.family) && !a.loaded(m) {
			all = append(all, m)
		}
	}
	return all
}

func (a *analysis) loaded(m *module) bool {
	return slices.ContainsFunc(a.sections, func(s *section) bool { return s.module == m })
}

func (a *analysis) add(s section) {
	if n := len(a.sections); n < cap(a.sections) {
		a.sections = a.sections[:n+1]
	} else {
		a.sections = append(a.sections, nil)
	}
	last := &a.sections[len(a.sections)-1]
	if *last == nil {
		*last = new(section)
	}
	s.options = (*last).options[:0]
	**last = s
	a.current = *last
}

func (a *analysis) load(o option) *Error {
	name := o.values[0]
	if name.Text == "" {
		return a.fail(name, "-m without a module", "its name")
	}
	s := section{family: a.family, name: name}
	if m, ok := modules[name.Text]; ok {
		if !m.allows(a.family) {
			return a.fail(name, fmt.Sprintf("module %s is not for %s", name.Text, a.family), m.family.String()+" rules, or another module")
		}
		s.module = m
	}
	a.add(s)
	return nil
}

// loadTarget takes -j or -g.
func (a *analysis) loadTarget(o option) *Error {
	name := o.values[0]
	if a.jump.name.Text != "" {
		return a.fail(o.name, "a second target", "one -j or -g")
	}
	a.jump = o
	missing := func() *Error {
		return a.fail(name, fmt.Sprintf("table %s has no chain %.40q", a.table, name.Text), fmt.Sprintf("a chain of the table, declared by \":%.40s - [0:0]\"", name.Text))
	}
	s := section{family: a.family, name: name, isTarget: true}
	switch t, ok := targets[name.Text]; {
	case Builtin(a.table, name.Text):
		return a.fail(name, fmt.Sprintf("%s is a built-in chain, which no rule can jump to", name.Text), "a chain of your own, or a target")
	case a.declared[name.Text]:
		s.target = chainTarget
		if o.name.Text == "-g" {
			s.target = gotoTarget
		}
	case o.name.Text == "-g":
		return missing()
	case ok:
		if !t.allows(a.family) {
			return a.fail(name, fmt.Sprintf("target %s is not for %s", name.Text, a.family), t.family.String()+" rules, or another target")
		}
		if t.table != "" && a.table != "" && t.table != a.table {
			return a.fail(name, fmt.Sprintf("the kernel has no target %s in table %s", name.Text, a.table), "the rule in table "+t.table)
		}
		if t.chains != nil && Builtin(a.table, a.chain) && !slices.Contains(t.chains, a.chain) {
			return a.fail(name, fmt.Sprintf("the kernel has no target %s in chain %s", name.Text, a.chain), "the rule in chain "+strings.Join(t.chains, " or "))
		}
		s.target = t
	// A word that is no target's name and has no options must be a chain.
	case !isOtherTarget(name.Text) && (a.at == len(a.args) || !strings.HasPrefix(a.args[a.at].Text, "--") && !strings.HasPrefix(a.args[a.at].Text, "[unsupported")):
		return missing()
	}
	a.add(s)
	return nil
}

// unsupported reads "[unsupported revision]", which iptables prints in place of the options that a
// newer one wrote (iptables.c, unsupported_rev).
func (a *analysis) unsupported(first Token) bool {
	if a.current == nil || first.Quoted || !strings.HasPrefix(first.Text, "[unsupported") {
		return false
	}
	for i, t := range a.args[a.at:] {
		if strings.HasSuffix(t.Text, "]") {
			words := a.args[a.at : a.at+i+1]
			a.current.kept = append(a.current.kept, words...)
			a.current.lose("is printed as " + joined(words))
			a.at += i + 1
			return true
		}
	}
	return false
}

// keepUnknown adds a word to the unknown module or target before it; first is the "!" in front of
// it, or the word itself.
func (a *analysis) keepUnknown(first Token) {
	if first != a.args[a.at] {
		a.current.kept = append(a.current.kept, first)
	}
	a.current.kept = append(a.current.kept, a.args[a.at])
	a.at++
}

// stray is the fault of an unknown word.
func (a *analysis) stray(name Token) *Error {
	if name.Quoted || !strings.HasPrefix(name.Text, "-") {
		return a.fail(name, fmt.Sprintf("a stray word %.40q", name.Text), "an option")
	}
	var owners []string
	for _, m := range modules {
		if _, ok := m.shapes[name.Text]; ok && m.allows(a.family) {
			owners = append(owners, "-m "+m.name)
		}
	}
	for _, t := range targets {
		if _, ok := t.shapes[name.Text]; ok && t.allows(a.family) {
			owners = append(owners, "-j "+t.name)
		}
	}
	slices.Sort(owners)
	switch {
	case len(owners) > 0:
		return a.fail(name, fmt.Sprintf("option %s of a module that was not loaded", name.Text), strings.Join(owners, " or ")+" before it")
	case a.current != nil:
		return a.fail(name, fmt.Sprintf("%s has no option %.40s", a.current.name.Text, name.Text), "one of "+strings.Join(a.current.known(), ", "))
	}
	return a.fail(name, fmt.Sprintf("unknown option %.40s", name.Text), "an option of iptables, or -m in front of it")
}

// build makes the matches and the target when all options are known.
func (a *analysis) build(r *Rule) *Error {
	if o, ok := a.generic.find("-c"); ok { // iptables -S -v has them among the options
		r.Counters = &Counters{value(&a.generic, o.values[0], anyUint64), value(&a.generic, o.values[1], anyUint64)}
	}
	if a.generic.has("-6") && a.family == IPv4 || a.generic.has("-4") && a.family == IPv6 {
		a.foreign = true
		return nil
	}
	matches := a.generic.buildGeneric()
	if a.generic.err != nil {
		return a.generic.err
	}
	for _, m := range matches {
		if p, ok := m.(Protocol); ok {
			a.generic.protocol = p
		}
	}
	// Most rules have a match for each section but the last, the target's.
	r.Matches = slices.Grow(matches, len(a.sections))
	for _, s := range a.sections {
		s.protocol = a.generic.protocol
		var m Match
		var t Target
		switch {
		case s.unknown() || s.lost != "":
		case s.isTarget:
			t = s.target.build(s)
		default:
			m = s.module.build(s)
		}
		if s.err != nil {
			return s.err
		}
		if s.lost != "" {
			a.lost = append(a.lost, fmt.Sprintf("%s %s: what it does is not known", s.what(), s.lost))
		}
		switch {
		case s.isTarget && (t == nil || s.lost != ""):
			r.Target = UnknownTarget{Target: s.name.Text, Args: s.words()}
		case s.isTarget:
			r.Target = t
		case m == nil || s.lost != "":
			r.Matches = append(r.Matches, UnknownMatch{Match: s.name.Text, Args: s.words()})
		default:
			r.Matches = append(r.Matches, m)
		}
	}
	return nil
}

// Unreadable is the name of an [UnknownMatch], or [UnknownTarget], for words that cannot be read.
const Unreadable = "unreadable"

// UnknownMatch is a match whose module this package does not know.
type UnknownMatch struct {
	Match string
	// Args are the words up to the next -m, -j, -g or generic option, of which only
	// the short names (-p, not --protocol) count.
	Args []Token
}

func (m UnknownMatch) module() string { return m.Match }
func (m UnknownMatch) write(w *words) { w.tokens = append(w.tokens, m.Args...) }

func (UnknownMatch) test(*Context) Truth { return Unknown }

func (m UnknownMatch) unknown(*Context) string {
	switch {
	case m.Match == notListed:
		return "the listing does not show its interfaces, as iptables -L -v would"
	case m.Match != Unreadable:
		return Describe(m) + " is not simulated"
	case len(m.Args) == 0:
		return "part of the rule cannot be read"
	}
	return joined(m.Args) + " cannot be read"
}

// UnknownTarget is a target that this package does not know.
type UnknownTarget struct {
	Target string
	Args   []Token // up to the next -m or generic option
}

func (t UnknownTarget) name() string { return t.Target }

// Continues reports whether the packet continues with the next rule as it is, whatever else the target does.
func (t UnknownTarget) Continues() bool {
	return slices.Contains([]string{"ACCOUNT", "CONNSECMARK", "IDLETIMER", "LED", "LOGMARK", "RATEEST", "SECMARK", "TEE", "ULOG"}, t.Target)
}

func (t UnknownTarget) write(w *words) { w.tokens = append(w.tokens, t.Args...) }
