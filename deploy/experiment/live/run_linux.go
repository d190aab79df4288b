package live

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// atEnd is for how long connections may go on after the last flow.
const atEnd = 30 * time.Second

// Run implements [experiment.Backend]: it starts a lab, runs the cell in it, and ends it.
func (b Backend) Run(ctx context.Context, x *experiment.Experiment, k experiment.Key, progress func(done float64)) (*experiment.Cell, *experiment.Cost, error) {
	config := x.At(k.Point).Config
	changes, err := config.Script()
	if err != nil {
		return nil, nil, err
	}
	c, err := startCluster(ctx, &b, x, config, changes, k.Algorithm)
	if err != nil {
		return nil, nil, err
	}
	r := &run{cluster: c, progress: progress}
	err = r.prepare(ctx)
	if err == nil {
		err = r.all(ctx, k.FlowSeed())
	}
	r.end()
	scriptErrors := c.scriptErrors()
	if err = errors.Join(err, c.Close()); ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err != nil {
		return nil, nil, err
	}
	cell := experiment.LiveCell(k, &r.result)
	cell.ScriptErrors = scriptErrors
	return cell, &experiment.Cost{Key: k}, nil
}

// run is a run of a cell.
type run struct {
	*cluster
	progress func(float64)
	servers  []*server
	sockets  []*sockets
	stop     context.CancelFunc // of the sockets
	slow     []atomic.Uint64    // factors of the nodes, in thousandths
	lost     []context.CancelFunc
	alive    []context.Context // of the nodes

	mu       sync.Mutex // guards what follows
	members  [][]int    // the endpoints of each service in the newest tables
	result   traffic.Result
	window   traffic.Window
	connects stats.Times // of the window
	failed   error
}

// prepare starts the servers and opens the clients' sockets.
func (r *run) prepare(ctx context.Context) error {
	nodes := r.config.Cluster.Nodes
	r.members = make([][]int, len(r.config.Cluster.Services))
	r.slow = make([]atomic.Uint64, len(nodes))
	for i := range r.changes.Endpoints {
		e := &r.changes.Endpoints[i]
		service := &r.config.Cluster.Services[e.Service]
		ns, err := r.Namespace(endpointPod(i))
		if err != nil {
			return err
		}
		s := newServer(ns, r.endpoints[i], i, service.Concurrency, service.Backlog, r.config.Workload.Accept == traffic.ByKernel, &r.slow[e.Node])
		r.servers = append(r.servers, s)
		if !e.Initial {
			continue
		}
		if err := s.listen(ctx); err != nil {
			return err
		}
		r.members[e.Service] = append(r.members[e.Service], i)
	}
	ctx, r.stop = context.WithCancel(ctx)
	for i := range nodes {
		ns, err := r.Namespace(clientPod(i))
		if err != nil {
			return err
		}
		r.sockets = append(r.sockets, openSockets(ctx, ns))
		alive, lost := context.WithCancel(ctx)
		r.alive, r.lost = append(r.alive, alive), append(r.lost, lost)
	}
	return nil
}

// end ends servers and sockets.
func (r *run) end() {
	if r.stop != nil {
		r.stop()
	}
	for _, s := range r.servers {
		s.close()
	}
}

// all runs flows, events and the time series at the same time, and waits for the connections.
func (r *run) all(ctx context.Context, seed uint64) error {
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.events(ctx, begin) })
	group.Go(func() error { return r.sample(ctx, begin) })
	group.Go(func() error { return r.flows(ctx, begin, seed) })
	if err := group.Wait(); err != nil {
		return err
	}
	r.finish()
	return r.failed
}

