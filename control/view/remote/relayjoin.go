package remote

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
)

// joinWindow is the time within which nodes decide the first packet of one connection: a
// retransmission of it may be the first that the second node sees, and clocks differ. Later, the
// ports may be those of another connection.
const joinWindow = 10 * time.Second

// maxJoined is how many connections a joiner remembers.
const maxJoined = 4096

// joinKey is a packet as a node sees it: before its translation, or after it.
type joinKey struct{ protocol, source, destination string }

// arrivalKey is the key of a flow's packet when it reaches the node, and departureKey when it leaves it: the
// zero key if that is not known, as the kernel selects the port of a masqueraded source.
func arrivalKey(r *flow.Record) joinKey { return joinKey{r.Protocol, r.Source, r.Destination} }

func departureKey(r *flow.Record) joinKey {
	source, destination, known := nodepath.Outgoing(r)
	if !known {
		return joinKey{}
	}
	return joinKey{r.Protocol, source, destination}
}

// near reports whether two records may be of one connection by their nodes and times.
func near(a, b *flow.Record) bool {
	return a.Node != b.Node && a.Time != nil && b.Time != nil && a.Time.Sub(*b.Time).Abs() <= joinWindow
}

// joiner finds the records of one connection on several nodes. It keeps no more than maxJoined of
// each kind, so the oldest may stay alone.
type joiner struct {
	records recent // by what may be seen elsewhere: keys of arriving and leaving packets
	passed  recent // by other nodes, and not joined yet
	// pairs: records that no node translates are joined, too.
	pairs bool
}

// recent keeps the newest record of each key.
type recent struct {
	of    map[joinKey]*flow.Record
	order []joinKey
}

func (k *recent) add(key joinKey, r *flow.Record) {
	if key == (joinKey{}) {
		return
	}
	if k.of == nil {
		k.of = make(map[joinKey]*flow.Record)
	}
	if _, known := k.of[key]; !known {
		if len(k.order) >= maxJoined {
			delete(k.of, k.order[0])
			k.order = k.order[1:]
		}
		k.order = append(k.order, key)
	}
	k.of[key] = r
}

// record takes a record that was given to the reader, and returns what is known of it by now.
func (j *joiner) record(r *flow.Record) (found []observe.Joined) {
	if r.Verdict == decision.Accept.String() {
		return nil
	}
	for _, key := range slices.Compact([]joinKey{arrivalKey(r), departureKey(r)}) {
		j.records.add(key, r)
		if p := j.passed.of[key]; p != nil && near(p, r) {
			j.passed.of[key] = nil
			found = append(found, observe.Joined{Flow: r.ID, Other: p})
		}
	}
	return found
}

// pass takes a record of a node that passed its packet.
func (j *joiner) pass(p *flow.Record) (found []observe.Joined) {
	key := arrivalKey(p)
	if r := j.records.of[key]; r != nil && near(p, r) {
		return []observe.Joined{{Flow: r.ID, Other: p}}
	}
	if first := j.passed.of[key]; j.pairs && first != nil && near(p, first) {
		j.passed.of[key] = nil
		if p.Time.Before(*first.Time) {
			first, p = p, first
		}
		return []observe.Joined{{Flow: first.ID, Other: p}}
	}
	j.passed.add(key, p)
	return nil
}

// passingQuery is the query for flows that pass one of a number of nodes.
func passingQuery(q observe.FlowQuery, nodes int) observe.FlowQuery {
	past := "" // without a limit, followers get no past records
	if q.Limit != "" || q.Since != "" {
		past = strconv.Itoa(passedOf(nodes))
	}
	return observe.FlowQuery{Follow: true, Verdict: decision.Accept.String(), Protocol: q.Protocol, Since: q.Since, Limit: past, Rate: q.Rate}
}

// List lists the records of a query and its filter, with the records of other nodes about the same connections if the query wants
// them, and reports how many were left out. list lists the newest records of all nodes that match a filter, in the order of their
// decisions, and counts the flows for no service that it leaves out, by node.
func List(q observe.FlowQuery, f *observe.Filter, list func(f *observe.Filter, leftOut map[string]uint64, each func(*flow.Record) error) error, each func(observe.Item) error) error {
	leftOut := make(map[string]uint64)
	counted := func(f *observe.Filter, each func(*flow.Record) error) error { return list(f, leftOut, each) }
	var err error
	if q.Joined {
		err = listJoined(q, f, counted, each)
	} else {
		err = counted(f, func(r *flow.Record) error { return each(observe.Item{Record: r}) })
	}
	if err != nil {
		return err
	}
	return ReportLeftOut(leftOut, each)
}

