// Package usage has what the command lines of nfqproxy and nfqproxyd share: the help of flags with headings, and errors of
// flags. Each of these is one message on one line, which names the flag and what it takes: those of pflag have several
// lines, or name functions of Go's library.
//
// It is a ground package.
package usage

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// Explain explains an error of [pflag.FlagSet.Parse]. command is what the user typed before the flags, "nfqproxy
// run" for example. Other errors are returned as they are.
func Explain(command string, flags *pflag.FlagSet, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if n := e.GetSpecifiedShortnames(); n != "" {
			if n[0] >= '0' && n[0] <= '9' {
				return fmt.Errorf("-%s: %s takes no negative number", n, command)
			}
			return fmt.Errorf("%s has no flag -%s (see %[1]s --help)", command, e.GetSpecifiedName())
		}
		var names []string
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		hint := ""
		if name := cmp.Or(synonym(flags, e.GetSpecifiedName()), nearest.Name(e.GetSpecifiedName(), names)); name != "" {
			hint = fmt.Sprintf(" (did you mean --%s?)", name)
		}
		return fmt.Errorf("%s has no flag --%s%s", command, e.GetSpecifiedName(), cmp.Or(hint, fmt.Sprintf(" (see %s --help)", command)))
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s needs a value: %s", e.GetFlag().Name, e.GetFlag().Usage)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s %q: want %s", e.GetFlag().Name, e.GetValue(), wanted(e.GetFlag(), e.Unwrap()))
	}
	return err
}

// synonyms are flags that other programs have, with our names for them.
var synonyms = map[string]string{"node": "hostname-override", "node-name": "hostname-override"}

// synonym is the flag of a set that means the same; empty: there is none.
func synonym(flags *pflag.FlagSet, name string) string {
	if same := synonyms[name]; flags.Lookup(same) != nil {
		return same
	}
	return ""
}

// wanted is what values of a flag look like.
func wanted(f *pflag.Flag, err error) string {
	outOfRange := errors.Is(err, strconv.ErrRange)
	switch t := f.Value.Type(); {
	case t == "bool":
		return "true or false"
	case t == "duration":
		return "a time with its unit, such as 30s, 5m or 100us"
	case strings.HasPrefix(t, "uint") && outOfRange:
		return "a number that fits " + strings.TrimPrefix(t, "uint") + " bits"
	case strings.HasPrefix(t, "uint"):
		return "a number, 0 or more"
	case strings.HasPrefix(t, "int") && outOfRange:
		return "a smaller number"
	case strings.HasPrefix(t, "int"):
		return "a number"
	}
	return err.Error()
}

// heading is the annotation with the heading of a flag.
const heading = "nfqproxy.heading"

// Group puts the flags of a set that have no heading yet below one.
func Group(flags *pflag.FlagSet, title string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[heading] == nil {
			_ = flags.SetAnnotation(f.Name, heading, []string{title}) // the flag exists
		}
	})
}

// Flags is the help of flags: those without a heading, and then those of each heading, in their order.
func Flags(flags *pflag.FlagSet) string {
	var titles []string
	sets := make(map[string]*pflag.FlagSet)
	flags.VisitAll(func(f *pflag.Flag) {
		title := strings.Join(f.Annotations[heading], "")
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet("", pflag.ContinueOnError)
			sets[title].SortFlags = false
			if title != "" {
				titles = append(titles, title)
			}
		}
		sets[title].AddFlag(f)
	})
	var b strings.Builder
	if sets[""] != nil {
		b.WriteString(sets[""].FlagUsages())
	}
	for _, title := range titles {
		if text := sets[title].FlagUsages(); text != "" { // not all are hidden
			fmt.Fprintf(&b, "\n%s:\n%s", title, text)
		}
	}
	return b.String()
}