// until waits for a time of the experiment; false: the context has ended.
func until(ctx context.Context, begin time.Time, at time.Duration) bool {
	if wait := time.Until(begin.Add(at)); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// flows starts all flows at their times, and waits for their ends.
func (r *run) flows(ctx context.Context, begin time.Time, seed uint64) error {
	flowing, cut := context.WithCancel(ctx)
	defer cut()
	var all sync.WaitGroup
	for f := range r.config.Flows(seed) {
		if !until(ctx, begin, f.At) {
			break
		}
		if r.alive[f.Node].Err() == nil {
			late := time.Since(begin) - f.At
			all.Go(func() { r.flow(flowing, &f, late) })
		}
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		<-ended
	case <-time.After(atEnd):
		cut()
		<-ended
	}
	return ctx.Err()
}

// flow is a flow from its beginning to its end.
func (r *run) flow(ctx context.Context, f *traffic.Flow, late time.Duration) {
	counted := f.At >= r.config.Warmup
	service := &r.config.Cluster.Services[f.Service]
	r.mu.Lock()
	if counted {
		r.result.Flows++
		r.window.Flows++
		r.result.Late.Add(int64(late))
	}
	r.mu.Unlock()
	alive := r.alive[f.Node]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(alive, cancel)()
	o := r.sockets[f.Node].do(ctx, netip.AddrPortFrom(r.clientAddress(f.Client), f.Port), netip.AddrPortFrom(service.ClusterIP, service.Port), request{
		f, counted, giveUp(r.config), func(after time.Duration) { r.answered(counted, after) },
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !counted:
	case o.incomplete != nil:
		if ctx.Err() == nil && r.failed == nil {
			r.failed = fmt.Errorf("a client of node %s: %w", r.config.Cluster.Nodes[f.Node].Name, o.incomplete)
		}
	case o.ended == refusedFlow:
		r.result.Refused++
		r.window.Refused++
	case o.ended == unanswered:
		r.result.Unanswered++
		r.window.Unanswered++
	default:
		if o.response > 0 {
			r.result.Response.Add(int64(o.response))
		}
		if o.ended == broken {
			r.result.Broken++
			r.window.Broken++
			if o.answered && !r.servers[o.endpoint].isGone() {
				r.result.Remapped++
			}
		}
	}
}

// answered: a client got the first reply.
func (r *run) answered(counted bool, after time.Duration) {
	if !counted {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Connect.Add(int64(after))
	r.connects.Add(int64(after))
}

// events carries out the script. Nodes get changes beside other events, in order: a change returns only
// once all nodes have confirmed it.
func (r *run) events(ctx context.Context, begin time.Time) error {
	changes := make(chan []traffic.Set, len(r.changes.Steps))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for sets := range changes {
			if err := r.publish(ctx, sets); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		defer close(changes)
		for i := range r.changes.Steps {
			s := &r.changes.Steps[i]
			if s.At >= r.config.Duration {
				return nil
			}
			if !until(ctx, begin, s.At) {
				return ctx.Err()
			}
			if err := r.step(ctx, s, changes); err != nil {
				return fmt.Errorf("event at %s: %w", s.At, err)
			}
		}
		return nil
	})
	return group.Wait()
}

// step carries out a step.
func (r *run) step(ctx context.Context, s *traffic.Step, changes chan<- []traffic.Set) error {
	switch s.Kind {
	case traffic.Listens:
		return r.servers[s.Endpoint].listen(ctx)
	case traffic.Deaf:
		r.servers[s.Endpoint].deaf()
	case traffic.Gone:
		return r.servers[s.Endpoint].lose()
	case traffic.Slowed:
		r.servers[s.Endpoint].factor.Store(uint64(s.Factor * whole))
	case traffic.NodeSlowed:
		r.slow[s.Node].Store(uint64(s.Factor * whole))
	case traffic.NodesLost:
		for _, lost := range r.lost[s.Node:] {
			lost()
		}
	case traffic.Flushed:
		return r.flush(s.Node)
	case traffic.Published:
		r.mu.Lock()
		for _, set := range s.Published {
			r.members[set.Service] = set.Endpoints
		}
		r.mu.Unlock()
		changes <- s.Published // it has room for all
	}
	return nil
}

// sample writes the time series.
func (r *run) sample(ctx context.Context, begin time.Time) error {
	for at := r.config.WindowLength(); at <= r.config.Duration; at += r.config.WindowLength() {
		if !until(ctx, begin, at) {
			return ctx.Err()
		}
		r.endWindow(at)
		r.progress(float64(at) / float64(r.config.Duration))
	}
	return nil
}

func (r *run) endWindow(at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.window
	w.End = at
	for _, s := range r.servers {
		w.Open += int(s.open.Load())
	}
	w.MaxOverMean, w.Jain = r.spread(func(s *server) int32 { return s.open.Load() })
	w.FlowsMaxOverMean, w.FlowsJain = r.spread(func(s *server) int32 { return s.recent.Load() })
	w.SetConnects(&r.connects)
	r.result.Windows = append(r.result.Windows, *w)
	r.window = traffic.Window{}
	for _, s := range r.servers {
		s.recent.Store(0)
	}
}

// spread compares the endpoints' loads, in proportion to their weights. The caller holds mu, or is the last one.
func (r *run) spread(of func(*server) int32) (maxOverMean, jain float64) {
	var sum traffic.Spread
	for _, members := range r.members {
		var loads []float64
		var weights []uint16
		for _, i := range members {
			loads, weights = append(loads, float64(of(r.servers[i]))), append(weights, r.changes.Endpoints[i].Weight)
		}
		sum.Add(loads, weights)
	}
	return sum.Means()
}

// finish computes what is about the whole run.
func (r *run) finish() {
	// On a busy machine the last flows start after their time: they count in the last window.
	if n := len(r.result.Windows); n > 0 {
		r.result.Windows[n-1].Flows += r.window.Flows
	}
	waited, all := 0, 0
	for _, s := range r.servers {
		waited, all = waited+int(s.waited.Load()), all+int(s.flows.Load())
	}
	r.result.Finish(r.config.Warmup, waited, all)
	r.result.FlowsMaxOverMean, r.result.FlowsJain = r.spread(func(s *server) int32 { return s.flows.Load() })
}
