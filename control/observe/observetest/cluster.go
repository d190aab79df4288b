package observetest

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// flows are nine of node-a of datapath/flow/testdata/cluster.yaml, one of each kind: what
// nfqproxy explain prints for them, with life cycles.
//
//go:embed flows.jsonl
var flows []byte

// Now is when the cluster is looked at: a minute after most of its flows.
var Now = time.Date(2026, time.January, 2, 12, 5, 10, 0, time.UTC)

// Cluster is an [observe.Observer] and [observe.Balancing] of a cluster whose flows are those that it was given. Of
// a [observe.FlowQuery] Service, Protocol, Verdict, State, ServicesOnly, Limit, Follow and Steps
// count.
type Cluster struct {
	Balancing

	mu       sync.Mutex
	err      error
	records  []*flow.Record
	services observe.Services
	stats    []observe.Stats
	readers  map[chan observe.Item]bool
	queries  []observe.FlowQuery
	holder   *Fake
	joined   chan struct{} // one for each that followed
}

// NewCluster returns the cluster.
func NewCluster() *Cluster {
	c := &Cluster{readers: make(map[chan observe.Item]bool), services: services(), stats: stats(), joined: make(chan struct{}, 1000), holder: New("node-a")}
	for d := json.NewDecoder(bytes.NewReader(flows)); ; {
		r := new(flow.Record)
		if err := d.Decode(r); err == io.EOF {
			break
		} else if err != nil {
			panic(fmt.Sprintf("flows.jsonl: record %d: %v", len(c.records)+1, err))
		}
		c.records = append(c.records, r)
	}
	return c
}

// Records are the flows, the oldest first, with steps and histories. They are shared.
func (c *Cluster) Records() []*flow.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.records)
}

// Queries returns the queries for flows so far.
func (c *Cluster) Queries() []observe.FlowQuery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.queries)
}

// Fail has every question fail from now on, and the streams end; nil: no longer.
func (c *Cluster) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	if err != nil {
		for r := range c.readers {
			close(r)
			delete(c.readers, r)
		}
	}
}

// Update changes what is known of services and nodes.
func (c *Cluster) Update(change func(*observe.Services, []observe.Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.services, c.stats)
}

// Emit returns an item to all who follow, and waits until they have it.
func (c *Cluster) Emit(item observe.Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.readers {
		r <- item
	}
}

// AwaitReader waits until one more than before follows.
func (c *Cluster) AwaitReader(ctx context.Context) error {
	select {
	case <-c.joined:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Readers returns the number of followers.
func (c *Cluster) Readers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.readers)
}

// Flows implements [observe.Observer].
func (c *Cluster) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	if _, err := q.Parse(Now); err != nil {
		return err
	}
	c.mu.Lock()
	c.queries = append(c.queries, q)
	err := c.err
	records, leftOut := c.selected(q)
	items := make(chan observe.Item)
	if q.Follow && err == nil {
		c.readers[items] = true
		c.joined <- struct{}{}
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if q.Follow {
		defer c.leave(items)
	}
	for _, r := range records {
		if err := each(observe.Item{Record: r}); err != nil {
			return err
		}
	}
	if leftOut > 0 {
		if err := each(observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: leftOut, Why: observe.MissedLeftOut}}); err != nil {
			return err
		}
	}
	if !q.Follow {
		return nil
	}
	return c.follow(ctx, items, each)
}

func (c *Cluster) follow(ctx context.Context, items chan observe.Item, each func(observe.Item) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case item, open := <-items:
			if !open {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.err
			}
			if err := each(item); err != nil {
				return err
			}
		}
	}
}

