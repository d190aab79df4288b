package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// live keeps a running lab like its state: it makes and removes hosts, and serves the objects to the proxies.
type live struct {
	lab *Lab
	// ctx ends with the lab.
	ctx  context.Context
	stop context.CancelFunc
	wake *time.Timer // when a pod ends
	// source is that of the files.
	source *manifest.Source

	mu     sync.Mutex // guards what follows; held during a change
	state  *desired.State
	slices *controllers.EndpointSlices
	rules  kubeProxyRules

	probers   probers
	following sync.WaitGroup
	objects   atomic.Pointer[manifest.Objects] // as the daemons have them
}

// goLive makes the lab like its file.
func (l *Lab) goLive() error {
	if err := requireRules(l.Spec()); err != nil {
		return err
	}
	source := labfile.NewWrittenSource(l.file.ObjectPaths()...)
	written, err := source.Load()
	if err != nil {
		return err
	}
	v := &live{lab: l, source: source, state: desired.New(l.Spec(), written), slices: controllers.NewEndpointSlices()}
	v.ctx, v.stop = context.WithCancel(context.Background())
	v.wake = time.AfterFunc(time.Hour, v.sweep)
	l.live = v
	if _, err = v.change(v.ctx, nothing); err != nil {
		return err
	}
	return l.loadFirewalls()
}

// nothing changes nothing; what is due by time happens all the same.
func nothing(*desired.State, time.Time) ([]string, error) { return nil, nil }

// sweep ends the pods whose time is over.
func (v *live) sweep() {
	if _, err := v.change(v.ctx, nothing); err != nil && v.ctx.Err() == nil {
		v.lab.hub.publish(Event{Changes: []string{"cannot end pods: " + err.Error()}})
		v.wake.Reset(time.Second)
	}
}

// close ends all changes.
func (v *live) close() {
	v.stop()
	v.mu.Lock() // of a change that is under way
	v.wake.Stop()
	v.mu.Unlock()
	v.probers.wg.Wait()
	v.following.Wait()
}

// change puts a changed state in force. do changes it and returns what it has changed, in a line for each; an error
// leaves the lab as it is. What follows by itself is in the result, too.
func (v *live) change(ctx context.Context, do func(*desired.State, time.Time) ([]string, error)) ([]string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.ctx.Err(); err != nil {
		return nil, &observe.Error{Status: http.StatusServiceUnavailable, Message: "the lab is stopping"}
	}
	next, now := v.state.Clone(), time.Now()
	changes, err := do(next, now)
	if err != nil {
		return nil, err
	}
	// What replaces a pod has another name and address than one that ends now.
	changes = append(changes, next.Replicas(now)...)
	ended, wake := next.Sweep(now)
	for _, name := range ended {
		changes = append(changes, fmt.Sprintf("pod %s has ended", name))
	}
	if errs := next.Lab.Validate(); len(errs) > 0 {
		return nil, desired.Invalid("", desired.WithNames(next.Lab, errs))
	}
	objects, err := next.Objects(v.slices, now)
	if err != nil {
		return nil, desired.Invalid("", err)
	}
	changes = append(changes, v.state.Unchanged(next, objects)...)
	// Hosts come before the objects that name them, and go after these.
	gone, err := v.build(ctx, next)
	if err != nil {
		return nil, err
	}
	v.lab.cluster.now.Store(newClusterState(objects))
	if err := v.lab.identify(next.Lab); err != nil {
		return nil, err
	}
	if err := errors.Join(v.rules.write(v.lab.topology, next.Lab, objects), v.lab.api.Set(served(objects))); err != nil {
		return nil, err
	}
	v.state = next
	v.lab.spec.Store(next.Lab)
	v.objects.Store(objects)
	v.probe()
	if !wake.IsZero() {
		v.wake.Reset(time.Until(wake))
	}
	for _, name := range gone {
		err = errors.Join(err, v.remove(name))
	}
	if len(changes) > 0 {
		v.lab.hub.publish(Event{Changes: changes})
	}
	return changes, err
}

