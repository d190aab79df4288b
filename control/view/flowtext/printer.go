// Package flowtext renders flows as lists: tables as kubectl's, JSON, names, and the story
// of one flow's life.
package flowtext

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Printer writes records, one after the other. It is not safe for concurrent use.
type Printer interface {
	// Print writes a record, or keeps it until more are known.
	Print(*flow.Record) error
	// Flush writes what was kept: no more records come for the moment.
	Flush() error
	// Close writes what was kept, and the end of the list.
	Close() error
}

// MissedPrinter is a Printer whose format can say that records are missing.
type MissedPrinter interface {
	Printer
	PrintMissed(*observe.Missed) error
}

// Options say how lists look. The zero value is valid.
type Options struct {
	Style Style
	// Follow: each record is of an event, in a stream that has no end.
	Follow bool
	// NoHeaders leaves out the line of the columns' names.
	NoHeaders bool
	// Tree adds the walk through the chains below each line.
	Tree bool
	// Zone is that of the times in tables; nil: the local one. JSON keeps the times it got.
	Zone *time.Location
	// Now tells the time; nil: time.Now.
	Now func() time.Time
}

func (o Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

func (o Options) zone() *time.Location {
	if o.Zone == nil {
		return time.Local
	}
	return o.Zone
}

// format is one way to write lists. argument is what follows "name=".
type format struct {
	name     string
	argument string // what it is, for people; empty: it takes none
	programs bool   // see [ForPrograms]
	make     func(w io.Writer, argument string, o Options) (Printer, error)
}

// formats are those there are; the first is the default.
var formats = []format{
	{name: "", make: func(w io.Writer, _ string, o Options) (Printer, error) {
		return newTable(w, columnsFor(o, false), o), nil
	}},
	{name: "wide", make: func(w io.Writer, _ string, o Options) (Printer, error) {
		return newTable(w, columnsFor(o, true), o), nil
	}},
	{name: "json", programs: true, make: newJSON},
	{name: "jsonl", programs: true, make: newJSONLines},
	{name: "name", make: newNames},
	{name: "hubble", programs: true, make: newHubble},
	{name: "custom-columns", argument: "NAME:.path,...", make: func(w io.Writer, spec string, o Options) (Printer, error) {
		columns, err := customColumns(spec)
		if err != nil {
			return nil, err
		}
		return newTable(w, columns, o), nil
	}},
}

// New makes a printer of a format, as [Formats] names them; an empty one is the table. Errors
// begin with the format.
func New(w io.Writer, name string, o Options) (Printer, error) {
	name, argument, given := strings.Cut(name, "=")
	i := slices.IndexFunc(formats, func(f format) bool { return f.name == name })
	switch {
	case i < 0 || name == "" && given:
		return nil, fmt.Errorf("%q: want %s", name, alternatives(Formats()))
	case formats[i].argument == "" && given:
		return nil, fmt.Errorf("%q: %s takes nothing behind a =", name+"="+argument, name)
	case formats[i].argument != "" && argument == "":
		return nil, fmt.Errorf("%q: want %s=%s", name, name, formats[i].argument)
	}
	return formats[i].make(w, argument, o)
}

// Formats names the formats that are not the default, with what has to follow.
func Formats() []string {
	var names []string
	for _, f := range formats[1:] {
		if f.argument != "" {
			f.name += "=" + f.argument
		}
		names = append(names, f.name)
	}
	return names
}

// ForPrograms says whether a format is for programs, which get all flows unless they name
// some: a list for people may leave out what few want to see.
func ForPrograms(name string) bool {
	return slices.ContainsFunc(formats, func(f format) bool { return f.name == name && f.programs })
}

// alternatives joins words: "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
