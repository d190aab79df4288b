package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

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
