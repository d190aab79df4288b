package balance

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// How endpoints are ejected.
const (
	// ejectAfter is how many failures in a row eject an endpoint. One that comes back is ejected by its
	// first failure.
	ejectAfter = 3
	// firstOut is how long an endpoint sits out for the first time, then twice as long each time, up
	// to longestOut.
	firstOut, longestOut = 10 * time.Second, 5 * time.Minute
	// Of the endpoints of a set at most 1 in outShare sit out: if all fail, no one knows better.
	outShare = 2
)

// ejecting leaves endpoints out that refused or did not answer, and has another algorithm select among
// the others.
type ejecting struct {
	set     *Set
	inner   Algorithm
	history *history
	in      atomic.Pointer[admitted]
}

// admitted are the endpoints that do not sit out.
type admitted struct {
	set    *Set
	picker Picker
	back   int64 // when the first of the others comes back; math.MaxInt64: there is none
	out    uint16
	first  ejected
}

// ejected is an endpoint that sits out.
type ejected struct {
	position uint32 // in ServicePort.Usable
	failures int
	until    int64
}

// history is what the endpoints did; one for all sets of a service port and a policy.
type history struct {
	mu        sync.Mutex
	endpoints map[*Endpoint]*endpointHistory
}

// endpointHistory is what an endpoint did.
type endpointHistory struct {
	failures int           // in a row
	last     time.Duration // for how long it sat out last; 0: not at all, or it has done well since
	until    int64         // it sits out until then
}

func newEjecting(set *Set, inner Algorithm, before Picker) Picker {
	p := &ejecting{set: set, inner: inner}
	var picker Picker
	if b, ok := before.(*ejecting); ok {
		p.history, picker = b.history, b.in.Load().picker
	} else {
		p.history = &history{endpoints: make(map[*Endpoint]*endpointHistory)}
	}
	p.history.mu.Lock()
	defer p.history.mu.Unlock()
	p.history.forget(set)
	p.admit(picker, math.MinInt64)
	return p
}

// forget removes endpoints that are no longer in the set and do not sit out.
func (h *history) forget(set *Set) {
	in := set.endpoints()
	maps.DeleteFunc(h.endpoints, func(e *Endpoint, _ *endpointHistory) bool { return !in[e] })
}

func (s *Set) endpoints() map[*Endpoint]bool {
	all := make(map[*Endpoint]bool, len(s.Candidates))
	for i := range s.Candidates {
		all[s.Candidates[i].Endpoint] = true
	}
	return all
}

// admit finds the endpoints that do not sit out at a time, and makes a picker for them; history.mu
// must be held.
func (p *ejecting) admit(before Picker, now int64) {
	a := &admitted{back: math.MaxInt64, set: &Set{Service: p.set.Service, Policy: p.set.Policy}}
	most := len(p.set.Candidates) / outShare
	for i := range p.set.Candidates {
		c := p.set.Candidates[i]
		d := p.history.endpoints[c.Endpoint]
		if d == nil || d.until <= now || int(a.out) >= most {
			a.set.Candidates = append(a.set.Candidates, c)
			continue
		}
		if a.out == 0 {
			a.first = ejected{c.Position, d.failures, d.until}
		}
		a.out++
		a.back = min(a.back, d.until)
	}
	a.picker = p.inner.New(a.set, before)
	p.in.Store(a)
}

func (p *ejecting) Pick(f Flow) decision.Pick {
	a := p.in.Load()
	if a.out == 0 {
		return a.pick(f)
	}
	now := f.Now()
	if now >= a.back {
		p.history.mu.Lock()
		if a = p.in.Load(); now >= a.back { // no other worker was faster
			p.admit(a.picker, now)
			a = p.in.Load()
		}
		p.history.mu.Unlock()
	}
	pick := a.pick(f)
	if pick.SatOut = a.out; a.out > 0 {
		seconds := (a.first.until - now + int64(time.Second) - 1) / int64(time.Second)
		pick.FirstOut = decision.Out{
			Position: a.first.position, Failures: uint16(min(a.first.failures, math.MaxUint16)),
			Seconds: uint16(min(max(seconds, 0), math.MaxUint16)),
		}
	}
	return pick
}

// pick selects with the inner algorithm. Its positions are those of the admitted endpoints.
func (a *admitted) pick(f Flow) decision.Pick {
	pick := a.picker.Pick(f)
	pick.Position = a.set.Candidates[min(int(pick.Position), len(a.set.Candidates)-1)].Position
	return pick
}

// Observe implements [Observer].
func (p *ejecting) Observe(e Event) {
	if o, ok := p.in.Load().picker.(Observer); ok {
		o.Observe(e)
	}
	p.history.mu.Lock()
	defer p.history.mu.Unlock()
	d := p.history.endpoints[e.Endpoint]
	switch e.Kind {
	case Answered:
		if d == nil {
			return
		}
		if d.failures = 0; e.At > d.until+int64(d.last) {
			d.last = 0
		}
		return
	case Refused, Unanswered:
	default:
		return
	}
	if d == nil {
		d = new(endpointHistory)
		p.history.endpoints[e.Endpoint] = d
	}
	d.failures++
	if e.At < d.until || d.failures < ejectAfter && d.last == 0 {
		return
	}
	d.last = min(max(2*d.last, firstOut), longestOut)
	d.until = e.At + int64(d.last)
	p.admit(p.in.Load().picker, e.At)
}

// State implements [Reporter].
func (p *ejecting) State() any {
	a := p.in.Load()
	s := struct {
		Ejected []string `json:"ejected"`
		Inner   any      `json:"inner,omitempty"`
	}{Ejected: []string{}}
	in := a.set.endpoints()
	for i := range p.set.Candidates {
		if e := p.set.Candidates[i].Endpoint; !in[e] {
			s.Ejected = append(s.Ejected, e.AddrPort.String())
		}
	}
	if r, ok := a.picker.(Reporter); ok {
		s.Inner = r.State()
	}
	return s
}
