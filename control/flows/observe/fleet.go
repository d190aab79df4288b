package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Fleet is the Observer of several nodes. A node that cannot be asked is logged once and
// left out of answers; it is an error if none can be. Its methods are safe for concurrent use.
type Fleet struct {
	members []Member
	FleetOptions
	// retry is how long a stream of a node that broke off is left at first; then twice as
	// long each time, up to longestRetry.
	retry time.Duration
	holds fleetHolds

	mu   sync.Mutex
	lost map[string]bool // nodes that could not be asked the last time
}

var _ Observer = (*Fleet)(nil)

// Member is a node of a fleet.
type Member struct {
	Name     string // as records of it have it
	Observer Observer
}

// FleetOptions may all be left out.
type FleetOptions struct {
	// Names knows who has an address: a pod (namespace/name), the node it is on or that it
	// is, or a host outside of the cluster; each may be empty. Records get the names they lack.
	Names func(netip.Addr) (pod, node, host string)
	// Addresses are those for which Names gives the name, of a pod also without its namespace.
	// Names that it does not know are for the nodes to know.
	Addresses func(name string) []netip.Addr
	Log       *slog.Logger
}

// The time between attempts to follow a node's flows.
const (
	firstRetry   = 200 * time.Millisecond
	longestRetry = 5 * time.Second
)

