package text

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Printer writes records, one after the other. It is not safe for concurrent use.
type Printer interface {
	// Print writes a record, or buffers it until more records are known.
	Print(*flow.Record) error
	// Flush writes the buffered records: no more arrive for the moment.
	Flush() error
	// Close writes the buffered records and the end of the list.
	Close() error
}

// MissedPrinter is a Printer whose format can report missing records.
type MissedPrinter interface {
	Printer
	PrintMissed(*observe.Missed) error
}

// Options configure how lists are rendered. The zero value is valid.
type Options struct {
	Style Style
	// Follow: each record is an event of an endless stream.
	Follow bool
	// Recorded: the records are of a history, and nothing is known of their flows after them.
	Recorded bool
	// NoHeaders leaves out the line of the columns' names.
	NoHeaders bool
	// Walk adds the walk through the chains below each line. A story has it in words by default.
	Walk Walk
	// Nodes adds the column of nodes to the table.
	Nodes bool
	// Zone is the time zone in tables; nil: the local one. JSON keeps the zone of its times.
	Zone *time.Location
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Observed are the nodes whose flows are observed; nil: not known. A story names a node on the
	// flow's path that has no record of it.
	Observed map[string]bool
	// DroppedBy describes the firewall rule that drops the packets after the decision, for a story; empty: not known,
	// or none does.
	DroppedBy string
}

func (o Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

func (o Options) zone() *time.Location {
	return cmp.Or(o.Zone, time.Local)
}

// format is one way to write lists. argument is what follows "name=".
type format struct {
	name     string
	argument string // description of the argument; empty: the format takes none
	programs bool   // see [ForPrograms]
	make     func(w io.Writer, argument string, o Options) (Printer, error)
}

// formats lists all formats; the first is the default.
var formats = []format{
	{name: "", make: func(w io.Writer, _ string, o Options) (Printer, error) {
		return newTable(w, columnsFor(o, false), o), nil
	}},
	{name: "wide", make: func(w io.Writer, _ string, o Options) (Printer, error) {
		return newTable(w, columnsFor(o, true), o), nil
	}},
	{name: "json", programs: true, make: newJSON},
	{name: "jsonl", programs: true, make: newJSONLines},
	{name: "yaml", programs: true, make: newYAML},
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

// NewPrinter returns a printer for a format, as named by [Formats]; an empty name is the table. Errors
// begin with the format.
func NewPrinter(w io.Writer, name string, o Options) (Printer, error) {
	name, argument, given := strings.Cut(name, "=")
	i := slices.IndexFunc(formats, func(f format) bool { return f.name == name })
	switch {
	case i < 0 || name == "" && given:
		return nil, fmt.Errorf("%q: want %s", name, nearest.Either(Formats()))
	case formats[i].argument == "" && given:
		return nil, fmt.Errorf("%q: %s takes no argument", name+"="+argument, name)
	case formats[i].argument != "" && argument == "":
		return nil, fmt.Errorf("%q: want %s=%s", name, name, formats[i].argument)
	}
	return formats[i].make(w, argument, o)
}

// Formats lists the formats other than the default, with their argument.
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

// ForPrograms reports whether a format is for programs. Programs get all flows by default, while
// lists for people may leave some out.
func ForPrograms(name string) bool {
	return slices.ContainsFunc(formats, func(f format) bool { return f.name == name && f.programs })
}
