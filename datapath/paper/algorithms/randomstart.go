package algorithms

import (
	"sync"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// randomStart is round robin that begins at random, as gRPC's: if all nodes begin with the same endpoint, it gets too much (pickerBuilder
// in grpc-go's balancer/roundrobin/roundrobin.go). The rr of a node begins with the first endpoint, as that of IPVS.
type randomStart struct {
	balance.Picker // rr
	turns          int
	once           sync.Once
}

func newRandomStart(r *balance.Registry) newPicker {
	return func(set *balance.Set, before balance.Picker) balance.Picker {
		rr, err := r.Parse("rr")
		if err != nil {
			return nil // rr is built in
		}
		p := &randomStart{turns: len(set.Candidates)}
		b, goesOn := before.(*randomStart)
		if goesOn {
			p.once.Do(func() {}) // with the turn that follows
			p.Picker = rr.New(set, b.Picker)
		} else {
			p.Picker = rr.New(set, nil)
		}
		return p
	}
}

func (p *randomStart) Pick(f balance.Flow) decision.Pick {
	p.once.Do(func() {
		for range int(f.Rand.Float64() * float64(p.turns)) {
			p.Picker.Pick(f)
		}
	})
	return p.Picker.Pick(f)
}
