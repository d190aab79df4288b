package journal

import (
	"cmp"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// generations are the newest generations of the service table, which share all that did not change between
// them. They are bounded in their number, and in the memory that they take beyond the newest one.
type generations struct {
	limit, byteLimit int
	kept             []generation // the oldest first
	bytes            int
	dropped          uint64
}

// generation is a table, and about what it takes in memory beyond the next one: the service ports that the next one
// replaced, and the nodes of the maps that lead to them.
type generation struct {
	table *decision.Table
	bytes int
}

// What a generation takes, for itself and for each Service that the next one changed, besides the service ports: of
// four maps, a node on each of two or three levels. TestGenerationsMemory measures it.
const (
	generationBytes = 512
	changedBytes    = 8 << 10
)

// add keeps the next generation. replaced is what the last one takes besides.
func (g *generations) add(t *decision.Table, replaced int) {
	if n := len(g.kept); n > 0 {
		g.kept[n-1].bytes = replaced + generationBytes
		g.bytes += replaced + generationBytes
	}
	g.kept = append(g.kept, generation{table: t.Archive()})
	n := 0
	for ; n < len(g.kept)-1 && (len(g.kept)-n > g.limit || g.bytes > g.byteLimit); n++ {
		g.bytes -= g.kept[n].bytes
	}
	g.kept = slices.Delete(g.kept, 0, n)
	g.dropped += uint64(n)
}

// of returns the table of a generation; nil: it is not kept.
func (g *generations) of(number uint64) *decision.Table {
	i, found := slices.BinarySearchFunc(g.kept, number, func(k generation, number uint64) int {
		return cmp.Compare(k.table.Generation(), number)
	})
	if !found {
		return nil
	}
	return g.kept[i].table
}

// decided returns the table that decided a flow; nil: it is not kept.
func (g *generations) decided(f *flow.Flow) *decision.Table {
	t := g.of(f.Decision.Generation)
	if s := f.Decision.ServicePort; t == nil || s != nil && !slices.Contains(t.Service(s.Name.Service()), s) {
		return nil
	}
	return t
}

// Table returns the service table of a generation; nil: it is not kept.
func (j *Journal) Table(generation uint64) *decision.Table {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.generations.of(generation)
}

// Generations describes the kept generations of the service table.
func (j *Journal) Generations() observe.Generations {
	j.mu.RLock()
	defer j.mu.RUnlock()
	g := observe.Generations{Kept: len(j.generations.kept), Bytes: j.generations.bytes, Dropped: j.generations.dropped}
	if g.Kept > 0 {
		g.Oldest = j.generations.kept[0].table.Generation()
	}
	return g
}
