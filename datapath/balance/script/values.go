package script

import (
	"fmt"
	"math"

	"go.starlark.net/starlark"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// record is what candidates, flows and events have in common as values of Starlark: they cannot be
// changed, and are no keys of dicts.
type record struct{}

func (record) Freeze()              {}
func (record) Truth() starlark.Bool { return true }
func (record) Hash() (uint32, error) {
	return 0, fmt.Errorf("a record is no key of a dict: use its endpoint")
}

// candidate is a candidate of a set. Its fields are read when the policy reads them: other workers
// change them meanwhile.
type candidate struct {
	record
	*balance.Candidate
	index    int // in the set
	endpoint starlark.String
}

func (c *candidate) String() string { return "candidate " + string(c.endpoint) }
func (*candidate) Type() string     { return "candidate" }
func (*candidate) AttrNames() []string {
	return []string{"endpoint", "flows", "inactive", "latency", "open", "weight"}
}

func (c *candidate) Attr(name string) (starlark.Value, error) {
	switch name {
	case "endpoint":
		return c.endpoint, nil
	case "weight":
		return starlark.MakeInt(int(c.Weight)), nil
	case "open":
		return starlark.MakeInt(c.Open()), nil
	case "inactive":
		return starlark.MakeInt(c.Inactive()), nil
	case "latency":
		return starlark.Float(c.Latency().Seconds()), nil
	case "flows":
		flows, _, _, _ := c.Counts()
		return starlark.MakeUint64(flows), nil
	}
	return nil, nil
}

// candidates is the list of a set's candidates. It cannot be changed.
func candidates(set *balance.Set) *starlark.List {
	all := make([]candidate, len(set.Candidates))
	values := make([]starlark.Value, len(all))
	for i := range all {
		c := &set.Candidates[i]
		all[i] = candidate{Candidate: c, index: i, endpoint: starlark.String(c.AddrPort.String())}
		values[i] = &all[i]
	}
	list := starlark.NewList(values)
	list.Freeze()
	return list
}

// flow is a new flow. One value serves all flows of a picker: a policy cannot keep it.
type flow struct {
	record
	balance.Flow
	random *starlark.Builtin
	drew   bool // the policy drew a random number
}

func newFlow() *flow {
	f := new(flow)
	f.random = starlark.NewBuiltin("random", func(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		if err := starlark.UnpackPositionalArgs(b.Name(), args, kwargs, 0); err != nil {
			return nil, err
		}
		f.drew = true
		return starlark.Float(f.Rand.Float64()), nil
	})
	return f
}

func (f *flow) String() string { return fmt.Sprintf("flow of %s", f.Packet.Source) }
func (*flow) Type() string     { return "flow" }
func (*flow) AttrNames() []string {
	return []string{"destination", "destination_port", "now", "protocol", "random", "source", "source_port"}
}

func (f *flow) Attr(name string) (starlark.Value, error) {
	switch name {
	case "source":
		return starlark.String(f.Packet.Source.Addr().String()), nil
	case "source_port":
		return starlark.MakeInt(int(f.Packet.Source.Port())), nil
	case "destination":
		return starlark.String(f.Packet.Destination.Addr().String()), nil
	case "destination_port":
		return starlark.MakeInt(int(f.Packet.Destination.Port())), nil
	case "protocol":
		return starlark.String(f.Packet.Protocol.String()), nil
	case "random":
		return f.random, nil
	case "now":
		return starlark.Float(float64(f.Now()) / 1e9), nil
	}
	return nil, nil
}

// event is what happened to a connection.
type event struct {
	record
	balance.Event
}

// kinds are the names of the kinds of events.
var kinds = [...]starlark.String{
	balance.Answered: "answered", balance.Refused: "refused", balance.Unanswered: "unanswered", balance.Inactive: "inactive", balance.Ended: "ended",
}

func (e *event) String() string { return fmt.Sprintf("%s by %s", e.kind(), e.Endpoint.AddrPort) }
func (*event) Type() string     { return "event" }
func (*event) AttrNames() []string {
	return []string{"after", "bytes", "endpoint", "kind"}
}

func (e *event) kind() starlark.String {
	if int(e.Kind) < len(kinds) {
		return kinds[e.Kind]
	}
	return ""
}

func (e *event) Attr(name string) (starlark.Value, error) {
	switch name {
	case "kind":
		return e.kind(), nil
	case "endpoint":
		return starlark.String(e.Endpoint.AddrPort.String()), nil
	case "after":
		return starlark.Float(e.After.Seconds()), nil
	case "bytes":
		return starlark.MakeUint64(e.Bytes), nil
	}
	return nil, nil
}

// data is a value of a state for encoding/json. It is no larger than a state may be.
func data(v starlark.Value) any {
	switch v := v.(type) {
	case starlark.Bool:
		return bool(v)
	case starlark.String:
		return string(v)
	case starlark.Float:
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
	case starlark.Int:
		if i, ok := v.Int64(); ok {
			return i
		}
	case *starlark.List:
		list := make([]any, 0, v.Len())
		for e := range v.Elements() {
			list = append(list, data(e))
		}
		return list
	case *starlark.Dict:
		object := make(map[string]any, v.Len())
		for k, e := range v.Entries() {
			object[key(k)] = data(e)
		}
		return object
	case starlark.NoneType:
		return nil
	}
	return v.String()
}

// key is a key of a dict as a key of JSON.
func key(v starlark.Value) string {
	if s, ok := v.(starlark.String); ok {
		return string(s)
	}
	return v.String()
}
