package web_test

import (
	"container/heap"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// fake is a flow API whose cluster is a [world]: it makes flows at a rate and leads them
// through their lives.
type fake struct {
	mu     sync.Mutex
	world  *world
	rate   float64 // flows in a second
	owed   float64 // flows that are due, from 0 to 1
	number int
	flows  map[string]*flow.Record
	order  []string // of flows, oldest first
	events events
	// readers follow the flows.
	readers map[*reader]bool
	counts  map[string]*observe.Flows // by service and by service|endpoint
	refused map[string]map[string]uint64
	listed  []observe.Service
	// requests are those for services.
	requests []servicesRequest
	holds    map[string]*observe.Hold
	changed  chan struct{}               // closed when a hold changes
	changes  map[string][]observe.Change // of services
	// lab is the lab; nil: it is none.
	lab *fakeLab
	// teacher teaches a course; nil: there is none.
	teacher *fakeTeacher
	// unobserved is the name of a node whose flows are not observed.
	unobserved string
	// history: a list until a time has the same flows.
	history bool
}

// reader is who follows the flows, with room for those it has not read yet.
type reader struct {
	query  observe.FlowQuery
	items  chan observe.Item
	missed uint64
}

// remembered is how many flows the fake knows at most.
const remembered = 4000

// newFake makes the API and lets its flows happen until the test ends, which runs beside others: it mostly waits.
func newFake(t testing.TB, w *world, rate float64) *fake {
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	f := &fake{
		world: w, rate: rate, flows: make(map[string]*flow.Record), readers: make(map[*reader]bool),
		counts: make(map[string]*observe.Flows), refused: make(map[string]map[string]uint64),
		listed: listed(w), holds: make(map[string]*observe.Hold), changed: make(chan struct{}), lab: newFakeLab(w),
	}
	tick, stop, stopped := time.NewTicker(10*time.Millisecond), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				f.advance(now, now.Sub(last))
				last = now
			}
		}
	}()
	t.Cleanup(func() { tick.Stop(); close(stop); <-stopped })
	return f
}

// setRate sets the flows in a second from now on.
func (f *fake) setRate(rate float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rate = rate
}

// advance does all that happens in a short time.
func (f *fake) advance(now time.Time, passed time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// On a machine that is too busy, there are fewer flows instead of ever more to catch up on.
	for f.owed += f.rate * min(passed, 50*time.Millisecond).Seconds(); f.owed >= 1; f.owed-- {
		r, life := f.world.next()
		f.begin(r, life, now)
	}
	for len(f.events) > 0 && !f.events[0].at.After(now) {
		e := heap.Pop(&f.events).(event)
		if r := f.flows[e.id]; r != nil {
			f.happen(r, e.state, now)
		}
	}
	f.expire(now)
}

// begin makes a flow of a decision, unless a hold takes it.
func (f *fake) begin(r *flow.Record, life []flow.State, now time.Time) {
	f.number++
	f.world.live(r, fmt.Sprintf("%s-%08x", r.Node, f.number), now)
	if f.hold(r, now) {
		return
	}
	f.known(r, life, now)
}

// known puts a decided flow among the others, and has its life happen.
func (f *fake) known(r *flow.Record, life []flow.State, now time.Time) {
	f.flows[r.ID] = r
	f.order = append(f.order, r.ID)
	if len(f.order) > remembered {
		delete(f.flows, f.order[0])
		f.order = f.order[1:]
	}
	f.count(r, func(c *observe.Flows) {
		c.Total++
		c.Drawn += one(r.Reason == "balanced")
		c.Affinity += one(r.Reason == "affinity")
	})
	if r.Verdict == "reject" || r.Verdict == "drop" {
		f.count(r, func(c *observe.Flows) {
			c.Rejected += one(r.Verdict == "reject")
			c.Dropped += one(r.Verdict == "drop")
		})
		if f.refused[r.Service] == nil {
			f.refused[r.Service] = make(map[string]uint64)
		}
		f.refused[r.Service][r.Reason]++
	}
	f.publish(r, r.Life.State)
	if r.Verdict != "dnat" {
		return
	}
	f.join(r)
	at := now
	for _, state := range life {
		wait := time.Duration(20+f.world.random.IntN(60)) * time.Millisecond
		switch state {
		case flow.Unanswered:
			wait = flow.UnansweredAfter
		case flow.Closing, flow.Reset, flow.Gone:
			wait = time.Duration(300+f.world.random.IntN(4000)) * time.Millisecond
		}
		at = at.Add(wait)
		heap.Push(&f.events, event{at, r.ID, state})
	}
}

