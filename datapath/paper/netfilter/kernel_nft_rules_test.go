//go:build linux

package netfilter

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// shape is a kind of condition or statement, with the forms that it comes in. In these, words that begin with $ stand for
// something that is made up: see [nftMaker.word].
type shape struct {
	kind  string
	proto string // the protocol that it needs; a rule has one
	hooks string // where it is possible, separated by spaces; empty: everywhere
	types string // the types of chains, likewise
	only  string // the family of the packets that it is for, "ip" or "ip6"; empty: both
	// always: it is true of each packet that gets here, or of none.
	always bool
	inet   bool // only for tables of this family
	early  bool // only in front of connection tracking
	// last: the trace does not show what it drew if the rule ends later.
	last  bool
	forms []string
}

// nftMaker makes up a ruleset about the world's addresses, ports and devices.
type nftMaker struct {
	*ruleMaker
	lacks  map[string]bool
	family string            // of the table
	things []string          // what is declared in front of the table's chains
	seen   map[string]string // the sets of the table that rules add to and look up in
	names  int
	ip     string // the family of the rule's addresses, "ip" or "ip6"
	proto  string // the protocol of the rule
}

// ruleset is a file for nft.
func (w *world) ruleset(seed uint64, lacks map[string]bool) string {
	m := &nftMaker{ruleMaker: &ruleMaker{Rand: rand.New(rand.NewPCG(seed, 0)), world: w, number: seed}, lacks: lacks}
	var b strings.Builder
	own := map[bool]string{true: "ip", false: "ip6"}[w.is4]
	families := []string{pick(m.Rand, []string{"inet", own})}
	for range m.IntN(3) {
		families = append(families, pick(m.Rand, []string{"inet", "inet", own, own, "ip", "ip6"}))
	}
	for i, f := range families {
		m.nftTable(&b, f, fmt.Sprintf("t%d", i), i == 0)
	}
	return b.String() + tracking
}

// samples is a ruleset with all forms but those that are lacking, by line.
func (w *world) samples(shapes []shape, lacks map[string]bool) (text string, lines map[int]string) {
	var b strings.Builder
	lines = make(map[int]string)
	b.WriteString("table inet sample {\n")
	line, number := 2, 0
	m := &nftMaker{ruleMaker: &ruleMaker{Rand: rand.New(rand.NewPCG(1, 2)), world: w}, family: "inet", seen: make(map[string]string)}
	for _, s := range shapes {
		m.ip = map[bool]string{true: "ip6", false: "ip"}[s.only == "ip6"]
		hook, typ := "prerouting", "filter"
		if s.hooks != "" {
			hook = strings.Fields(s.hooks)[0]
		}
		if s.types != "" {
			typ = strings.Fields(s.types)[0]
		}
		for _, form := range s.without(lacks) {
			m.things = nil
			rule := m.form(form)
			number++
			for _, l := range append(m.things, fmt.Sprintf("\tchain c%d { type %s hook %s priority 0; %s; }\n", number, typ, hook, rule)) {
				b.WriteString(l)
				lines[line] = form
				line++
			}
		}
	}
	b.WriteString("}\n")
	return b.String(), lines
}

// nftPriorities are those that chains have. That of connection tracking itself is left out: what comes first there depends
// on what was loaded before.
var nftPriorities = []string{"-400", "raw", "raw - 1", "-250", "mangle", "mangle", "mangle + 5", "-101", "-100", "-100", "-99", "filter", "filter", "filter", "filter - 5", "filter + 10", "security", "90", "100", "100", "101", "300"}