// leave ends a reader; what is being emitted for it is lost.
func (c *Cluster) leave(items chan observe.Item) {
	go func() {
		for range items { // Emit may be waiting
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers[items] {
		delete(c.readers, items)
		close(items)
	}
}

// selected are the flows that match, as a list or as what comes before a stream, and how many
// are left out.
func (c *Cluster) selected(q observe.FlowQuery) (out []*flow.Record, leftOut uint64) {
	if q.Follow && q.Since == "" {
		return nil, 0
	}
	for _, r := range c.records {
		state := ""
		if r.Life != nil {
			state = r.Life.State.String()
		}
		if !serves(q.Service, r.Service) || !within(q.Verdict, r.Verdict) || !within(q.State, state) ||
			!within(strings.ToUpper(q.Protocol), r.Protocol) {
			continue
		}
		if q.ServicesOnly && r.Reason == decision.NotAService.String() {
			leftOut++
			continue
		}
		given := *r
		given.Held = c.holder.heldAs(r.ID)
		if !q.Steps {
			given.Steps = nil
		}
		if r.Life != nil {
			life := *r.Life
			life.History = nil
			given.Life = &life
			if q.Follow {
				given.Event = life.State
			}
		}
		out = append(out, &given)
	}
	if n, _ := strconv.Atoi(q.Limit); n > 0 && n < len(out) {
		out = out[len(out)-n:]
	}
	return out, leftOut
}

// serves reports whether a service port is in a list of services, with or without namespaces and
// ports.
func serves(list, service string) bool {
	_, name, _ := strings.Cut(service, "/")
	withoutPort := func(s string) string { before, _, _ := strings.Cut(s, ":"); return before }
	return within(list, service) || within(list, withoutPort(service)) || within(list, withoutPort(name))
}

// within reports whether a value is in a list; all are in the empty one.
func within(list, value string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), value)
}

// Flow implements [observe.Observer].
func (c *Cluster) Flow(_ context.Context, id string) (*flow.Record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	for _, r := range c.records {
		if r.ID == id {
			return r, nil
		}
	}
	return nil, &observe.Error{Status: 404, Field: "id", Message: fmt.Sprintf("there is no flow %q: it was never here, or made room for newer ones", id)}
}

// Services implements [observe.Observer].
func (c *Cluster) Services(_ context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	out := c.services
	out.Services = nil
	for _, s := range c.services.Services {
		if serves(q.Service, s.Service) && within(q.Namespace, s.Namespace) && !(q.Active && s.Flows.Total == 0) {
			s.Endpoints = slices.Clone(s.Endpoints)
			out.Services = append(out.Services, s)
		}
	}
	return &out, nil
}

// Stats implements [observe.Observer].
func (c *Cluster) Stats(context.Context) ([]observe.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.stats), c.err
}

// Status implements [observe.Observer].
func (c *Cluster) Status(context.Context) ([]observe.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []observe.Status{Status()}, c.err
}

// Tables implements [observe.Observer].
func (c *Cluster) Tables(context.Context) ([]observe.Table, error) {
	return []observe.Table{{Node: "node-a", Generation: 1}}, nil
}

// Objects implements [observe.Observer], for node-a and two generations.
func (c *Cluster) Objects(_ context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	generation, service, err := q.Parse()
	if err != nil {
		return nil, err
	}
	switch {
	case q.Node == "":
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: "node", Message: "node is missing: each node has its own service table: want one of node-a, node-b"}
	case generation > 2:
		return nil, &observe.Error{Status: http.StatusNotFound, Field: "generation", Message: fmt.Sprintf("generation %d is not kept: node-a keeps generation 1 and later", generation)}
	}
	return &observe.TableObjects{
		Node: q.Node, Generation: cmp.Or(generation, 2), Built: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC),
		YAML: "apiVersion: v1\nkind: Service\nmetadata:\n  name: " + cmp.Or(service.Name, "web") + "\nspec:\n  clusterIP: 10.96.0.20\n  ports:\n  - port: 80\n",
	}, nil
}

// Topology implements [observe.Observer].
func (c *Cluster) Topology(context.Context) (*observe.Topology, error) {
	t := &observe.Topology{Nodes: []observe.TopologyNode{{Name: "node-a", Observed: true}}, CanHold: true}
	for _, pod := range []string{"shell", "web-1", "web-2", "web-3"} {
		t.Pods = append(t.Pods, observe.TopologyPod{Name: "default/" + pod})
	}
	return t, nil
}

// Explain implements [observe.Observer].
func (c *Cluster) Explain(context.Context, observe.Question) (*flow.Record, error) {
	return nil, &observe.Error{Status: 404, Message: "this cluster explains nothing"}
}

// Holder implements [observe.Observer]: it is a [*Fake].
func (c *Cluster) Holder() observe.Holder { return c.holder }