// served are the objects that the API server has.
func served(o *manifest.Objects) *kube.Objects {
	all, cidrs := o.Objects, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	for _, p := range labfile.Of(o).ServicePrefixes() {
		cidrs.Spec.CIDRs = append(cidrs.Spec.CIDRs, p.String())
	}
	all.Context.ServiceCIDRs = []*networkingv1.ServiceCIDR{cidrs}
	return &all
}

// Change changes the lab, and returns what has changed, in a line for each. An error leaves the lab as it is.
func (l *Lab) Change(ctx context.Context, c Change) ([]string, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	changes, err := l.live.change(ctx, func(s *desired.State, now time.Time) ([]string, error) {
		changes, err := s.Change(&c, now)
		if err != nil || c.Node == nil {
			return changes, err
		}
		// The node's cable: the device at its other end.
		node := l.topology.find(c.Node.Node)
		switch c.Node.Action {
		case "down":
			err = node.other.SetDown(node.link)
		case "up":
			err = node.other.SetUp(node.link)
		}
		return changes, err
	})
	if err != nil {
		return changes, err
	}
	return append(changes, l.live.settle(ctx)...), nil
}

// settleTimeout is how long daemons may take to put a change in force: some hundred times what they need.
const settleTimeout = 5 * time.Second

// Settle waits until the daemons decide, and observe, by the objects in force, at most some seconds. It returns a line for each that does not.
func (l *Lab) Settle(ctx context.Context) []string { return l.live.settle(ctx) }

// settle waits until the daemons have the objects in force, and returns a line for each that does not. kube-proxy tells nobody
// which objects it has; the observer beside it does.
func (v *live) settle(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	objects, config, _ := v.load(ctx) // never an error
	table, _ := servicetable.Table(&objects.Objects, config)
	want := localnode.Digest(table)
	nodes := v.lab.Spec().Nodes
	late := make([]string, len(nodes))
	var wg sync.WaitGroup
	for i := range nodes {
		name := nodes[i].Name
		d, does := v.lab.daemons[name], "decide"
		if nodes[i].Observe {
			d, does = v.lab.observers[name], "observe"
		}
		if state, _, _ := d.state(); state == Ready && nodes[i].HasFlowAPI() {
			wg.Go(func() {
				if err := v.applied(ctx, name, want); err != nil {
					late[i] = fmt.Sprintf("node %s does not %s by this yet: %v", name, does, err)
				}
			})
		}
	}
	wg.Wait()
	return slices.DeleteFunc(late, func(line string) bool { return line == "" })
}