// ReportLeftOut reports how many flows for no service were left out of a list or a stream, by node, and forgets these numbers.
func ReportLeftOut(leftOut map[string]uint64, each func(observe.Item) error) error {
	for _, node := range slices.Sorted(maps.Keys(leftOut)) {
		if err := each(observe.Item{Missed: &observe.Missed{Node: node, Missed: leftOut[node], Why: observe.MissedLeftOut}}); err != nil {
			return err
		}
	}
	clear(leftOut)
	return nil
}

func listJoined(q observe.FlowQuery, f *observe.Filter, list func(*observe.Filter, func(*flow.Record) error) error, each func(observe.Item) error) error {
	var failed error
	passed := func(q observe.FlowQuery) (records []*flow.Record) {
		passing, err := q.Parse(time.Now())
		if err == nil {
			err = list(passing, func(r *flow.Record) error {
				records = append(records, r)
				return nil
			})
		}
		failed = cmp.Or(failed, err)
		return records
	}
	joined := newest{limit: f.Limit, each: each, join: func(items []observe.Item) ([]observe.Item, map[string][]observe.Joined) {
		return joinList(q, items, 1, passed)
	}}
	wider := *f
	if f.Limit != observe.All {
		wider.Limit *= recordsOfOne
	}
	if err := list(&wider, func(r *flow.Record) error { return joined.add(observe.Item{Record: r}) }); err != nil {
		return err
	}
	return cmp.Or(joined.close(), failed)
}

// joinList joins the records of a list, which is in the order of their decisions: it returns the
// list without those that belong to another one, and what belongs to each, by its ID.
func joinList(q observe.FlowQuery, list []observe.Item, nodes int, passed func(observe.FlowQuery) []*flow.Record) ([]observe.Item, map[string][]observe.Joined) {
	records, listed := []*flow.Record{}, make(map[string]bool)
	for _, i := range list {
		if r := i.Record; r != nil && r.Time != nil {
			listed[r.ID] = true
			if r.Verdict != decision.Accept.String() {
				records = append(records, r)
			}
		}
	}
	if len(listed) == 0 {
		return list, nil
	}
	records = append(records, passed(passedQuery(q, list, nodes))...)
	slices.SortStableFunc(records, func(a, b *flow.Record) int { return a.Time.Compare(*b.Time) })
	j := joiner{pairs: !q.ServicesOnly}
	joined, gone := make(map[string][]observe.Joined), make(map[string]bool)
	for _, r := range records {
		find := j.record
		if r.Verdict == decision.Accept.String() {
			find = j.pass
		}
		for _, found := range find(r) {
			if listed[found.Flow] {
				joined[found.Flow] = append(joined[found.Flow], found)
				gone[found.Other.ID] = true
			}
		}
	}
	return slices.DeleteFunc(list, func(i observe.Item) bool { return i.Record != nil && gone[i.Record.ID] }), joined
}

// passedOf is the maximum number of flows through one of the other nodes that are joined to a list, or to the past records of a stream.
func passedOf(nodes int) int { return min(maxJoined, max(1, maxQueriedMembers*maxJoined/nodes)) }

// passedQuery is the query for the flows of a list's connections that pass a node.
func passedQuery(q observe.FlowQuery, list []observe.Item, nodes int) observe.FlowQuery {
	const most = 200 // destinations in a query; of more, all flows that nodes pass
	oldest, destinations := time.Time{}, make(map[string]bool)
	for _, i := range list {
		if r := i.Record; r != nil && r.Time != nil {
			if oldest.IsZero() {
				oldest = *r.Time
			}
			_, destination, _ := nodepath.Outgoing(r)
			destinations[r.Destination], destinations[destination] = true, true
		}
	}
	passed := observe.FlowQuery{
		Verdict: decision.Accept.String(), Protocol: q.Protocol, Since: oldest.Add(-joinWindow).Format(time.RFC3339Nano),
		Limit: strconv.Itoa(passedOf(nodes)),
	}
	if len(destinations) <= most {
		passed.Destination = strings.Join(slices.Sorted(maps.Keys(destinations)), ",")
	}
	return passed
}

