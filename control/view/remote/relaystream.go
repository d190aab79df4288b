package remote

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Flows lists the nodes' flows in the order of their decisions, after the missed items, or follows
// them in the order of their arrival; Limit then counts for each node, and is less if there are many. An unreachable node is
// reported as missed ([MissedUnreachable]), and retried. A reader that wants earlier flows, too, then gets first those that the
// node has decided meanwhile. The rate is divided among the nodes.
func (f *Relay) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	filter, err := q.Parse(time.Now())
	if err != nil {
		return err
	}
	q.Source, q.Endpoint = f.addressList(q.Source), f.addressList(q.Endpoint)
	if q.Follow {
		return f.follow(ctx, filter, q, each)
	}
	members, _ := f.all()
	if members, err = named(members, filter.Nodes); err != nil {
		return err
	}
	return f.list(ctx, members, q, filter.Limit, each)
}

// follow follows flows of the members, and of those that come later.
func (f *Relay) follow(ctx context.Context, filter *observe.Filter, q observe.FlowQuery, each func(observe.Item) error) error {
	following, cancel := context.WithCancel(ctx)
	s := &followers{relay: f, ctx: following, nodes: filter.Nodes, query: q, rate: cmp.Or(filter.Rate, f.Records),
		items: make(chan observe.Item), passed: make(chan observe.Item), faults: make(chan error), running: make(map[string]follower)}
	defer s.done.Wait()
	defer cancel()
	members, changed := f.all()
	if _, err := named(members, filter.Nodes); err != nil {
		return err
	}
	if len(members) == 0 {
		return errNoNodes
	}
	s.set(members)
	s.query.Since, s.query.Limit = "", "" // of the members so far only
	j := joiner{pairs: !q.ServicesOnly}
	for {
		select {
		case i := <-s.items:
			if err := each(i); err != nil {
				return err
			}
			if err := eachJoined(j.record, q.Joined, i, each); err != nil {
				return err
			}
		case i := <-s.passed:
			if err := eachJoined(j.pass, q.Joined, i, each); err != nil {
				return err
			}
		case <-changed:
			members, changed = f.all()
			s.set(members)
		case err := <-s.faults:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// followers are the streams of a relay's reader.
type followers struct {
	relay *Relay
	ctx   context.Context
	nodes []string          // that are followed; empty: all
	query observe.FlowQuery // of the reader
	rate  int               // for all nodes together, in records per second
	// items are what the reader is given, passed what is joined to it, faults the errors of invalid
	// requests.
	items, passed chan observe.Item
	faults        chan error
	done          sync.WaitGroup
	running       map[string]follower // by node
}

// follower is the streams of one node.
type follower struct {
	observer observe.Observer
	stop     context.CancelFunc
}

// A stream begins with as many times the past records that are requested as this, of all nodes together: not all have
// the same number. But each gives at least a few.
const pastOfAll, pastLeast = 4, 5

// set ends the streams of nodes that are gone, and begins those of new ones.
func (s *followers) set(members []Member) {
	there := make(map[string]observe.Observer)
	for _, m := range members {
		there[m.Name] = m.Observer
	}
	for node, r := range s.running {
		if there[node] != r.observer {
			r.stop()
			delete(s.running, node)
		}
	}
	shown := len(members)
	if len(s.nodes) > 0 {
		shown = len(s.nodes)
	}
	streams := shown
	if s.query.Joined {
		streams += len(members)
	}
	q := s.query
	q.Joined = false // a node alone joins nothing
	q.Rate = ""
	if rate := s.rate / max(1, streams); rate < observe.NodeRecords {
		q.Rate = strconv.Itoa(max(1, rate))
	}
	if n, err := strconv.Atoi(q.Limit); err == nil && n > 0 {
		q.Limit = strconv.Itoa(min(n, max(pastLeast, pastOfAll*n/max(1, shown))))
	}
	for _, m := range members {
		if _, ok := s.running[m.Name]; ok {
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		s.running[m.Name] = follower{m.Observer, stop}
		if len(s.nodes) == 0 || slices.Contains(s.nodes, m.Name) {
			s.start(ctx, m, q, s.items)
		}
		if s.query.Joined {
			s.start(ctx, m, passingQuery(q, len(members)), s.passed)
		}
	}
}

// start follows the flows of a node until the context ends.
func (s *followers) start(ctx context.Context, m Member, q observe.FlowQuery, items chan<- observe.Item) {
	s.done.Go(func() {
		if err := s.relay.followOne(ctx, m, q, items); err != nil {
			select {
			case s.faults <- err:
			case <-ctx.Done():
			}
		}
	})
}

// eachJoined gives what a joiner finds for a record.
func eachJoined(find func(*flow.Record) []observe.Joined, wanted bool, i observe.Item, each func(observe.Item) error) error {
	if !wanted || i.Record == nil {
		return nil
	}
	for _, found := range find(i.Record) {
		if err := each(observe.Item{Joined: &found}); err != nil {
			return err
		}
	}
	return nil
}

// followOne follows a node's flows until the context ends, and reconnects as often as needed. The
// error is that of an invalid request.
func (f *Relay) followOne(ctx context.Context, m Member, q observe.FlowQuery, items chan<- observe.Item) error {
	give := func(i observe.Item) error {
		select {
		case items <- i:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	wait, reported := f.retry, false
	earlier := q.Since+q.Limit != ""
	var ended time.Time // the last stream that gave anything
	for {
		if earlier && !ended.IsZero() {
			q.Since = time.Since(ended).String() // its clock may differ: a duration
		}
		given := false
		err := m.Observer.Flows(ctx, q, func(i observe.Item) error {
			given = true
			q.Since, q.Limit = "", "" // earlier records were already sent
			wait, reported = f.retry, false
			return give(f.filledIn(m.Name, i))
		})
		if ctx.Err() != nil {
			return nil
		}
		if given {
			ended = time.Now()
		}
		if err == nil {
			err = errors.New("the stream ended")
		}
		var e *observe.Error
		if errors.As(err, &e) && e.Status != http.StatusTooManyRequests {
			return e
		}
		f.Log.Warn("cannot follow the flows of a node; reconnecting", "node", m.Name, "in", wait, "error", err)
		if !reported {
			if reported = true; give(unreachable(m)) != nil {
				return nil
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, longestRetry)
	}
}
