package observe

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func (c *Client) get(ctx context.Context, query url.Values, answer any, path ...string) error {
	return c.exchange(ctx, http.MethodGet, path, query, nil, answer)
}

// Flow requests one flow.
func (c *Client) Flow(ctx context.Context, id string) (*flow.Record, error) {
	r := new(flow.Record)
	if err := c.get(ctx, nil, r, "flows", id); err != nil {
		return nil, err
	}
	return r, nil
}

// Services requests services.
func (c *Client) Services(ctx context.Context, q ServiceQuery) (*Services, error) {
	s := new(Services)
	if err := c.get(ctx, q.Values(), s, "services"); err != nil {
		return nil, err
	}
	return s, nil
}

// Tables requests the nodes' tables.
func (c *Client) Tables(ctx context.Context) ([]Table, error) {
	var l TableList
	err := c.get(ctx, nil, &l, "table")
	return l.Tables, err
}

// Stats requests the nodes' counters.
func (c *Client) Stats(ctx context.Context) ([]Stats, error) {
	var l StatsList
	err := c.get(ctx, nil, &l, "stats")
	return l.Nodes, err
}

// Topology requests the topology of the cluster.
func (c *Client) Topology(ctx context.Context) (*Topology, error) {
	t := new(Topology)
	if err := c.get(ctx, nil, t, "topology"); err != nil {
		return nil, err
	}
	return t, nil
}

// Explain requests the simulation of a packet.
func (c *Client) Explain(ctx context.Context, q Question) (*flow.Record, error) {
	r := new(flow.Record)
	if err := c.exchange(ctx, http.MethodPost, []string{"explain"}, nil, q, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Holder returns the client itself. If the server does not support holds ([Topology], CanHold), its
// methods return the server's error.
func (c *Client) Holder() Holder { return c }

// Hold requests a hold.
func (c *Client) Hold(ctx context.Context, q HoldQuery) (*Hold, error) {
	h := new(Hold)
	if err := c.exchange(ctx, http.MethodPost, []string{"holds"}, nil, q, h); err != nil {
		return nil, err
	}
	return h, nil
}

// Holds requests all holds.
func (c *Client) Holds(ctx context.Context) ([]Hold, error) {
	var l HoldList
	err := c.get(ctx, nil, &l, "holds")
	return l.Holds, err
}

// lastWord is the timeout of the last request for a hold's state after the end of the context.
const lastWord = 5 * time.Second

// Get requests a hold repeatedly, as long as the server lets it wait, until there is a greater
// generation. When the context ends it sends a last request, without waiting.
func (c *Client) Get(ctx context.Context, id string, after uint64) (*Hold, error) {
	for {
		h, err := c.getHold(ctx, id, after)
		switch {
		case err == nil && (after == 0 || h.Generation > after):
			return h, nil
		case ctx.Err() != nil:
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
			defer cancel()
			return c.getHold(ctx, id, 0)
		case err != nil:
			return nil, err
		}
	}
}

func (c *Client) getHold(ctx context.Context, id string, after uint64) (*Hold, error) {
	var query url.Values
	if after > 0 {
		query = url.Values{"after": {strconv.FormatUint(after, 10)}}
	}
	h := new(Hold)
	if err := c.get(ctx, query, h, "holds", id); err != nil {
		return nil, err
	}
	return h, nil
}

// Act requests an action on a hold.
func (c *Client) Act(ctx context.Context, id string, a Act) (*Hold, error) {
	h := new(Hold)
	if err := c.exchange(ctx, http.MethodPost, []string{"holds", id, "act"}, nil, a, h); err != nil {
		return nil, err
	}
	return h, nil
}

// Cancel requests the end of a hold.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.exchange(ctx, http.MethodDelete, []string{"holds", id}, nil, nil, nil)
}
