package observe

import (
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

// Fleet is the Observer of several nodes. An unreachable node is logged once and left out of
// responses; it is an error if all are unreachable. Its methods are safe for concurrent use.
type Fleet struct {
	members []Member
	FleetOptions
	// retry is the first delay before a node's stream is reconnected; it doubles each time, up to
	// longestRetry.
	retry time.Duration
	holds fleetHolds

	mu   sync.Mutex
	lost map[string]bool // nodes that were unreachable the last time
}

var _ Observer = (*Fleet)(nil)

// Member is a node of a fleet.
type Member struct {
	Name     string // as in its records
	Observer Observer
}

// FleetOptions are all optional.
type FleetOptions struct {
	// Names fills in names in records.
	Names flow.Names
	// Addresses is the inverse of Names; a pod's namespace may be left out. The nodes resolve names
	// that it does not know.
	Addresses func(name string) []netip.Addr
	Log       *slog.Logger
}

// The delay between attempts to follow a node's flows.
const (
	firstRetry   = 200 * time.Millisecond
	longestRetry = 5 * time.Second
)

// NewFleet returns an Observer of the nodes: at least one, with distinct names. The caller must call
// [Fleet.Close].
func NewFleet(members []Member, o FleetOptions) (*Fleet, error) {
	if len(members) == 0 {
		return nil, errors.New("no nodes: want one or more")
	}
	seen := make(map[string]bool)
	for _, m := range members {
		if seen[m.Name] {
			return nil, fmt.Errorf("duplicate node name %q: want distinct names", m.Name)
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

// Close stops watching holds, which then end by their timeout on their nodes.
func (f *Fleet) Close() {
	f.holds.stop()
	f.holds.watchers.Wait()
}

// Holder returns the Holder for the nodes that support holds; nil: none does.
func (f *Fleet) Holder() Holder {
	for _, m := range f.members {
		if m.Observer.Holder() != nil {
			return &f.holds
		}
	}
	return nil
}

// named returns the members of these names, or all without names.
func (f *Fleet) named(nodes []string) ([]Member, error) {
	if len(nodes) == 0 {
		return f.members, nil
	}
	var list []Member
	for _, node := range nodes {
		i := slices.IndexFunc(f.members, func(m Member) bool { return m.Name == node })
		if i < 0 {
			return nil, &Error{http.StatusBadRequest, "node", fmt.Sprintf("node %q not found: want %s", node, f.names())}
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

// reply is the result of one member.
type reply[T any] struct {
	Member
	answer T
	err    error
}

// askAll sends a request to all members concurrently, and returns their replies in their order.
func queryAll[T any](members []Member, query func(Member) (T, error)) []reply[T] {
	replies := make([]reply[T], len(members))
	var queries sync.WaitGroup
	for i, m := range members {
		queries.Go(func() {
			answer, err := query(m)
			replies[i] = reply[T]{m, answer, err}
		})
	}
	queries.Wait()
	return replies
}

// answered leaves out failed replies. An invalid request is an error, and so is a failure of all
// members.
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

// gather sends a request to all members, and returns the answers of those that are reachable.
func gather[T any](f *Fleet, ask func(Observer) (T, error)) ([]T, error) {
	good, err := answered(f, queryAll(f.members, func(m Member) (T, error) { return ask(m.Observer) }))
	var list []T
	for _, r := range good {
		list = append(list, r.answer)
	}
	return list, err
}

// note logs only when a node becomes unreachable and when it is reachable again: pages send
// requests all the time.
func (f *Fleet) note(node string, err error) {
	if errors.Is(err, errNoHolds) { // the node has responded
		err = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch lost := f.lost[node]; {
	case err != nil && !lost:
		f.Log.Warn("node is unreachable and left out of responses", "node", node, "error", err)
	case err == nil && lost:
		f.Log.Info("node is reachable again", "node", node)
	}
	f.lost[node] = err != nil
}

// Flow searches all nodes, and adds what the others decided about the same connection.
func (f *Fleet) Flow(ctx context.Context, id string) (*flow.Record, error) {
	replies := queryAll(f.members, func(m Member) (*flow.Record, error) { return m.Observer.Flow(ctx, id) })
	var faults []error
	for _, r := range replies {
		var e *Error
		switch {
		case r.err == nil:
			found := f.decorate(r.Name, r.answer)
			found.Others = f.others(ctx, found)
			return found, nil
		case errors.As(r.err, &e) && e.Status == http.StatusNotFound:
		case errors.As(r.err, &e):
			return nil, e
		default:
			faults = append(faults, fmt.Errorf("node %s: %w", r.Name, r.err))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("flow %q not found on the reachable nodes: %w", id, errors.Join(faults...))
	}
	return nil, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("flow %q not found: nodes keep a limited number of flows", id)}
}

// Services merges the nodes' services. With a limit, each node returns its first ones: the first
// ones of the merged list are among them.
func (f *Fleet) Services(ctx context.Context, q ServiceQuery) (*Services, error) {
	filter, err := q.Parse()
	if err != nil {
		return nil, err
	}
	all, err := gather(f, func(o Observer) (*Services, error) { return o.Services(ctx, q) })
	if err != nil {
		return nil, err
	}
	sum := mergeServices(all)
	filter.cut(sum, slices.ContainsFunc(all, func(s *Services) bool { return s.Next != "" }))
	return sum, nil
}

// Tables returns the tables of all nodes.
func (f *Fleet) Tables(ctx context.Context) ([]Table, error) {
	all, err := gather(f, func(o Observer) ([]Table, error) { return o.Tables(ctx) })
	return slices.Concat(all...), err
}

// Stats returns the counters of all nodes.
func (f *Fleet) Stats(ctx context.Context) ([]Stats, error) {
	all, err := gather(f, func(o Observer) ([]Stats, error) { return o.Stats(ctx) })
	return slices.Concat(all...), err
}

// statusTimeout is how long a node's daemon may take for its status.
const statusTimeout = 25 * time.Second

// Status describes the daemons of all nodes. Unlike in other responses, a node without an answer is
// in it, with that as its problem.
func (f *Fleet) Status(ctx context.Context) ([]Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, fmt.Errorf("no answer within %s", statusTimeout))
	defer cancel()
	var list []Status
	for _, r := range queryAll(f.members, func(m Member) ([]Status, error) { return m.Observer.Status(ctx) }) {
		f.note(r.Name, r.err)
		if r.err != nil {
			r.answer = []Status{{Node: r.Name, Problems: []Problem{{ProblemUnreachable, "the daemon does not answer: " + r.err.Error()}}}}
		}
		list = append(list, r.answer...)
	}
	return list, nil
}

// Topology merges the topologies of the nodes. Unreachable nodes are in it, but not observed.
func (f *Fleet) Topology(ctx context.Context) (*Topology, error) {
	all, err := gather(f, func(o Observer) (*Topology, error) { return o.Topology(ctx) })
	if err != nil {
		return nil, err
	}
	members := &Topology{}
	for _, m := range f.members {
		members.Nodes = append(members.Nodes, TopologyNode{Name: m.Name})
	}
	t := mergeTopologies(append(all, members))
	t.CanHold = t.CanHold && f.Holder() != nil
	return t, nil
}

// Explain simulates the packet on the node of the question.
func (f *Fleet) Explain(ctx context.Context, q Question) (*flow.Record, error) {
	if q.Node == "" && len(f.members) > 1 {
		return nil, &Error{http.StatusBadRequest, "node", "node is missing: each node decides by itself: want one of " + f.names()}
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

// addressList replaces names in a list by their addresses, as nodes may not know all names.
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

// decorate returns the record with missing names filled in, and with the fleet's ID of the hold. It
// does not change the record itself, which may be shared.
func (f *Fleet) decorate(node string, r *flow.Record) *flow.Record {
	c := *r
	c.AddNames(f.Names)
	if c.Held != nil {
		held := *c.Held
		held.ID = f.holds.idOf(node, held.ID)
		c.Held = &held
	}
	return &c
}