// happen brings a flow on in its life.
func (f *fake) happen(r *flow.Record, state flow.State, now time.Time) {
	next := *r // what was published stays as it is
	life := *r.Life
	next.Life = &life
	life.History = append(slices.Clone(life.History), flow.Moment{Event: state, Time: now})
	if state == flow.Gone {
		life.Over = true
		if life.State == flow.Answered {
			life.State = flow.Expired
		}
	} else {
		life.State, life.Since = state, now
	}
	life.Duration = now.Sub(*r.Time).Seconds()
	life.SeenSource = r.Source
	if r.Masquerade {
		life.SeenSource = r.MasqueradeAddress + r.Source[strings.LastIndex(r.Source, ":"):]
	}
	life.KernelState = map[flow.State]string{flow.Answered: "SYN_RECV", flow.Established: "ESTABLISHED", flow.Closing: "FIN_WAIT", flow.Closed: "TIME_WAIT", flow.Reset: "CLOSE", flow.Refused: "CLOSE", flow.Unanswered: "SYN_SENT"}[life.State]
	if r.Protocol == "UDP" {
		life.KernelState = ""
	}
	life.Answered = life.Answered || state != flow.Unanswered && state != flow.Gone
	if life.Answered {
		packets := uint64(len(life.History) * 2)
		life.Sent, life.Received = &flow.Count{Packets: packets, Bytes: packets * 131}, &flow.Count{Packets: packets, Bytes: packets * packets * 1487}
		life.CountedAt = &now
	}
	f.flows[r.ID] = &next
	switch state {
	case flow.Unanswered, flow.Refused, flow.Reset:
		f.count(&next, func(c *observe.Flows) {
			c.Unanswered += one(state == flow.Unanswered)
			c.Refused += one(state == flow.Refused)
			c.Reset += one(state == flow.Reset)
		})
	}
	f.publish(&next, state)
}

