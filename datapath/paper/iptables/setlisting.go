package iptables

import (
	"fmt"
	"strconv"
	"strings"
)

// setListing turns the output of ipset list into that of ipset save.
type setListing struct {
	name, typ string
	begun     bool // behind "Members:"
	entries   int  // as "Number of entries" says; -1: it does not
	elements  int
}

// line is what ipset save has for a line; "": nothing. A line that is not of ipset list stays. The fault is of the set above.
func (l *setListing) line(line string) (string, *Error) {
	key, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch {
	case strings.HasPrefix(line, "Name: "):
		fault := l.end()
		*l = setListing{name: value, entries: -1}
		return "", fault
	case l.name == "" || line == "":
		return line, nil
	case l.begun:
		l.elements++
		return "add " + l.name + " " + strings.TrimSpace(line), nil
	}
	switch key {
	case "Type":
		l.typ = value
	case "Header":
		return "create " + l.name + " " + l.typ + " " + value, nil
	case "Number of entries":
		if n, err := strconv.Atoi(value); err == nil {
			l.entries = n
		}
	case "Members":
		l.begun = true
	case "Revision", "Size in memory", "References", "Default":
	default:
		return line, nil
	}
	return "", nil
}

// end is the fault of a set whose elements are not all there: the text ends before them, or it is of ipset list -t.
func (l *setListing) end() *Error {
	if l.name == "" || l.begun && l.elements >= l.entries {
		return nil
	}
	return &Error{Column: 1, Problem: fmt.Sprintf("the elements of set %.40q are missing, or some of them", l.name), Want: "all of the output of ipset save or ipset list"}
}