// passed returns the records of nodes that passed packets. A node without an answer is left out.
func (f *Relay) passed(ctx context.Context, members []Member, passed observe.FlowQuery) []*flow.Record {
	var records []*flow.Record
	for _, reply := range queryAll(members, func(m Member) (records []*flow.Record, err error) {
		err = m.Observer.Flows(ctx, passed, func(i observe.Item) error {
			if i.Record != nil && i.Record.Time != nil {
				records = append(records, f.fillIn(m.Name, i.Record))
			}
			return nil
		})
		return records, err
	}) {
		if reply.err == nil {
			records = append(records, reply.answer...)
		}
	}
	return records
}

// others returns the records of other nodes about the flow's connection, in the order of their
// decisions. A node without an answer is left out.
func (f *Relay) others(ctx context.Context, r *flow.Record) []*flow.Record {
	list := f.matchingRecords(ctx, r)
	for _, o := range list {
		if r.Endpoint == "" && o.Endpoint != "" { // the packet as r has it is not that on all nodes
			list = append(list, f.matchingRecords(ctx, o)...)
			break
		}
	}
	seen := map[string]bool{r.ID: true}
	list = slices.DeleteFunc(list, func(o *flow.Record) bool {
		was := seen[o.ID]
		seen[o.ID] = true
		return was
	})
	slices.SortFunc(list, func(a, b *flow.Record) int { return cmp.Or(a.Time.Compare(*b.Time), cmp.Compare(a.Node, b.Node)) })
	return list
}

// matchingRecords returns the records of other nodes that have the packet as it arrives at the flow's node,
// or as it leaves it: of each node and each of both that of the nearest time.
func (f *Relay) matchingRecords(ctx context.Context, r *flow.Record) []*flow.Record {
	queries := []observe.FlowQuery{{Source: r.Source, Destination: r.Destination}}
	if out := departureKey(r); out != (joinKey{}) && out != arrivalKey(r) {
		queries = append(queries, observe.FlowQuery{Source: out.source, Destination: out.destination})
	}
	if r.Verdict == decision.Accept.String() {
		queries = append(queries, observe.FlowQuery{Endpoint: r.Destination})
	} else if !r.Local && r.SourcePod == "" { // a rule of another host may have masqueraded a pod
		queries = append(queries, observe.FlowQuery{Destination: r.Destination, Verdict: decision.Accept.String()})
	}
	type place struct {
		node string
		joinKey
	}
	found := make(map[place]*flow.Record)
	members, _ := f.all()
	replies := queryAll(onPath(members, r), func(m Member) (list []*flow.Record, err error) {
		for _, q := range queries {
			if r.Time == nil {
				continue
			}
			q.Protocol, q.Since, q.Limit = r.Protocol, r.Time.Add(-joinWindow).Format(time.RFC3339Nano), "1000"
			err = m.Observer.Flows(ctx, q, func(i observe.Item) error {
				if i.Record != nil {
					list = append(list, f.fillIn(m.Name, i.Record))
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		return list, nil
	})
	for _, reply := range replies {
		for _, o := range reply.answer {
			at := place{o.Node, arrivalKey(o)}
			meets := arrivalKey(o) == arrivalKey(r) || arrivalKey(o) == departureKey(r) || departureKey(o) == arrivalKey(r)
			if best := found[at]; meets && near(o, r) && (best == nil || timeBetween(o, r) < timeBetween(best, r)) {
				found[at] = o
			}
		}
	}
	return slices.Collect(maps.Values(found))
}

// maxQueriedMembers are so few that all of them are queried about a connection.
const maxQueriedMembers = 16

// onPath returns the other members that may have seen the connection of a record: of many, the nodes that the record
// names, if it names both ends of the path.
func onPath(members []Member, r *flow.Record) (list []Member) {
	all := len(members) <= maxQueriedMembers || r.EndpointNode == "" || r.SourceNode == "" && r.SourceHost == ""
	for _, m := range members {
		if m.Name != r.Node && (all || m.Name == r.SourceNode || m.Name == r.EndpointNode) {
			list = append(list, m)
		}
	}
	return list
}

// timeBetween is the time between two decisions.
func timeBetween(a, b *flow.Record) time.Duration { return a.Time.Sub(*b.Time).Abs() }
