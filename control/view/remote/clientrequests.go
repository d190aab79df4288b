package remote

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// fetch sends a request and reads its JSON response.
func fetch[T any](ctx context.Context, c *Client, method string, query url.Values, body any, path ...string) (*T, error) {
	answer := new(T)
	if err := c.exchange(ctx, method, path, query, body, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// Ask sends the server a GET request, or a POST request with a body, below /v1, and reads its JSON response: for what is no
// part of an [Observer]. They return the same errors as the other methods.
func Ask[T any](ctx context.Context, c *Client, body any, path ...string) (*T, error) {
	if body == nil {
		return get[T](ctx, c, nil, path...)
	}
	return post[T](ctx, c, body, path...)
}

func get[T any](ctx context.Context, c *Client, query url.Values, path ...string) (*T, error) {
	return fetch[T](ctx, c, http.MethodGet, query, nil, path...)
}

// list requests an answer that has a list.
func list[L, T any](ctx context.Context, c *Client, path string, of func(*L) []T) ([]T, error) {
	l, err := get[L](ctx, c, nil, path)
	if err != nil {
		return nil, err
	}
	return of(l), nil
}

func post[T any](ctx context.Context, c *Client, body any, path ...string) (*T, error) {
	return fetch[T](ctx, c, http.MethodPost, nil, body, path...)
}

// parameters returns the set fields of a query as [observe.QueryOf] reads them. They are bool and string.
func parameters(q any) url.Values {
	v := make(url.Values)
	r := reflect.ValueOf(q)
	for i := range r.NumField() {
		switch name, f := strings.ToLower(r.Type().Field(i).Name), r.Field(i); {
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			v.Set(name, "true")
		default:
			v.Set(name, f.String())
		}
	}
	return v
}

// Flow requests one flow.
func (c *Client) Flow(ctx context.Context, id string) (*flow.Record, error) {
	return get[flow.Record](ctx, c, nil, "flows", id)
}

// Services requests services.
func (c *Client) Services(ctx context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	return get[observe.Services](ctx, c, parameters(q), "services")
}

// Tables requests the nodes' tables.
func (c *Client) Tables(ctx context.Context) ([]observe.Table, error) {
	return list(ctx, c, "table", func(l *observe.TableList) []observe.Table { return l.Tables })
}

// Stats requests the nodes' counters.
func (c *Client) Stats(ctx context.Context) ([]observe.Stats, error) {
	return list(ctx, c, "stats", func(l *observe.StatsList) []observe.Stats { return l.Nodes })
}

// Status requests the state of the nodes' daemons.
func (c *Client) Status(ctx context.Context) ([]observe.Status, error) {
	return list(ctx, c, "status", func(l *observe.StatusList) []observe.Status { return l.Nodes })
}

// Topology requests the topology of the cluster.
func (c *Client) Topology(ctx context.Context) (*observe.Topology, error) {
	return get[observe.Topology](ctx, c, nil, "topology")
}

// Explain requests the simulation of a packet. A daemon knows addresses only: names are resolved here.
func (c *Client) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	if resolve.Named(q.Source) || resolve.Named(q.Destination) {
		var err error
		if q.Question, err = c.resolve(ctx, q.Question); err != nil {
			return nil, err
		}
	}
	return post[flow.Record](ctx, c, q, "explain")
}

// resolve replaces names in a question by addresses.
func (c *Client) resolve(ctx context.Context, q flow.Question) (flow.Question, error) {
	topology, err := c.Topology(ctx)
	if err != nil {
		return q, err
	}
	// There may be many services: all of them are only needed to say which there are.
	resolved, err := c.resolveAmong(ctx, topology, strings.Join(resolve.Services(q), ","), q)
	if err != nil {
		return c.resolveAmong(ctx, topology, "", q)
	}
	return resolved, nil
}

// resolveAmong is resolve with the services of a list; empty: all.
func (c *Client) resolveAmong(ctx context.Context, topology *observe.Topology, services string, q flow.Question) (flow.Question, error) {
	names := resolve.NewNames()
	for _, p := range topology.Pods {
		names.AddPod(p.Name, p.Addresses)
	}
	for _, n := range topology.Nodes {
		names.AddNode(n.Name, n.Addresses)
	}
	list, err := c.Services(ctx, observe.ServiceQuery{Service: services})
	if err != nil {
		return q, err
	}
	for i := range list.Services {
		s := &list.Services[i]
		protocol, err := decision.ParseProtocol(s.Protocol)
		address, notAddress := netip.ParseAddr(s.ClusterIP)
		if err != nil || notAddress != nil {
			continue // headless
		}
		name := decision.ServicePortName{Namespace: s.Namespace, Name: s.Name, Port: s.PortName}
		names.AddService(&decision.ServicePort{Name: name, Protocol: protocol, ClusterIP: address, Port: s.Port})
	}
	return names.Resolve(q)
}

// Request requests that a host of a lab sends a request.
func (c *Client) Request(ctx context.Context, q labapi.Request) (*labapi.Response, error) {
	return post[labapi.Response](ctx, c, q, "requests")
}

// LabStatus requests what a lab consists of.
func (c *Client) LabStatus(ctx context.Context) (*labapi.Status, error) {
	return get[labapi.Status](ctx, c, nil, "lab")
}

// Change requests a change of a lab.
func (c *Client) Change(ctx context.Context, change labapi.Change) ([]string, error) {
	l, err := post[labapi.ChangeList](ctx, c, change, "lab", "changes")
	if err != nil {
		return nil, err
	}
	return l.Changes, nil
}

// AddFault requests that a fault of a lab is put in force.
func (c *Client) AddFault(ctx context.Context, f labapi.Fault) (labapi.Fault, error) {
	added, err := post[labapi.Fault](ctx, c, f, "lab", "faults")
	if err != nil {
		return f, err
	}
	return *added, nil
}

// RemoveFault requests the end of a fault of a lab; 0: of all.
func (c *Client) RemoveFault(ctx context.Context, id int) ([]labapi.Fault, error) {
	path := []string{"lab", "faults"}
	if id != 0 {
		path = append(path, strconv.Itoa(id))
	}
	l, err := fetch[labapi.FaultList](ctx, c, http.MethodDelete, nil, nil, path...)
	if err != nil {
		return nil, err
	}
	return l.Faults, nil
}

// Manifest is a Service with its EndpointSlices.
type Manifest struct {
	Service string `json:"service"` // namespace/name
	// YAML has the objects, separated by "---", without what an API server adds to each.
	YAML string `json:"yaml"`
}

// Manifest requests the objects of a Service.
func (c *Client) Manifest(ctx context.Context, namespace, name string) (*Manifest, error) {
	return get[Manifest](ctx, c, nil, "services", namespace, name, "manifest")
}

// Holder returns the client itself. If the server does not support holds ([Topology], CanHold), its
// methods return the server's error.
func (c *Client) Holder() observe.Holder { return c }

// Hold requests a hold.
func (c *Client) Hold(ctx context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	return post[observe.Hold](ctx, c, q, "holds")
}

// Holds requests all holds.
func (c *Client) Holds(ctx context.Context) ([]observe.Hold, error) {
	return list(ctx, c, "holds", func(l *observe.HoldList) []observe.Hold { return l.Holds })
}

// finalStateTimeout is the timeout of the last request for a hold's state after the end of the context.
const finalStateTimeout = 5 * time.Second

// Get requests a hold repeatedly, as long as the server lets it wait, until there is a greater
// generation. When the context ends it sends a last request, without waiting.
func (c *Client) Get(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	for {
		h, err := c.getHold(ctx, id, after)
		switch {
		case err == nil && (after == 0 || h.Generation > after):
			return h, nil
		case ctx.Err() != nil:
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalStateTimeout)
			defer cancel()
			return c.getHold(ctx, id, 0)
		case err != nil:
			return nil, err
		}
	}
}

func (c *Client) getHold(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	var query url.Values
	if after > 0 {
		query = url.Values{"after": {strconv.FormatUint(after, 10)}}
	}
	return get[observe.Hold](ctx, c, query, "holds", id)
}

// Act requests an action on a hold.
func (c *Client) Act(ctx context.Context, id string, a observe.Act) (*observe.Hold, error) {
	return post[observe.Hold](ctx, c, a, "holds", id, "act")
}

// Cancel requests the end of a hold.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.exchange(ctx, http.MethodDelete, []string{"holds", id}, nil, nil, nil)
}
