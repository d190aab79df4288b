package nftables

import (
	"math"
	"strconv"
)

// priorityName is a name for a priority; without hooks it is one of all.
type priorityName struct {
	name     string
	priority int32
	hooks    []string
}

// priorityNames are the names of a family's priorities (nftables, src/rule.c, std_prios and bridge_std_prios). Only newer nft
// has dstnat for the hook output and srcnat for input too.
func priorityNames(family Family) []priorityName {
	switch family {
	case FamilyARP, FamilyNetdev:
		return []priorityName{{"filter", 0, nil}}
	case FamilyBridge:
		return []priorityName{{"dstnat", -300, []string{"prerouting"}}, {"filter", -200, nil}, {"out", 100, []string{"output"}}, {"srcnat", 300, []string{"postrouting"}}}
	}
	return []priorityName{
		{"raw", -300, nil}, {"mangle", -150, nil}, {"dstnat", -100, []string{"prerouting"}},
		{"filter", 0, nil}, {"security", 50, nil}, {"srcnat", 100, []string{"postrouting"}},
	}
}

// priorityOf resolves a name. That of another hook is resolved too: whether the kernel takes it is not this package's question.
func priorityOf(family Family, name string) (int32, bool) {
	for _, p := range priorityNames(family) {
		if p.name == name {
			return p.priority, true
		}
	}
	return 0, false
}

// formatPriority prints a priority as nft does: those near a named one by that name.
func formatPriority(family Family, hook string, priority int32) string {
	const near = 10
	for _, p := range priorityNames(family) {
		fits := p.hooks == nil
		for _, h := range p.hooks {
			fits = fits || h == hook
		}
		switch d := int64(priority) - int64(p.priority); {
		case !fits || d < -near || d > near:
		case d == 0:
			return p.name
		case d < 0:
			return p.name + " - " + strconv.FormatInt(-d, 10)
		default:
			return p.name + " + " + strconv.FormatInt(d, 10)
		}
	}
	return strconv.Itoa(int(priority))
}

// signed32 is n, or -n, as a priority.
func signed32(n uint64, negative bool) (int32, bool) {
	switch {
	case negative && n <= -math.MinInt32:
		return int32(-int64(n)), true
	case !negative && n <= math.MaxInt32:
		return int32(n), true
	}
	return 0, false
}
