package findings

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Doctor is an [viewapi.Doctor] of what an observer sees, of objects, or of both. It is safe for concurrent use.
type Doctor struct {
	Observer observe.Observer // nil: nothing is observed
	// Objects returns the objects of the cluster and the configuration of its nodes, but for the name; nil: they are
	// not known. The objects may not change later.
	Objects func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error)
	// Firewall reads the rules of nodes; nil: they are not known. It is called for the nodes of recent flows that got
	// no answer.
	Firewall Firewall
	// At is the time at whose flows [Doctor.Why] looks, of an observer that knows past ones; zero: now.
	At time.Time
}

// Of returns the doctor for what is observed: the server itself, if it knows the cluster's objects (a lab, and
// "nfqproxy web --cluster"); else this process, by what it observes.
func Of(ctx context.Context, o observe.Observer) (viewapi.Doctor, error) {
	client, ok := o.(*remote.Client)
	if !ok {
		return &Doctor{Observer: o}, nil
	}
	t, err := o.Topology(ctx)
	if err != nil {
		return nil, err
	}
	if t.CanWhy {
		return viewapi.Client{Client: client}, nil
	}
	return &Doctor{Observer: o}, nil
}

// OfNodes returns the problems of nodes: what a server that knows the cluster's objects finds, or what the daemons themselves
// report. It reads no flows.
func OfNodes(ctx context.Context, o observe.Observer) (list []diagnose.Finding, err error) {
	doctor, err := Of(ctx, o)
	if err != nil {
		return nil, err
	}
	if server, ok := doctor.(viewapi.Client); ok {
		all, err := server.Findings(ctx)
		if err != nil {
			return nil, err
		}
		list = all.Findings
	} else {
		status, err := o.Status(ctx)
		if err != nil {
			return nil, err
		}
		list = ofStatus(status, nil, nil)
	}
	return slices.DeleteFunc(list, func(f diagnose.Finding) bool { return !strings.HasPrefix(f.Object, "Node ") }), nil
}

// Findings returns the findings about the objects, if they are known, and about what is observed.
func (d *Doctor) Findings(ctx context.Context) (*viewapi.FindingList, error) {
	seen, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	list := append([]diagnose.Finding{}, seen.nodes...)
	if d.Observer != nil {
		observed, err := observed(ctx, d.Observer, seen.records, seen.status)
		if err != nil {
			return nil, err
		}
		list = append(list, observed...)
		list = append(list, ofStatus(seen.status, seen.records, seen.read)...)
	}
	if d.Objects != nil {
		c, objects, err := d.cluster(ctx, &seen)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(f diagnose.Finding) bool { return seen.replaced[f] })
		if d.Observer != nil && d.Firewall != nil {
			list = append(list, d.ofRules(ctx, seen.status, objects)...)
		}
		for i := range list {
			c.Ignore(&list[i])
		}
		for _, f := range c.Examine() {
			if down := c.NotReady(strings.TrimPrefix(f.Object, "Node ")); !diagnose.OfNode(f.Code) || down != nil && *down == f {
				list = append(list, f)
			}
		}
	}
	diagnose.Sort(list)
	return &viewapi.FindingList{Version: diagnose.Version, Findings: list}, nil
}

// Why answers a question, with recent flows in mind. An error of the question is a [*diagnose.QuestionError].
func (d *Doctor) Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use nfqproxy why --kubeconfig FILE"}
	}
	seen, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	c, _, err := d.cluster(ctx, &seen)
	if err != nil {
		return nil, err
	}
	answer, err := c.Why(q)
	if err == nil {
		if d.Observer != nil {
			d.follow(ctx, seen.status, answer)
			if err := d.addLag(ctx, seen.status, answer); err != nil {
				return nil, err
			}
		}
		seen.addTo(answer, c)
		answer.Settle()
	}
	return answer, err
}