func one(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// count counts for the service and for the endpoint.
func (f *fake) count(r *flow.Record, how func(*observe.Flows)) {
	for _, key := range []string{r.Service, r.Service + "|" + r.Endpoint} {
		if f.counts[key] == nil {
			f.counts[key] = new(observe.Flows)
		}
		how(f.counts[key])
	}
}

// publish sends readers an event.
func (f *fake) publish(r *flow.Record, e flow.Event) {
	for reader := range f.readers {
		if !matches(&reader.query, r) {
			continue
		}
		if left := noService(&reader.query, r); left != nil {
			if e == flow.Decided {
				select {
				case reader.items <- observe.Item{Missed: left}:
				default:
				}
			}
			continue
		}
		if reader.missed > 0 {
			select {
			case reader.items <- observe.Item{Missed: &observe.Missed{Node: r.Node, Missed: reader.missed, Why: observe.MissedSlow}}:
				reader.missed = 0
			default:
			}
		}
		select {
		case reader.items <- observe.Item{Record: inStream(r, e)}:
		default:
			reader.missed++
		}
	}
}

// other is what the endpoint's node decides about a flow; nil: it is the node itself.
func other(r *flow.Record) *flow.Record {
	if r.EndpointNode == "" || r.EndpointNode == r.Node {
		return nil
	}
	later := r.Time.Add(300 * time.Microsecond)
	source := r.Source
	if r.Masquerade {
		source = r.MasqueradeAddress + r.Source[strings.LastIndex(r.Source, ":"):]
	}
	return &flow.Record{
		Version: 1, ID: r.ID + "-passed", Time: &later, Node: r.EndpointNode, Verdict: "accept", Reason: "not-a-service", Protocol: r.Protocol,
		Source: source, Destination: r.Endpoint, Life: &flow.Life{State: flow.Decided, Since: later}, Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{},
	}
}

// join sends readers what the endpoint's node decided about a flow.
func (f *fake) join(r *flow.Record) {
	o := other(r)
	for reader := range f.readers {
		if o != nil && reader.query.Joined && matches(&reader.query, r) {
			select {
			case reader.items <- observe.Item{Joined: &observe.Joined{Flow: r.ID, Other: o}}:
			default:
			}
		}
	}
}

// miss has all readers miss records. One that is behind is waited for.
func (f *fake) miss(ctx context.Context, m observe.Missed) {
	f.mu.Lock()
	readers := slices.Collect(maps.Keys(f.readers))
	f.mu.Unlock()
	for _, r := range readers {
		select {
		case r.items <- observe.Item{Missed: &m}:
		case <-ctx.Done():
		}
	}
}

// inStream is the record without what only a single flow has.
func inStream(r *flow.Record, e flow.Event) *flow.Record {
	c, life := *r, *r.Life
	life.History = nil
	c.Event, c.Steps, c.Life = e, nil, &life
	if e != 0 {
		now := time.Now()
		c.Emitted = &now
	}
	return &c
}

// noService means that the flow is left out, as it is for no service; nil: it is not.
func noService(q *observe.FlowQuery, r *flow.Record) *observe.Missed {
	if !q.ServicesOnly || r.Reason != "not-a-service" {
		return nil
	}
	return &observe.Missed{Node: r.Node, Missed: 1, Why: observe.MissedLeftOut}
}

// follow registers a reader; leave ends it. before are the newest flows as they are, oldest
// first, none older than since.
func (f *fake) follow(q observe.FlowQuery, limit int, since time.Time) (r *reader, before []observe.Item, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r = &reader{query: q, items: make(chan observe.Item, 2000)}
	f.readers[r] = true
	for _, id := range slices.Backward(f.order) {
		if limit == 0 || f.flows[id].Time.Before(since) {
			break
		}
		if !matches(&q, f.flows[id]) {
			continue
		}
		if left := noService(&q, f.flows[id]); left != nil {
			before = append(before, observe.Item{Missed: left})
			continue
		}
		if o := other(f.flows[id]); o != nil && q.Joined && f.flows[id].Verdict == "dnat" {
			before = append(before, observe.Item{Joined: &observe.Joined{Flow: id, Other: o}})
		}
		before = append(before, observe.Item{Record: inStream(f.flows[id], 0)})
		limit--
	}
	slices.Reverse(before)
	return r, before, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.readers, r)
	}
}

// matches does as the API's filter does, as far as the page's tests need it.
func matches(q *observe.FlowQuery, r *flow.Record) bool {
	host := func(s string) []string { return []string{s, s[:max(0, strings.LastIndex(s, ":"))]} }
	name := func(s string) []string { return []string{s, s[strings.LastIndex(s, "/")+1:]} }
	service, _, _ := strings.Cut(r.Service, ":")
	namespace := func(s string) string { n, _, _ := strings.Cut(s, "/"); return n }
	for want, have := range map[*string][]string{
		&q.Service:     append(name(service), r.Service),
		&q.Namespace:   {namespace(r.Service), namespace(r.Pod), namespace(r.SourcePod)},
		&q.Pod:         append(name(r.Pod), name(r.SourcePod)...),
		&q.Node:        {r.Node},
		&q.Source:      slices.Concat(host(r.Source), name(r.SourcePod), []string{r.SourceHost, r.SourceNode}),
		&q.Destination: host(r.Destination),
		&q.Endpoint:    append(host(r.Endpoint), name(r.Pod)...),
		&q.Port:        {r.Destination[strings.LastIndex(r.Destination, ":")+1:]},
		&q.Protocol:    {r.Protocol, strings.ToLower(r.Protocol)},
		&q.Verdict:     {r.Verdict},
		&q.Reason:      {r.Reason},
		&q.State:       {r.Life.State.String()},
	} {
		if *want != "" && !slices.ContainsFunc(strings.Split(*want, ","), func(s string) bool { return slices.Contains(have, s) }) {
			return false
		}
	}
	return true
}

