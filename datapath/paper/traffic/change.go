package traffic

import (
	"cmp"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// lifecycle is that of an event that changes the endpoints of a service; nil: it does not.
func (e *Event) lifecycle() *Lifecycle {
	switch {
	case e.Scale != nil:
		return &e.Scale.Lifecycle
	case e.RollingUpdate != nil:
		return &e.RollingUpdate.Lifecycle
	case e.Autoscale != nil:
		return &e.Autoscale.Lifecycle
	}
	return nil
}

// change does what an Event, or the life of an endpoint, has for this time.
func (s *simulation) change(e timed) {
	ev := &s.c.Events[e.tag]
	switch e.kind {
	case change:
		s.begin(ev, e.tag)
	case undo:
		s.end(ev)
	case replace:
		s.launch(s.servers[e.id].service, e.id, e.tag)
	case ready:
		server := &s.servers[e.id]
		if server.ending || !s.nodes[server.node].alive {
			return
		}
		server.listed = true
		if old := s.origins[e.id].replaces; old >= 0 {
			s.leave(old, e.tag)
		}
		s.publish(server.service)
	case listens:
		if s.servers[e.id].present {
			s.servers[e.id].listening = true
			s.note(Step{Kind: Listens, Endpoint: int(e.id)})
		}
	case deaf:
		s.servers[e.id].listening = false
		s.note(Step{Kind: Deaf, Endpoint: int(e.id)})
	case gone:
		s.lose(e.id)
	case noticed:
		s.evict(e.id)
	case sampled:
		s.sampleLoad(e.id)
	}
}

// begin begins an Event.
func (s *simulation) begin(ev *Event, number uint32) {
	for_ := int64(0)
	switch {
	case ev.Scale != nil:
		s.scaleTo(s.service(ev.Scale.Service), ev.Scale.To, number)
	case ev.Autoscale != nil:
		s.autoscale(ev.Autoscale, number)
	case ev.RollingUpdate != nil:
		u := ev.RollingUpdate
		every, at := cmp.Or(u.Every, u.Ready), s.now
		for _, id := range s.running(s.service(u.Service)) {
			s.queue.add(at, replace, id, number)
			at += int64(every)
		}
	case ev.Slow != nil:
		s.slow(ev.Slow, ev.Slow.Factor)
		for_ = int64(ev.Slow.For)
	case ev.Antagonist != nil:
		s.antagonist(ev.Antagonist, ev.Antagonist.Factor)
		for_ = int64(ev.Antagonist.For)
	case ev.NodeLoss != nil:
		s.loseNodes(ev.NodeLoss)
	case ev.Flush != nil:
		s.flush(cmp.Or(ev.Flush.Nodes, len(s.nodes)))
	case ev.Away != nil:
		s.control.away++
		for_ = int64(ev.Away.For)
	}
	if for_ > 0 {
		s.queue.add(s.now+for_, undo, 0, number)
	}
}

// end ends an Event that is for some time.
func (s *simulation) end(ev *Event) {
	switch {
	case ev.Slow != nil:
		s.slow(ev.Slow, 1)
	case ev.Antagonist != nil:
		s.antagonist(ev.Antagonist, 1)
	case ev.Away != nil:
		if s.control.away--; s.control.away == 0 && s.control.withheld {
			s.control.withheld = false
			s.distribute()
		}
	}
}

// running are the endpoints of a service that are not ending.
func (s *simulation) running(service int32) (ids []int32) {
	for _, id := range s.members[service] {
		if !s.servers[id].ending {
			ids = append(ids, id)
		}
	}
	return ids
}

// scaleTo has a service have a number of endpoints, by an Event.
func (s *simulation) scaleTo(service int32, to int, number uint32) {
	running := s.running(service)
	for range to - len(running) {
		s.launch(service, -1, number)
	}
	if to < len(running) {
		for _, id := range running[to:] {
			s.leave(id, number)
		}
		s.publish(service)
	}
}

// launch starts an endpoint on the next node that is there.
func (s *simulation) launch(service, replaces int32, number uint32) {
	k, l := &s.control, s.c.Events[number].lifecycle()
	for range s.nodes {
		if k.place++; s.nodes[k.place%len(s.nodes)].alive {
			break
		}
	}
	weight := uint16(1)
	if replaces >= 0 {
		weight = s.servers[replaces].weight
	} else if all := s.c.Cluster.Services[service].Endpoints; len(all) > 0 {
		weight = all[0].Weight
	}
	id := s.newServer(Endpoint{AddrPort: EndpointAddr(MaxGenerated + k.started), Node: k.place % len(s.nodes), Weight: weight}, service)
	k.started++
	s.origins[id].replaces = replaces
	s.members[service] = append(s.members[service], id)
	s.queue.add(s.now+int64(l.Ready+l.Listens), listens, id, number)
	s.queue.add(s.now+int64(l.Ready), ready, id, number)
}

// leave has an endpoint end. The tables are not made yet.
func (s *simulation) leave(id int32, number uint32) {
	e, l := &s.servers[id], s.c.Events[number].lifecycle()
	if e.ending {
		return
	}
	e.ending, e.listed = true, false
	s.members[e.service] = slices.DeleteFunc(s.members[e.service], func(other int32) bool { return other == id })
	s.queue.add(s.now+int64(min(l.PreStop, l.Grace)), deaf, id, number)
	s.queue.add(s.now+int64(l.Grace), gone, id, number)
}

func (s *simulation) slow(ev *Slow, factor float64) {
	running := s.running(s.service(ev.Service))
	for _, id := range running[:min(cmp.Or(ev.Endpoints, 1), len(running))] {
		s.servers[id].factor = factor
		s.note(Step{Kind: Slowed, Endpoint: int(id), Factor: factor})
	}
}

// last are the last nodes.
func (s *simulation) last(n int) []node {
	return s.nodes[len(s.nodes)-min(cmp.Or(n, 1), len(s.nodes)):]
}

func (s *simulation) antagonist(ev *Antagonist, factor float64) {
	nodes := s.last(ev.Nodes)
	for i := range nodes {
		nodes[i].factor = factor
		s.note(Step{Kind: NodeSlowed, Node: len(s.nodes) - len(nodes) + i, Factor: factor})
	}
}

func (s *simulation) loseNodes(ev *NodeLoss) {
	nodes := s.last(ev.Nodes)
	for i := range nodes {
		nodes[i].alive = false
	}
	for id := range s.servers {
		if !s.nodes[s.servers[id].node].alive && s.servers[id].present {
			s.lose(int32(id))
		}
	}
	s.note(Step{Kind: NodesLost, Node: len(s.nodes) - len(nodes)})
	s.queue.add(s.now+int64(cmp.Or(ev.Noticed, defaultNoticed)), noticed, int32(len(s.nodes)-len(nodes)), 0)
}

// evict removes the endpoints of lost nodes, from a number on, from their services.
func (s *simulation) evict(first int32) {
	var services []int32
	for id := range s.servers {
		if e := &s.servers[id]; e.node >= first && e.listed && !e.present {
			e.listed, e.ending = false, true
			services = append(services, e.service)
		}
	}
	slices.Sort(services)
	services = slices.Compact(services)
	for _, number := range services {
		s.members[number] = slices.DeleteFunc(s.members[number], func(id int32) bool { return s.servers[id].ending })
	}
	s.publish(services...)
}

// flush empties the connection tables of the first nodes.
func (s *simulation) flush(nodes int) {
	s.note(Step{Kind: Flushed, Node: min(nodes, len(s.nodes))})
	for i := range s.closed.n {
		if e := s.closed.at(i); e.node >= 0 && int(e.node) < nodes {
			e.tracked.Observe(balance.Event{Kind: balance.Ended, At: s.now})
			e.node = -1
		}
	}
	for id := range s.connections {
		c := &s.connections[id]
		has := c.phase == waits || c.phase == works || c.phase == idles // the others have no endpoint
		if has && int(c.node) < nodes && s.nodes[c.node].alive {
			s.decideAgain(int32(id))
		}
	}
}

// decideAgain decides a connection that has lost its entry. The endpoint of another decision does not
// have the connection, and resets it.
func (s *simulation) decideAgain(id int32) {
	c := &s.connections[id]
	n := &s.nodes[c.node]
	s.untrack(c)
	e := &s.servers[c.server]
	d := s.decide(n, c.client, c.port, e.service)
	if d.Verdict == decision.DNAT && s.control.server(&d) == c.server {
		c.tracked, c.hasTracker = n.balancer.Connection(&d)
		return
	}
	n.balancer.Undo(&d)
	if s.broken(c); c.counted && e.listed {
		s.result.Remapped++
	}
	number, phase := c.server, c.phase
	if phase == waits {
		s.remove(&e.waiting, id)
	} else {
		s.remove(&e.taken, id)
	}
	s.discard(id)
	if phase == works {
		s.rest(number)
	}
}