func (m *nftMaker) nftTable(b *strings.Builder, family, name string, first bool) {
	m.family, m.things, m.seen = family, nil, make(map[string]string)
	var chains []nftChain
	for i, hook := range []string{"prerouting", "input", "forward", "output", "postrouting"} {
		for j := range 1 + m.IntN(2) {
			if !m.percent(60) && !first {
				continue
			}
			c := nftChain{name: fmt.Sprintf("%s%d", hook, j), typ: "filter", hooks: []string{hook}, base: true, policy: "accept", priority: pick(m.Rand, nftPriorities)}
			if m.percent(6) {
				c.policy = "drop"
			}
			if hook == "output" && m.percent(40) {
				c.typ = "route"
			}
			if hook != "forward" && (j == 0 && m.percent(60) || first && i == 0 && j == 0) {
				c.typ, c.policy = "nat", "accept"
				c.priority = fmt.Sprint(map[string]int{"input": 100, "postrouting": 100}[hook] - map[string]int{"prerouting": 100, "output": 100}[hook] + pick(m.Rand, []int{0, 0, 0, 5, -5}))
			}
			chains = append(chains, c)
		}
	}
	for i := range 2 + m.IntN(3) {
		c := nftChain{name: fmt.Sprintf("user%d", i), typ: pick(m.Rand, []string{"filter", "filter", "nat", "route"})}
		switch {
		case c.typ == "route":
			c.hooks = []string{"output"}
		case c.typ == "nat" && m.percent(50):
			c.hooks = []string{"prerouting", "output"}
		case c.typ == "nat":
			c.hooks = []string{"postrouting", "input"}
		default:
			c.hooks = pick(m.Rand, [][]string{{"prerouting"}, {"input", "forward"}, {"forward"}, {"output", "postrouting"}, {"input", "forward", "output"}, {"prerouting", "input", "forward", "output", "postrouting"}})
		}
		chains = append(chains, c)
	}
	var text strings.Builder
	// nft declares chains before it adds rules: jumps may lead to later ones.
	m.Shuffle(len(chains), func(i, j int) {
		if !chains[i].base == !chains[j].base {
			chains[i], chains[j] = chains[j], chains[i]
		}
	})
	for i, c := range chains {
		for _, to := range chains[i+1:] {
			if !to.base && to.typ == c.typ && subset(c.hooks, to.hooks) {
				c.jumps = append(c.jumps, to.name)
			}
		}
		m.nftChain(&text, c)
	}
	fmt.Fprintf(b, "table %s %s {\n%s%s}\n", family, name, strings.Join(m.things, ""), &text)
}

// nftChain is a chain that is being made up.
type nftChain struct {
	name, typ        string
	hooks            []string // from which it is reached
	base             bool
	policy, priority string
	jumps            []string // chains to which it may jump
}

func (c *nftChain) allows(s *shape) bool {
	early := []string{"-400", "raw", "raw - 1", "-250"}
	return (!s.early || c.base && slices.Contains(early, c.priority)) && (s.hooks == "" || subset(c.hooks, strings.Fields(s.hooks))) && (s.types == "" || slices.Contains(strings.Fields(s.types), c.typ))
}

func (m *nftMaker) nftChain(b *strings.Builder, c nftChain) {
	fmt.Fprintf(b, "\tchain %s {\n", c.name)
	if c.base {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %s; policy %s;\n", c.typ, c.hooks[0], c.priority, c.policy)
	}
	for range m.IntN(5) {
		fmt.Fprintf(b, "\t\t%s\n", m.nftRule(&c))
	}
	b.WriteString("\t}\n")
}