// services is the answer about services.
func (f *fake) services(q observe.ServiceQuery) (*observe.Services, error) {
	filter, err := q.Parse()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &observe.Services{Nodes: []string{}, Services: []observe.Service{}}
	for _, n := range f.world.nodes {
		answer.Nodes = append(answer.Nodes, n.name)
	}
	open := make(map[string]uint64)
	for _, r := range f.flows {
		open[r.Service] += one(r.Life.Open())
	}
	for i := range f.listed {
		o := f.listed[i]
		c := f.counts[o.Service]
		if !filter.Match(decision.ServicePortName{Namespace: o.Namespace, Name: o.Name, Port: o.PortName}) || filter.Active && c == nil || o.Key().Compare(filter.After) <= 0 {
			continue
		}
		if len(answer.Services) == filter.Limit && filter.Limit > 0 {
			answer.Next = answer.Services[filter.Limit-1].Key().String()
			break
		}
		o.Refused, o.Endpoints = maps.Clone(f.refused[o.Service]), slices.Clone(o.Endpoints)
		if c != nil {
			o.Flows = *c
			o.Flows.Open = open[o.Service]
		}
		for i := range o.Endpoints {
			x := &o.Endpoints[i]
			if c := f.counts[o.Service+"|"+x.Endpoint]; c != nil {
				x.Flows = *c
			}
			if o.Flows.Drawn > 0 {
				x.Observed = float64(x.Flows.Drawn) / float64(o.Flows.Drawn)
			}
		}
		o.Fit = fit(&o)
		if q.Changes {
			o.Changes = f.changes[o.Service]
		}
		answer.Services = append(answer.Services, o)
	}
	return answer, nil
}

// setChanges sets the changes of a service.
func (f *fake) setChanges(service string, changes []observe.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = map[string][]observe.Change{service: changes}
}

// listed are the services of a world without their counts, in the order of the API.
func listed(w *world) []observe.Service {
	list := slices.Clone(w.crowd)
	for _, s := range w.services {
		o := observe.Service{
			Service: s.Name.String(), Namespace: s.Name.Namespace, Name: s.Name.Name, PortName: s.Name.Port, Family: "IPv4",
			Protocol: s.Protocol.String(), ClusterIP: s.ClusterIP.String(), Port: s.Port, NodePort: s.NodePort,
			ExternalIPs: s.ExternalIPs, LoadBalancerIPs: s.LoadBalancerIPs, InternalPolicy: s.InternalPolicy.String(),
			ExternalPolicy: s.ExternalPolicy.String(), AffinitySeconds: s.AffinitySeconds, Endpoints: []observe.Endpoint{},
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			x := observe.Endpoint{Endpoint: e.AddrPort.String(), Pod: e.Pod, Node: e.NodeName}
			if why := e.Exclusions[s.InternalPolicy]; why != 0 {
				x.Excluded = why.String()
			} else {
				x.Expected = 1 / float64(len(s.Usable[s.InternalPolicy]))
			}
			o.Endpoints = append(o.Endpoints, x)
		}
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b observe.Service) int { return a.Key().Compare(b.Key()) })
	return list
}

// fit is Pearson's test, its p-value by Wilson and Hilferty's approximation.
func fit(s *observe.Service) *observe.Fit {
	x := &observe.Fit{Since: time.Now().Add(-time.Hour), Draws: s.Flows.Drawn, DegreesOfFreedom: -1}
	for _, e := range s.Endpoints {
		if want := e.Expected * float64(x.Draws); want > 0 {
			x.ChiSquare += (float64(e.Flows.Drawn) - want) * (float64(e.Flows.Drawn) - want) / want
			x.DegreesOfFreedom++
		}
	}
	if x.DegreesOfFreedom < 1 {
		return nil
	}
	k := float64(x.DegreesOfFreedom)
	z := (math.Cbrt(x.ChiSquare/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k))
	x.PValue = math.Erfc(z/math.Sqrt2) / 2
	return x
}

// event is something that will happen to a flow.
type event struct {
	at    time.Time
	id    string
	state flow.State
}

// events are a heap, by time.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
