package iptables

import "maps"

// extension is a match or a target that this package knows: all that iptables' own library (lib*.c)
// and the kernel's module (xt_*.c) know of it, besides the methods of its type. To add one, write one
// file that calls addMatch or addTarget.
type extension[T any] struct {
	name   string           // behind -m or -j
	family Family           // FamilyUnknown: for both
	shapes map[string]shape // the options
	// implied is the protocol whose "-p" alone loads a match; 0: none.
	implied uint8
	// table is the only table in which the kernel loads a target (its .table); empty: all.
	table string
	// chains are the only built-in chains in which the kernel loads a target (its .hooks); nil: all.
	chains []string
	// build makes the value from the options.
	build func(*section) T
	// phrases read its text in a listing (its print function), by the first word. A target's
	// phrase has the target's name; without one it prints nothing.
	phrases map[string]phrase
}

type (
	module = extension[Match]
	target = extension[Target]
)

func (e *extension[T]) allows(f Family) bool { return e.family == FamilyUnknown || e.family == f }

var (
	modules      = make(map[string]*module)
	targets      = make(map[string]*target)
	matchPhrases = make(map[string]phrase)
)

// addMatch and addTarget return a value for the variables that call them, in the files of the modules.
func addMatch(m *module) *module { //nolint:unparam // see above
	modules[m.name] = m
	maps.Copy(matchPhrases, m.phrases)
	return m
}

func addTarget(t *target) *target {
	targets[t.name] = t
	return t
}

// otherTargets are other existing targets (iptables' extensions, and xtables-addons), with the only
// table that the kernel loads them in, if any: these are no missing chains.
var otherTargets = map[string]string{
	"CLUSTERIP": "", "CONNSECMARK": "", "DNPT": "", "ECN": "mangle", "HMARK": "", "IDLETIMER": "", "LED": "",
	"MIRROR": "", "QUEUE": "", "RATEEST": "", "SAME": "", "SECMARK": "", "SET": "", "SNPT": "", "SYNPROXY": "",
	"TCPOPTSTRIP": "", "TEE": "", "ULOG": "",
	"ACCOUNT": "", "CHAOS": "", "DELUDE": "", "DHCPMAC": "", "DNETMAP": "", "ECHO": "", "IPMARK": "", "LOGMARK": "",
	"PROTO": "", "SYSRQ": "",
}

func isOtherTarget(name string) bool {
	_, ok := otherTargets[name]
	return ok
}
