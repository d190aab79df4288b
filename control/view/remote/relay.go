package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Relay is the Observer of several nodes. An unreachable node is logged once and left out of
// responses; it is an error if all are unreachable. Its methods are safe for concurrent use.
type Relay struct {
	RelayOptions
	// retry is the first delay before a node's stream is reconnected; it doubles each time, up to
	// longestRetry.
	retry time.Duration
	holds relayHolds

	mu      sync.Mutex
	members []Member        // never changed, only replaced
	changed chan struct{}   // closed when there are other members
	lost    map[string]bool // nodes that were unreachable the last time
}

var _ observe.Observer = (*Relay)(nil)

// Member is a node of a relay.
type Member struct {
	Name string // as in its records
	// Observer is the node's. It must be comparable: another one for the same name is another daemon.
	Observer observe.Observer
}

// RelayOptions are all optional.
type RelayOptions struct {
	// Records is the default of [FlowQuery.Rate], for all nodes together; 0: 20,000.
	Records int
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

// defaultRecords is the default of [RelayOptions.Records]: what one viewer can decode on one
// processor, with some to spare.
const defaultRecords = 20_000

// errNoNodes is the error of requests while there are no members.
var errNoNodes = errors.New("no nodes: want one or more")

// NewRelay returns an Observer of the nodes: at least one, with distinct names. The caller must call
// [Relay.Close].
func NewRelay(members []Member, o RelayOptions) (*Relay, error) {
	if len(members) == 0 {
		return nil, errNoNodes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Records = cmp.Or(o.Records, defaultRecords)
	f := &Relay{RelayOptions: o, retry: firstRetry, changed: make(chan struct{}), lost: make(map[string]bool)}
	if err := f.SetMembers(members); err != nil {
		return nil, err
	}
	f.holds.relay = f
	f.holds.watching, f.holds.stop = context.WithCancel(context.Background())
	f.holds.changed = make(chan struct{})
	return f, nil
}

// SetMembers replaces the nodes, which must have distinct names; with an error nothing changes.
// Without nodes, requests fail. Streams that follow flows end for the nodes that are gone, and begin for
// the new ones, without earlier records.
func (f *Relay) SetMembers(members []Member) error {
	seen := make(map[string]bool)
	for _, m := range members {
		if seen[m.Name] {
			return fmt.Errorf("duplicate node name %q: want distinct names", m.Name)
		}
		seen[m.Name] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.members
	f.members = make([]Member, len(members))
	for i, m := range members {
		f.members[i] = Member{m.Name, guardOf(before, m)}
	}
	maps.DeleteFunc(f.lost, func(node string, _ bool) bool { return !seen[node] })
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// all returns the members, and a channel that is closed when there are others.
func (f *Relay) all() ([]Member, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members, f.changed
}

// Close stops watching holds, which then end by their timeout on their nodes.
func (f *Relay) Close() {
	f.holds.stop()
	f.holds.watchers.Wait()
}

// Holder returns the Holder for the nodes that support holds; nil: none does.
func (f *Relay) Holder() observe.Holder {
	members, _ := f.all()
	for _, m := range members {
		if m.Observer.Holder() != nil {
			return &f.holds
		}
	}
	return nil
}

// note logs only when a node becomes unreachable and when it is reachable again: pages send
// requests all the time. The answer of a node that is no longer a member does not count.
func (f *Relay) note(node string, err error) {
	if isNoHolds(err) { // the node has responded
		err = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch lost := f.lost[node]; {
	case err != nil && !lost && slices.ContainsFunc(f.members, func(m Member) bool { return m.Name == node }):
		f.Log.Warn("node is unreachable and left out of responses", "node", node, "error", err)
		f.lost[node] = true
	case err == nil && lost:
		f.Log.Info("node is reachable again", "node", node)
		delete(f.lost, node)
	}
}

// Flow searches all nodes, and adds what the others decided about the same connection.
func (f *Relay) Flow(ctx context.Context, id string) (*flow.Record, error) {
	members, _ := f.all()
	replies := queryAll(members, func(m Member) (*flow.Record, error) { return m.Observer.Flow(ctx, id) })
	var faults []error
	for _, r := range replies {
		var e *observe.Error
		switch {
		case r.err == nil:
			found := f.fillIn(r.Name, r.answer)
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
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("flow %q not found: nodes keep a limited number of flows", id)}
}

// Services merges the nodes' services. With a limit, each node returns its first ones: the first
// ones of the merged list are among them.
func (f *Relay) Services(ctx context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	filter, err := q.Parse()
	if err != nil {
		return nil, err
	}
	var sum servicesSum
	err = gatherEach(f, func(o observe.Observer) (*observe.Services, error) { return o.Services(ctx, q) }, sum.add)
	if err != nil {
		return nil, err
	}
	merged := sum.sorted()
	sum.page(filter)
	return merged, nil
}

// Tables returns the tables of all nodes.
func (f *Relay) Tables(ctx context.Context) ([]observe.Table, error) {
	all, err := gather(f, func(o observe.Observer) ([]observe.Table, error) { return o.Tables(ctx) })
	return slices.Concat(all...), err
}

// Stats returns the counters of all nodes.
func (f *Relay) Stats(ctx context.Context) ([]observe.Stats, error) {
	all, err := gather(f, func(o observe.Observer) ([]observe.Stats, error) { return o.Stats(ctx) })
	return slices.Concat(all...), err
}

// statusTimeout is how long a node's daemon may take for its status.
const statusTimeout = 25 * time.Second

// Status describes the daemons of all nodes. Unlike in other responses, a node without an answer is
// in it, with that as its problem.
func (f *Relay) Status(ctx context.Context) ([]observe.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, fmt.Errorf("no answer within %s", statusTimeout))
	defer cancel()
	members, _ := f.all()
	var list []observe.Status
	for _, r := range queryAll(members, func(m Member) ([]observe.Status, error) { return m.Observer.Status(ctx) }) {
		f.note(r.Name, r.err)
		if r.err != nil {
			r.answer = []observe.Status{{Node: r.Name, Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "the daemon does not answer: " + r.err.Error()}}}}
		}
		list = append(list, r.answer...)
	}
	return list, nil
}

// Topology merges the topologies of the nodes. Unreachable nodes are in it, but not observed.
func (f *Relay) Topology(ctx context.Context) (*observe.Topology, error) {
	all, err := gather(f, func(o observe.Observer) (*observe.Topology, error) { return o.Topology(ctx) })
	if err != nil {
		return nil, err
	}
	members, _ := f.all()
	names := &observe.Topology{}
	for _, m := range members {
		names.Nodes = append(names.Nodes, observe.TopologyNode{Name: m.Name})
	}
	t := mergeTopologies(append(all, names))
	t.CanHold = t.CanHold && f.Holder() != nil
	return t, nil
}

// Explain simulates the packet on the node of the question.
func (f *Relay) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	m, err := f.one(q.Node, "each node decides by itself")
	if err != nil {
		return nil, err
	}
	r, err := m.Observer.Explain(ctx, q)
	if err != nil {
		return nil, err
	}
	return f.fillIn(m.Name, r), nil
}

// addressList replaces names in a list by their addresses, as nodes may not know all names.
func (f *Relay) addressList(list string) string {
	if f.Addresses == nil {
		return list
	}
	var values []string
	for s := range strings.SplitSeq(list, ",") {
		p, err := observe.ParseEnd(strings.TrimSpace(s))
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

// fillIn returns the record with missing names filled in, and with the relay's ID of the hold. It
// does not change the record itself, which may be shared.
func (f *Relay) fillIn(node string, r *flow.Record) *flow.Record {
	return f.filledIn(node, observe.Item{Record: r}).Record
}

// filledIn is an item with its record filled in.
func (f *Relay) filledIn(node string, i observe.Item) observe.Item {
	if i.Record == nil {
		return i
	}
	r := *i.Record
	if r.AddNames(f.Names) || r.Held != nil {
		i.Encoded = nil
	}
	if r.Held != nil {
		held := *r.Held
		held.ID = f.holds.idOf(node, held.ID)
		r.Held = &held
	}
	i.Record = &r
	return i
}
