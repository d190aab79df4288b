package nftables

import "slices"

// builder carries out commands on a ruleset.
type builder struct {
	ruleset *Ruleset
	tables  map[tableName]*tableIndex
}

type tableName struct {
	family Family
	name   string
}

// tableIndex finds what a table has by name.
type tableIndex struct {
	*Table
	chains map[string]*Chain
	sets   map[string]*Set
}

func newBuilder() *builder {
	return &builder{ruleset: &Ruleset{}, tables: map[tableName]*tableIndex{}}
}

// existing is the table with this name; an empty one that is not part of the ruleset if there is none, for commands that remove.
func (b *builder) existing(family Family, name string) *tableIndex {
	if t := b.tables[tableName{family, name}]; t != nil {
		return t
	}
	return &tableIndex{Table: &Table{Family: family, Name: name}, chains: map[string]*Chain{}, sets: map[string]*Set{}}
}

// table is the table with this name, made now if need be.
func (b *builder) table(family Family, name string, at Position) *tableIndex {
	t := b.tables[tableName{family, name}]
	if t == nil {
		t = b.existing(family, name)
		t.Position = at
		b.tables[tableName{family, name}] = t
		b.ruleset.Tables = append(b.ruleset.Tables, t.Table)
	}
	return t
}

func (t *tableIndex) chain(name string, at Position) *Chain {
	c := t.chains[name]
	if c == nil {
		c = &Chain{Position: at, Name: name}
		t.chains[name] = c
		t.Chains = append(t.Chains, c)
	}
	return c
}

func (t *tableIndex) set(name string, at Position) *Set {
	s := t.sets[name]
	if s == nil {
		s = &Set{Position: at, Name: name}
		t.sets[name] = s
		t.Sets = append(t.Sets, s)
	}
	return s
}

// setFlags are the flags of sets, in the order in which nft prints them.
var setFlags = []string{"constant", "interval", "dynamic", "timeout"}

// sortFlags puts the flags in order. nft leaves "timeout" out if it is the only one and there is a Timeout.
func (s *Set) sortFlags() {
	if s.Timeout != 0 && !slices.Contains(s.Flags, "timeout") {
		s.Flags = append(s.Flags, "timeout")
	}
	slices.SortStableFunc(s.Flags, func(a, b string) int { return slices.Index(setFlags, a) - slices.Index(setFlags, b) })
}

// addObject adds an object, in place of one with its name.
func (t *tableIndex) addObject(o *Object) {
	for i, other := range t.Objects {
		if other.Kind == o.Kind && other.Name == o.Name {
			t.Objects[i] = o
			return
		}
	}
	t.Objects = append(t.Objects, o)
}

// ruleCommand is a command for one rule.
type ruleCommand struct {
	verb   string // "add", "create", "insert", "replace", "delete", "destroy"
	handle uint64 // of the rule beside it, or of the one that is replaced or deleted; 0: none
	index  int    // of the rule beside it; -1: none
}

func (c *Chain) apply(cmd ruleCommand, r *Rule) {
	at := -1
	if cmd.handle != 0 {
		at = slices.IndexFunc(c.Rules, func(r *Rule) bool { return r.Handle == cmd.handle })
	} else if cmd.index < len(c.Rules) {
		at = cmd.index
	}
	switch {
	case cmd.verb == "delete", cmd.verb == "destroy":
		if at >= 0 {
			c.Rules = slices.Delete(c.Rules, at, at+1)
		}
	case cmd.verb == "replace":
		if at >= 0 {
			r.Handle = c.Rules[at].Handle
			c.Rules[at] = r
		}
	case cmd.verb == "insert":
		c.Rules = slices.Insert(c.Rules, max(at, 0), r)
	case at >= 0:
		c.Rules = slices.Insert(c.Rules, at+1, r)
	default:
		c.Rules = append(c.Rules, r)
	}
}

// flush empties the tables of a family, or all with an empty one.
func (b *builder) flushRuleset(family Family) {
	for name := range b.tables {
		if family == "" || name.family == family {
			b.deleteTable(func(t *Table) bool { return t.Family == name.family && t.Name == name.name })
		}
	}
}

func (b *builder) deleteTable(which func(*Table) bool) {
	b.ruleset.Tables = slices.DeleteFunc(b.ruleset.Tables, func(t *Table) bool {
		if !which(t) {
			return false
		}
		delete(b.tables, tableName{t.Family, t.Name})
		return true
	})
}

// named says whether a thing is meant by a command, by its name or its handle.
func named(name string, handle uint64) func(string, uint64) bool {
	return func(n string, h uint64) bool { return n == name && name != "" || handle != 0 && h == handle }
}

// remove carries out "delete" for all but rules and elements.
func (t *tableIndex) remove(kind string, is func(string, uint64) bool) {
	switch kind {
	case "chain":
		t.Chains = slices.DeleteFunc(t.Chains, func(c *Chain) bool {
			if !is(c.Name, c.Handle) {
				return false
			}
			delete(t.chains, c.Name)
			return true
		})
	case "set", "map", "meter":
		t.Sets = slices.DeleteFunc(t.Sets, func(s *Set) bool {
			if !is(s.Name, s.Handle) {
				return false
			}
			delete(t.sets, s.Name)
			return true
		})
	case "flowtable":
		t.Flowtables = slices.DeleteFunc(t.Flowtables, func(f *Flowtable) bool { return is(f.Name, f.Handle) })
	default:
		t.Objects = slices.DeleteFunc(t.Objects, func(o *Object) bool { return o.Kind == kind && is(o.Name, o.Handle) })
	}
}

// flush empties a table's chains, a chain, or a set.
func (t *tableIndex) flush(kind, name string) {
	switch kind {
	case "table":
		for _, c := range t.Chains {
			c.Rules = nil
		}
	case "chain":
		if c := t.chains[name]; c != nil {
			c.Rules = nil
		}
	case "set", "map", "meter":
		if s := t.sets[name]; s != nil {
			s.Elements = nil
		}
	}
}

// removeElements deletes the elements with these keys.
func (t *tableIndex) removeElements(set string, gone []Element) {
	s := t.sets[set]
	if s == nil {
		return
	}
	keys := map[string]bool{}
	for _, e := range gone {
		keys[Text(e.Key)] = true
	}
	s.Elements = slices.DeleteFunc(s.Elements, func(e Element) bool { return keys[Text(e.Key)] })
}

func (b *builder) renameChain(t *tableIndex, name, to string) {
	if c := t.chains[name]; c != nil {
		delete(t.chains, name)
		c.Name = to
		t.chains[to] = c
	}
}
