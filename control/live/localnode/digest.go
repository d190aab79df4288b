package localnode

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// digest is the [observe.Table.Digest] of the latest table that it was computed for. It is safe for concurrent use.
type digest struct {
	mu    sync.Mutex
	table *decision.Table
	text  string
}

func (d *digest) of(t *decision.Table) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.table == t {
		return d.text
	}
	d.table, d.text = t, Digest(t)
	return d.text
}

// Digest is the [observe.Table.Digest] of a table.
func Digest(t *decision.Table) string {
	h := fnv.New64a()
	var buf []byte
	for _, s := range t.Services() {
		fmt.Fprintf(h, "%s %s %s %s %d %d %v %v %v %d %d %d %s\n", s.Name, s.Protocol, s.Family, s.ClusterIP, s.Port, s.NodePort,
			s.ExternalIPs, s.LoadBalancerIPs, s.SourceRanges, s.InternalPolicy, s.ExternalPolicy, s.AffinitySeconds, s.Balance)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			buf = e.AddrPort.AppendTo(buf[:0])
			buf = append(buf, ' ', flag(e.Ready), flag(e.Serving), ' ')
			buf = append(strconv.AppendUint(buf, uint64(e.Weight), 10), '\n')
			_, _ = h.Write(buf) // it cannot fail
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
}
