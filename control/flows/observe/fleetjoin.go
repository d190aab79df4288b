package observe

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// joinWindow is the time within which nodes decide the first packet of one connection: a
// retransmission of it may be the first that the second node sees, and clocks differ. Later, the
// ports may be those of another connection.
const joinWindow = 10 * time.Second

// joinKept is how many connections a joiner remembers.
const joinKept = 4096

// joinKey is a packet as a node sees it: before its translation, or after it.
type joinKey struct{ protocol, source, destination string }

// arriving is the key of a flow's packet when it reaches the node, leaving when it leaves it: the
// zero key if that is not known, as the kernel selects the port of a masqueraded source.
func arriving(r *flow.Record) joinKey { return joinKey{r.Protocol, r.Source, r.Destination} }

func leaving(r *flow.Record) joinKey {
	switch {
	case r.Endpoint == "":
		return arriving(r)
	case r.Life != nil && r.Life.SeenSource != "":
		return joinKey{r.Protocol, r.Life.SeenSource, r.Endpoint}
	case r.Masquerade:
		return joinKey{}
	}
	return joinKey{r.Protocol, r.Source, r.Endpoint}
}

// near reports whether two records may be of one connection by their nodes and times.
func near(a, b *flow.Record) bool {
	return a.Node != b.Node && a.Time != nil && b.Time != nil && a.Time.Sub(*b.Time).Abs() <= joinWindow
}

// joiner finds the records of one connection on several nodes. It keeps no more than joinKept of
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
		if len(k.order) >= joinKept {
			delete(k.of, k.order[0])
			k.order = k.order[1:]
		}
		k.order = append(k.order, key)
	}
	k.of[key] = r
}

// record takes a record that was given to the reader, and returns what is known of it by now.
func (j *joiner) record(r *flow.Record) (found []Joined) {
	if r.Verdict == decision.Accept.String() {
		return nil
	}
	for _, key := range slices.Compact([]joinKey{arriving(r), leaving(r)}) {
		j.records.add(key, r)
		if p := j.passed.of[key]; p != nil && near(p, r) {
			j.passed.of[key] = nil
			found = append(found, Joined{r.ID, p})
		}
	}
	return found
}

// pass takes a record of a node that passed its packet.
func (j *joiner) pass(p *flow.Record) (found []Joined) {
	key := arriving(p)
	if r := j.records.of[key]; r != nil && near(p, r) {
		return []Joined{{r.ID, p}}
	}
	if first := j.passed.of[key]; j.pairs && first != nil && near(p, first) {
		j.passed.of[key] = nil
		if p.Time.Before(*first.Time) {
			first, p = p, first
		}
		return []Joined{{first.ID, p}}
	}
	j.passed.add(key, p)
	return nil
}

// passing is the query for flows that nodes pass.
func passing(q FlowQuery) FlowQuery {
	past := "" // without a limit, followers get no past records
	if q.Limit != "" || q.Since != "" {
		past = strconv.Itoa(joinKept)
	}
	return FlowQuery{Follow: true, Verdict: decision.Accept.String(), Protocol: q.Protocol, Since: q.Since, Limit: past, Rate: q.Rate}
}

// others returns the records of other nodes about the flow's connection, in the order of their
// decisions. A node without an answer is left out.
func (f *Fleet) others(ctx context.Context, r *flow.Record) []*flow.Record {
	queries := []FlowQuery{{Source: r.Source, Destination: r.Destination}}
	if out := leaving(r); out != (joinKey{}) && out != arriving(r) {
		queries = append(queries, FlowQuery{Source: out.source, Destination: out.destination})
	}
	if r.Verdict == decision.Accept.String() {
		queries = append(queries, FlowQuery{Endpoint: r.Destination})
	}
	found := make(map[string]*flow.Record) // by node: that of the nearest time
	members, _ := f.all()
	replies := queryAll(onPath(members, r), func(m Member) (list []*flow.Record, err error) {
		for _, q := range queries {
			if r.Time == nil {
				continue
			}
			q.Protocol, q.Since, q.Limit = r.Protocol, r.Time.Add(-joinWindow).Format(time.RFC3339Nano), "1000"
			err = m.Observer.Flows(ctx, q, func(i Item) error {
				if i.Record != nil {
					list = append(list, f.decorate(m.Name, i.Record))
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
			meets := arriving(o) == arriving(r) || arriving(o) == leaving(r) || leaving(o) == arriving(r)
			if best := found[o.Node]; meets && near(o, r) && (best == nil || distance(o, r) < distance(best, r)) {
				found[o.Node] = o
			}
		}
	}
	var list []*flow.Record
	for _, o := range found {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b *flow.Record) int { return cmp.Or(a.Time.Compare(*b.Time), cmp.Compare(a.Node, b.Node)) })
	return list
}

// fewMembers are so few that all of them are queried about a connection.
const fewMembers = 16

// onPath returns the other members that may have seen the connection of a record: of many, the nodes that the record
// names, if it names both ends of the path.
func onPath(members []Member, r *flow.Record) (list []Member) {
	all := len(members) <= fewMembers || r.EndpointNode == "" || r.SourceNode == "" && r.SourceHost == ""
	for _, m := range members {
		if m.Name != r.Node && (all || m.Name == r.SourceNode || m.Name == r.EndpointNode) {
			list = append(list, m)
		}
	}
	return list
}

// distance is the time between two decisions.
func distance(a, b *flow.Record) time.Duration { return a.Time.Sub(*b.Time).Abs() }