// NewFleet makes an Observer of the nodes, at least one and each of another name, for which
// [Fleet.Close] is to be called.
func NewFleet(members []Member, o FleetOptions) (*Fleet, error) {
	if len(members) == 0 {
		return nil, errors.New("a fleet of no nodes: want one or more")
	}
	seen := make(map[string]bool)
	for _, m := range members {
		if seen[m.Name] {
			return nil, fmt.Errorf("two nodes are called %q: want another name for each", m.Name)
		}
		seen[m.Name] = true
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{members: slices.Clone(members), FleetOptions: o, retry: firstRetry, lost: make(map[string]bool)}
	f.holds.fleet = f
	f.holds.watching, f.holds.stop = context.WithCancel(context.Background())
	f.holds.changed = make(chan struct{})
	return f, nil
}

// Close ends what goes on by itself: watching holds, which then end by themselves on their nodes.
func (f *Fleet) Close() {
	f.holds.stop()
	f.holds.watchers.Wait()
}

// Holder is what holds flows on the nodes that can; nil: none can.
func (f *Fleet) Holder() Holder {
	for _, m := range f.members {
		if m.Observer.Holder() != nil {
			return &f.holds
		}
	}
	return nil
}

// named gives the members of these names, all if there are none.
func (f *Fleet) named(nodes []string) ([]Member, error) {
	if len(nodes) == 0 {
		return f.members, nil
	}
	var list []Member
	for _, node := range nodes {
		i := slices.IndexFunc(f.members, func(m Member) bool { return m.Name == node })
		if i < 0 {
			return nil, &Error{http.StatusBadRequest, "node", fmt.Sprintf("node %q: there is none of this name: want %s", node, f.names())}
		}
		if !slices.ContainsFunc(list, func(m Member) bool { return m.Name == node }) {
			list = append(list, f.members[i])
		}
	}
	return list, nil
}

// names lists the members for a message.
func (f *Fleet) names() string {
	var names []string
	for _, m := range f.members {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// reply is what one member said.
type reply[T any] struct {
	Member
	answer T
	err    error
}

// askAll asks the members at the same time, and gives their replies in their order.
func queryAll[T any](members []Member, ask func(Member) (T, error)) []reply[T] {
	replies := make([]reply[T], len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		asking.Go(func() {
			answer, err := ask(m)
			replies[i] = reply[T]{m, answer, err}
		})
	}
	asking.Wait()
	return replies
}

// answered leaves out those that could not answer. If it is the asker's fault, or nobody
// did, that is the error.
func answered[T any](f *Fleet, replies []reply[T]) ([]reply[T], error) {
	var good []reply[T]
	var errs []error
	for _, r := range replies {
		var e *Error
		if errors.As(r.err, &e) {
			return nil, e
		}
		if r.err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", r.Name, r.err))
			continue
		}
		good = append(good, r)
	}
	for _, r := range replies {
		f.note(r.Name, r.err)
	}
	if len(good) == 0 {
		return nil, errors.Join(errs...)
	}
	return good, nil
}

// note logs when a node cannot be asked any more, and when it can again: pages ask all the
// time.
func (f *Fleet) note(node string, err error) {
	if errors.Is(err, errNoHolds) { // it was asked, and said so
		err = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch lost := f.lost[node]; {
	case err != nil && !lost:
		f.Log.Warn("a node cannot be asked, and is left out of answers", "node", node, "error", err)
	case err == nil && lost:
		f.Log.Info("a node can be asked again", "node", node)
	}
	f.lost[node] = err != nil
}

// Flow asks all nodes.
func (f *Fleet) Flow(ctx context.Context, id string) (*flow.Record, error) {
	replies := queryAll(f.members, func(m Member) (*flow.Record, error) { return m.Observer.Flow(ctx, id) })
	var faults []error
	for _, r := range replies {
		var e *Error
		switch {
		case r.err == nil:
			return f.decorate(r.Name, r.answer), nil
		case errors.As(r.err, &e) && e.Status == http.StatusNotFound:
		case errors.As(r.err, &e):
			return nil, e
		default:
			faults = append(faults, fmt.Errorf("node %s: %w", r.Name, r.err))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("flow %q is known at no node that could be asked: %w", id, errors.Join(faults...))
	}
	return nil, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("no flow %q is known: nodes remember a limited number", id)}
}

// Services sums up the nodes' services. With a limit, each node gives its first ones: the
// first ones of the sum are among them.
func (f *Fleet) Services(ctx context.Context, q ServiceQuery) (*Services, error) {
	filter, err := q.Parse()
	if err != nil {
		return nil, err
	}
	good, err := answered(f, queryAll(f.members, func(m Member) (*Services, error) { return m.Observer.Services(ctx, q) }))
	if err != nil {
		return nil, err
	}
	sum := mergeServices(answers(good))
	filter.cut(sum, slices.ContainsFunc(answers(good), func(s *Services) bool { return s.Next != "" }))
	return sum, nil
}

// Tables gives the tables of all nodes.
func (f *Fleet) Tables(ctx context.Context) ([]Table, error) {
	good, err := answered(f, queryAll(f.members, func(m Member) ([]Table, error) { return m.Observer.Tables(ctx) }))
	return slices.Concat(answers(good)...), err
}

// Stats gives the counters of all nodes.
func (f *Fleet) Stats(ctx context.Context) ([]Stats, error) {
	good, err := answered(f, queryAll(f.members, func(m Member) ([]Stats, error) { return m.Observer.Stats(ctx) }))
	return slices.Concat(answers(good)...), err
}

// Topology is what any of the nodes knows. Those that cannot be asked are in it, and not
// observed.
func (f *Fleet) Topology(ctx context.Context) (*Topology, error) {
	good, err := answered(f, queryAll(f.members, func(m Member) (*Topology, error) { return m.Observer.Topology(ctx) }))
	if err != nil {
		return nil, err
	}
	members := &Topology{}
	for _, m := range f.members {
		members.Nodes = append(members.Nodes, TopologyNode{Name: m.Name})
	}
	t := mergeTopologies(append(answers(good), members))
	t.CanHold = t.CanHold && f.Holder() != nil
	return t, nil
}

// Explain asks the node of the question.
func (f *Fleet) Explain(ctx context.Context, q Question) (*flow.Record, error) {
	if q.Node == "" && len(f.members) > 1 {
		return nil, &Error{http.StatusBadRequest, "node", "node is missing: each decides for itself: want one of " + f.names()}
	}
	var nodes []string
	if q.Node != "" {
		nodes = []string{q.Node}
	}
	members, err := f.named(nodes)
	if err != nil {
		return nil, err
	}
	r, err := members[0].Observer.Explain(ctx, q)
	if err != nil {
		return nil, err
	}
	return f.decorate(members[0].Name, r), nil
}

func answers[T any](replies []reply[T]) []T {
	var list []T
	for _, r := range replies {
		list = append(list, r.answer)
	}
	return list
}

// addressList replaces the names of a list by their addresses, as nodes need not know all names.
func (f *Fleet) addressList(list string) string {
	if f.Addresses == nil {
		return list
	}
	var values []string
	for s := range strings.SplitSeq(list, ",") {
		p, err := parseEnd(strings.TrimSpace(s))
		addresses := f.Addresses(p.Name)
		if err != nil || p.Name == "" || len(addresses) == 0 {
			values = append(values, s)
			continue
		}
		for _, a := range addresses {
			if p.Port == 0 {
				values = append(values, a.String())
			} else {
				values = append(values, netip.AddrPortFrom(a, p.Port).String())
			}
		}
	}
	return strings.Join(values, ",")
}

// decorate gives the record with the names it lacks, and with the fleet's name of the
// hold. The record itself may be somebody else's, too, and is not changed.
func (f *Fleet) decorate(node string, r *flow.Record) *flow.Record {
	c := *r
	if f.Names != nil {
		if source, err := netip.ParseAddrPort(r.Source); err == nil {
			fill(f.Names, source.Addr(), &c.SourcePod, &c.SourceNode, &c.SourceHost)
		}
		if endpoint, err := netip.ParseAddrPort(r.Endpoint); err == nil {
			var host string
			fill(f.Names, endpoint.Addr(), &c.Pod, &c.EndpointNode, &host)
		}
	}
	if c.Held != nil {
		held := *c.Held
		held.ID = f.holds.idOf(node, held.ID)
		c.Held = &held
	}
	return &c
}

// fill gives names to those that are empty.
func fill(names func(netip.Addr) (pod, node, host string), a netip.Addr, pod, node, host *string) {
	p, n, h := names(a)
	*pod, *node, *host = cmp.Or(*pod, p), cmp.Or(*node, n), cmp.Or(*host, h)
}
