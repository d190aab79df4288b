package savednode

import (
	"strconv"
	"strings"
)

// TrackingStats are counters of connection tracking since the node's start, of all CPUs together.
type TrackingStats struct {
	// EarlyDrop counts entries that the kernel removed because the connection table was full.
	EarlyDrop uint64
	// Drop counts packets that connection tracking dropped, those of InsertFailed among them. The others found the table full, or
	// a helper refused them.
	Drop uint64
	// InsertFailed counts packets that were dropped because another packet had made an entry of the same addresses and ports.
	InsertFailed uint64
}

// TrackingStats are the counters that conntrack -S printed; false: the bundle has none.
func (n *Node) TrackingStats() (sum TrackingStats, ok bool) {
	counters := map[string]*uint64{"early_drop": &sum.EarlyDrop, "drop": &sum.Drop, "insert_failed": &sum.InsertFailed}
	for word := range strings.FieldsSeq(string(n.bundle.File("conntrack-stats.txt"))) {
		name, text, _ := strings.Cut(word, "=")
		if value, err := strconv.ParseUint(text, 0, 64); err == nil && counters[name] != nil {
			*counters[name] += value
			ok = true
		}
	}
	return sum, ok
}