// nftRule is a rule; its comment says what it has.
func (m *nftMaker) nftRule(c *nftChain) string {
	m.proto, m.ip = "", map[bool]string{true: "ip", false: "ip6"}[m.is4 != (m.family == "inet" && m.percent(5))]
	if m.family != "inet" {
		m.ip = m.family
	}
	if s := m.choose(c, lonely); s != nil && m.percent(3) {
		return fmt.Sprintf("%s %s comment \"%s|\"", m.form(pick(m.Rand, s.without(m.lacks))), pick(m.Rand, []string{"accept", "return", "counter"}), s.kind)
	}
	var words, ifs, dos []string
	final := ""
	end := m.verdictShape(c)
	if end != nil && end.proto != "" {
		m.proto = end.proto
	}
	add := func(to *[]string, s *shape) {
		if s == nil {
			return
		}
		if s.proto != "" {
			m.proto = s.proto
		}
		if slices.Contains(*to, s.kind) { // nft lists two conditions on one field as one, which is something else
			return
		}
		if s.kind == "nfproto" && end != nil && end.kind == "reject tcp" { // nft does not list it then
			return
		}
		text := m.form(pick(m.Rand, s.without(m.lacks)))
		if n := len(words); n > 0 && strings.ContainsAny(words[n-1], "<>") && strings.ContainsAny(text, "<>") { // nft lists both as one, too
			return
		}
		if strings.Contains(text, "tcp option") && strings.Contains(strings.Join(words, " "), "meta l4proto") { // nft lists only the option
			return
		}
		if s.last {
			if final != "" {
				return
			}
			final = text
		} else {
			words = append(words, text)
		}
		*to = append(*to, s.kind)
	}
	for range m.IntN(3) {
		add(&ifs, m.choose(c, conditions))
	}
	for range m.IntN(3) * m.IntN(2) {
		add(&dos, m.choose(c, statements))
	}
	if c.typ == "route" && m.percent(25) { // few chains are of this type
		add(&dos, &statements[slices.IndexFunc(statements, func(s shape) bool { return s.types == "route" })])
	}
	if m.percent(10) {
		add(&ifs, m.choose(c, conditions))
	}
	if final != "" {
		words = append(words, final)
		if end != nil && end.last {
			end = nil
		}
	}
	if end != nil {
		final = ""
		if add(&dos, end); final != "" {
			words = append(words, final)
		}
	}
	if len(words) == 0 {
		words = append(words, "counter")
	}
	if m.jumpsBack(c, &words) {
		dos = append(dos, "jump")
	}
	return fmt.Sprintf("%s comment \"%s|%s\"", strings.Join(words, " "), strings.Join(ifs, ","), strings.Join(dos, ","))
}

// jumpsBack replaces the end of a rule by a jump now and then.
func (m *nftMaker) jumpsBack(c *nftChain, words *[]string) bool {
	last := (*words)[len(*words)-1]
	if len(c.jumps) == 0 || !slices.Contains([]string{"accept", "drop", "return", "counter"}, last) || !m.percent(70) {
		return false
	}
	(*words)[len(*words)-1] = pick(m.Rand, []string{"jump ", "jump ", "goto "}) + pick(m.Rand, c.jumps)
	return true
}

// choose is one of the shapes that are possible in a chain; nil: none was found.
func (m *nftMaker) choose(c *nftChain, from []shape) *shape {
	for range 20 {
		s := &from[m.IntN(len(from))]
		if len(s.without(m.lacks)) == 0 || !c.allows(s) || s.inet && m.family != "inet" || s.only != "" && s.only != m.ip || s.proto != "" && m.proto != "" && s.proto != m.proto {
			continue
		}
		return s
	}
	return nil
}

// verdictShape is the end of a rule; nil: the rule only counts.
func (m *nftMaker) verdictShape(c *nftChain) *shape {
	switch {
	case c.typ == "nat" && m.percent(70):
		return m.choose(c, translations)
	case m.percent(30):
		return nil
	}
	return m.choose(c, verdicts)
}

var variable = regexp.MustCompile(`\$[a-z0-9]+`)

// form makes up what the words of a form stand for.
func (m *nftMaker) form(text string) string {
	text = variable.ReplaceAllStringFunc(text, func(w string) string { return m.word(w[1:]) })
	return strings.Join(strings.Fields(text), " ")
}

// declare adds a set, a map or an object to the table.
func (m *nftMaker) declare(kind, body string) string {
	m.names++
	name := fmt.Sprintf("x%d", m.names)
	m.things = append(m.things, fmt.Sprintf("\t%s %s { %s }\n", kind, name, body))
	return name
}