// applied waits until a node's table has a digest. It asks again and again: the flow API streams flows only, and reports no new
// tables.
func (v *live) applied(ctx context.Context, node, digest string) error {
	o, err := v.lab.NodeObserver(node)
	if err != nil {
		return err
	}
	for {
		tables, err := o.Tables(ctx)
		if err == nil && len(tables) == 1 && tables[0].Digest == digest {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return errors.New("its daemon does not answer")
			}
			return errors.New("its daemon has an earlier table")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// state is what the lab is now: read only.
func (l *Lab) state() *desired.State {
	l.live.mu.Lock()
	defer l.live.mu.Unlock()
	return l.live.state
}

// build makes the hosts of a state that the lab lacks, and returns the names of those that it has too many. Hosts that differ
// are made again.
func (v *live) build(ctx context.Context, next *desired.State) (gone []string, err error) {
	before, after := byHost(v.state.Lab), byHost(next.Lab)
	for name := range before {
		if after[name] == nil {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	var made []string
	defer func() {
		if err != nil {
			for _, name := range made {
				err = errors.Join(err, v.remove(name))
			}
		}
	}()
	for _, m := range machinesOf(next.Lab) {
		name := m.Who()
		if v.lab.topology.find(name) != nil {
			if reflect.DeepEqual(before[name], after[name]) {
				if err := v.serve(ctx, m, !next.Stopped(name)); err != nil {
					return nil, err
				}
				continue
			}
			// Another one, or one of a change that failed.
			if err := v.remove(name); err != nil {
				return nil, err
			}
		}
		made = append(made, name)
		switch h := after[name].(type) {
		case Pod:
			err = v.lab.topology.buildPod(&h)
		case Client:
			err = v.lab.topology.buildClient(&h)
		}
		if err == nil {
			err = v.serve(ctx, m, !next.Stopped(name))
		}
		if err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// serve starts or stops the server of a host, if it is not as wanted.
func (v *live) serve(ctx context.Context, m machine, wanted bool) error {
	switch running := v.lab.servers.has(m.Who()); {
	case wanted && !running:
		return v.lab.servers.add(ctx, m)
	case !wanted && running:
		v.lab.servers.remove(m.Who())
	}
	return nil
}

// byHost are the pods and clients by name: what their hosts depend on.
func byHost(s *Spec) map[string]any {
	all := make(map[string]any)
	for _, n := range s.Nodes {
		all[n.Name] = n
	}
	for _, p := range s.Pods {
		p.Deployment, p.Labels, p.GracePeriodSeconds, p.ReadinessProbe = "", nil, nil, nil
		all[p.FullName()] = p
	}
	for _, c := range s.Clients {
		all[c.Name] = c
	}
	return all
}

func (v *live) remove(name string) error {
	v.lab.servers.remove(name)
	return v.lab.topology.remove(name)
}

// Objects are the Kubernetes objects in force: read only.
func (l *Lab) Objects() *manifest.Objects { return l.live.objects.Load() }

// load returns the objects in force, and the configuration of the nodes, as a findings.Doctor wants them.
func (v *live) load(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
	config, o := proxyconfig.Default().Node, v.objects.Load()
	labfile.Of(o).Configure(&config)
	config.Algorithms = v.lab.algorithms
	return o, config, nil
}

// followFiles puts changes of the files in force, and publishes what of them is not, until close.
func (v *live) followFiles() {
	report := func(s FilesStatus) {
		v.lab.files.Store(&s)
		v.lab.hub.publish(Event{Files: &s})
	}
	v.following.Go(func() {
		if err := v.follow(report); err != nil {
			report(FilesStatus{Problems: []string{"cannot watch the files: " + err.Error()}})
		}
	})
}

func (v *live) follow(report func(FilesStatus)) error {
	file := v.lab.file
	var w filesWatch
	var last FilesStatus
	take := func(o *manifest.Objects, err error) {
		s := FilesStatus{Problems: problems(file, o, err)}
		if len(s.Problems) == 0 {
			s = v.edit(v.ctx, o, &w)
		}
		if v.ctx.Err() == nil && !reflect.DeepEqual(s, last) {
			report(s)
		}
		last = s
	}
	take(v.lab.state().Written, nil) // they are in force, and may deserve warnings
	return v.source.Run(v.ctx, take)
}

// edit puts the files' contents in force.
func (v *live) edit(ctx context.Context, written *manifest.Objects, w *filesWatch) (s FilesStatus) {
	_, err := v.change(ctx, func(next *desired.State, now time.Time) (changes []string, _ error) {
		changes, s.NotApplied = next.Edit(written, now)
		return changes, nil
	})
	if err != nil {
		return FilesStatus{Problems: strings.Split(err.Error(), "\n")}
	}
	services, warnings := servicetable.Build(&v.objects.Load().Objects, servicetable.NodeConfig{Algorithms: v.lab.algorithms})
	s.NotApplied = most(append(s.NotApplied, w.newlyUnanswered(services, v.lab.Spec())...))
	s.Warnings = most(warnings)
	return s
}
