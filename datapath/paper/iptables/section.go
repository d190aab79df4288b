package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// section is a match or target with its options. The methods that read a value keep the first
// fault; builders need not check it.
type section struct {
	family   Family
	name     Token
	isTarget bool
	module   *module // nil: unknown, or a target
	target   *target // nil: unknown, or a match
	options  []option
	kept     []Token // of an unknown one
	protocol Protocol
	err      *Error
	// lost is the reason why the meaning is not known; empty: it is.
	lost string
}

func (s *section) unknown() bool { return s.module == nil && s.target == nil }

func (s *section) shapes() map[string]shape {
	switch {
	case s.module != nil:
		return s.module.shapes
	case s.target != nil:
		return s.target.shapes
	}
	return nil
}

// known are the options that the section may have, by the names of iptables-save.
func (s *section) known() []string {
	var names []string
	for name, shape := range s.shapes() {
		if shape.as == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return []string{"none"}
	}
	return names
}

func (s *section) fail(t Token, problem, want string) {
	if s.err == nil && s.lost == "" { // without all its options nothing is known to be wrong
		s.err = &Error{Column: t.Column, Problem: problem, Want: want}
	}
}

func (s *section) find(name string) (option, bool) {
	for _, o := range s.options {
		if o.name.Text == name {
			return o, true
		}
	}
	return option{}, false
}

func (s *section) has(name string) bool {
	_, ok := s.find(name)
	return ok
}

// miss is for a match or target without an option that it needs. No iptables loads it so, but an
// iptables of another version than the one that wrote the rule prints it so.
func (s *section) miss(options string) {
	s.lose("is printed without its option " + options)
}

// lose gives the reason why the section's meaning is not known.
func (s *section) lose(reason string) {
	if s.lost == "" {
		s.lost = reason
	}
}

// words are the section's options as they were read.
func (s *section) words() []Token {
	var all []Token
	for _, o := range s.options {
		if o.negated {
			all = append(all, Token{Text: "!", Column: o.name.Column})
		}
		all = append(append(all, o.name), o.values...)
	}
	return append(all, s.kept...)
}

// what is "-m mark".
func (s *section) what() string {
	if s.isTarget {
		return "-j " + s.name.Text
	}
	return "-m " + s.name.Text
}

// oneOf returns the given one of these options; none leaves the options unknown, several are a fault.
func (s *section) oneOf(names ...string) option {
	o, ok := s.atMostOne(names...)
	if !ok {
		s.miss(strings.Join(names, " or "))
	}
	return o
}

// last returns the last given one of these options, which replaces those before it.
func (s *section) last(names ...string) (found option, ok bool) {
	for _, o := range s.options {
		if slices.Contains(names, o.name.Text) {
			found, ok = o, true
		}
	}
	return found, ok
}

// atMostOne is like oneOf, but none is no fault.
func (s *section) atMostOne(names ...string) (found option, ok bool) {
	for _, o := range s.options {
		if !slices.Contains(names, o.name.Text) {
			continue
		}
		if ok {
			s.fail(o.name, fmt.Sprintf("%s together with %s", o.name.Text, found.name.Text), "one of "+strings.Join(names, ", "))
			return found, false
		}
		found, ok = o, true
	}
	return found, ok
}

// needs reports a fault if the rule is not for one of these protocols, which the kernel requires.
func (s *section) needs(t Token, what string, protocols ...uint8) {
	if s.protocol.Number != 0 && !s.protocol.Negated && slices.Contains(protocols, s.protocol.Number) {
		return
	}
	if s.protocol.Number != 0 && slices.Contains(protocols, s.protocol.Number) {
		s.lose("stands in a rule for all protocols but its own, which iptables-nft alone loads")
		return
	}
	var names []string
	for _, p := range protocols {
		names = append(names, "-p "+protocolName(p))
	}
	s.fail(t, fmt.Sprintf("%s in a rule that is not for the protocol", what), strings.Join(names, " or "))
}

// Condition is a test by an option.
type Condition[T any] struct {
	// Given reports whether the option is there; the others are valid iff it is set.
	Given   bool
	Negated bool // "!" is in front of it
	Value   T
}

// kind is a kind of value: how it is read, and the error for a bad one.
type kind[T any] struct {
	what  string // "a port"
	want  string
	parse func(string) (T, bool)
}

// value reads one value; the zero value if it is bad.
func value[T any](s *section, t Token, k kind[T]) T {
	v, ok := k.parse(t.Text)
	if !ok {
		s.fail(t, fmt.Sprintf("%.60q is not %s", t.Text, k.what), k.want)
	}
	return v
}

// first reads an option's first value; the zero value if the option is missing.
func first[T any](s *section, o option, k kind[T]) (v T) {
	if len(o.values) == 0 {
		return v
	}
	return value(s, o.values[0], k)
}

// sole reads the only option of a module. Without it the zero value is returned.
func sole[T any](s *section, option string, k kind[T]) (v T, negated bool) {
	o := s.oneOf(option)
	return first(s, o, k), o.negated
}

// optional reads the option's value, or returns otherwise if the option is missing.
func optional[T any](s *section, name string, k kind[T], otherwise T) T {
	if o, ok := s.find(name); ok {
		return value(s, o.values[0], k)
	}
	return otherwise
}

// condition reads an option with a value that may be negated.
func condition[T any](s *section, name string, k kind[T]) Condition[T] {
	o, ok := s.find(name)
	if !ok {
		return Condition[T]{}
	}
	return Condition[T]{Given: true, Negated: o.negated, Value: value(s, o.values[0], k)}
}

// flagCondition reads an option without a value that may be negated; Value is true iff
// it is given and not negated.
func flagCondition(s *section, name string) Condition[bool] {
	o, ok := s.find(name)
	return Condition[bool]{Given: ok, Negated: o.negated, Value: ok && !o.negated}
}

// writeCondition prints an option if it is there.
func writeCondition[T any](w *words, name string, c Condition[T], text func(T) string) {
	if c.Given {
		w.option(c.Negated, name, text(c.Value))
	}
}

// writeNumber prints a number unless it is the one that counts without the option.
func writeNumber[T uint8 | uint16 | uint32](w *words, name string, n, otherwise T) {
	if n != otherwise {
		w.bare(name, decimal(n))
	}
}

func writeFlag(w *words, name string, c Condition[bool]) {
	if c.Given {
		w.option(c.Negated, name)
	}
}