// addTo adds to an answer what is wrong with the nodes on the way.
func (seen *recent) addTo(answer *diagnose.Answer, c *diagnose.Cluster) {
	nodes := []string{answer.Node}
	for _, p := range answer.Passed {
		nodes = append(nodes, p.Node)
	}
	for i := range answer.Endpoints {
		nodes = append(nodes, answer.Endpoints[i].Node)
	}
	decides := len(nodes) - len(answer.Endpoints) // of them, those whose daemons matter
	if answer.Record != nil && answer.Record.Service != "" {
		service, _, _ := strings.Cut(answer.Record.Service, ":")
		nodes = append(nodes, c.NodesOf(service)...)
	}
	slices.Sort(nodes[decides:])
	found := append(slices.Clone(seen.nodes), ofStatus(seen.status, nil, seen.read)...)
	for i, node := range nodes {
		if node == "" || slices.Index(nodes, node) < i {
			continue
		}
		if f := c.NotReady(node); f != nil {
			found = append(found, *f)
		}
		silent := slices.ContainsFunc(seen.status, func(s observe.Status) bool {
			return s.Node == node && slices.ContainsFunc(s.Problems, func(p observe.Problem) bool { return p.Code == observe.ProblemUnreachable })
		})
		for _, f := range found {
			if f.Object != "Node "+node || answer.Has(f) || seen.replaced[f] {
				continue
			}
			switch f.Code {
			case diagnose.NodeProblem:
				if i >= decides || !silent {
					continue
				}
				if answer.Works && answer.Unless == "" {
					answer.Unless = "new connections hang on " + node + ", whose daemon does not answer"
				}
			case diagnose.HostDropsSome, diagnose.ReverseFilter, diagnose.SendsLate, diagnose.NodeNotReady:
			case diagnose.StuckUDP:
				if answer.Record == nil || answer.Record.Protocol != "UDP" || !strings.Contains(f.Text, answer.Record.Destination) {
					continue
				}
			default:
				continue
			}
			answer.Notes = append(answer.Notes, f)
		}
	}
}

// recent are recent flows, and what nodes show of themselves.
type recent struct {
	records []*flow.Record
	status  []observe.Status // nil: not known
	nodes   []diagnose.Finding
	blamed  []blame
	read    map[string]*reading
	// replaced are findings about nodes that have another cause.
	replaced map[diagnose.Finding]bool
}

func (d *Doctor) recent(ctx context.Context) (seen recent, err error) {
	if d.Observer == nil {
		return seen, nil
	}
	if seen.records, err = until(ctx, d.Observer, d.At); err != nil {
		return seen, err
	}
	if seen.status, err = d.Observer.Status(ctx); err != nil {
		seen.status = nil // an earlier version's daemon
	}
	if d.Firewall == nil {
		return seen, nil
	}
	var nodes []string
	for i := range seen.status {
		nodes = append(nodes, seen.status[i].Node)
	}
	seen.nodes, seen.blamed, seen.read = look(ctx, d.Firewall, seen.records, nodes, func() places { return placesOf(ctx, d.Observer) })
	var services *observe.Services
	for _, node := range slices.Sorted(maps.Keys(seen.read)) {
		r := seen.read[node]
		seen.nodes = append(seen.nodes, delayFindings(node, r)...)
		if f := filtered(node, r, 0); f != nil && !slices.ContainsFunc(seen.nodes, func(o diagnose.Finding) bool { return o.Code == f.Code && o.Object == f.Object }) {
			seen.nodes = append(seen.nodes, *f)
		}
		if len(r.State.Entries) == 0 {
			continue
		}
		if services == nil {
			if services, err = d.Observer.Services(ctx, observe.ServiceQuery{Changes: true}); err != nil {
				return seen, err
			}
		}
		seen.nodes = append(seen.nodes, stale(node, r, services.Services, time.Now())...)
	}
	return seen, nil
}

// cluster is the cluster of the objects, with what recent flows show. A node that is not ready is the reason for the routes to it
// and from it.
func (d *Doctor) cluster(ctx context.Context, seen *recent) (*diagnose.Cluster, *manifest.Objects, error) {
	objects, config, err := d.Objects(ctx)
	if err != nil {
		return nil, nil, err
	}
	c := diagnose.New(objects, config)
	var now time.Time
	if d.At.IsZero() {
		now = time.Now()
	}
	c.Observe(seen.records, now)
	seen.replaced = make(map[diagnose.Finding]bool)
	for _, b := range seen.blamed {
		f := b.Finding
		if down := cmp.Or(c.NotReady(b.node), c.NotReady(b.on)); down != nil && f.Code == diagnose.BrokenRoute {
			seen.replaced[f], f = true, *down
		}
		c.Blame(b.endpoint, b.protocol, f)
	}
	return c, objects, nil
}

// Manifest returns a Service with its EndpointSlices.
func (d *Doctor) Manifest(ctx context.Context, namespace, name string) (*remote.Manifest, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("the objects of the cluster are not known here: use kubectl get service,endpointslice -n %s -o yaml", namespace)}
	}
	objects, _, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	mine := new(manifest.Objects)
	for _, s := range objects.Services {
		if s.Namespace == namespace && s.Name == name {
			mine.Services = append(mine.Services, s)
		}
	}
	if len(mine.Services) == 0 {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("Service %s/%s not found", namespace, name)}
	}
	for _, e := range objects.EndpointSlices {
		if e.Namespace == namespace && e.Labels[discoveryv1.LabelServiceName] == name {
			mine.EndpointSlices = append(mine.EndpointSlices, e)
		}
	}
	slices.SortFunc(mine.EndpointSlices, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	text, err := mine.YAML()
	return &remote.Manifest{Service: namespace + "/" + name, YAML: text}, err
}
