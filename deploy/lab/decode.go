package lab

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// decoder turns a YAML value into a Spec. It continues after an error, so that one pass
// finds all mistakes, each with the path of its field.
type decoder struct {
	problems []Problem
}

func (d *decoder) fail(path, format string, args ...any) {
	d.problems = append(d.problems, Problem{Field: path, Text: fmt.Sprintf(format, args...)})
}

// fields are the decoders of an object's fields.
type fields map[string]func(path string, v any)

// object decodes an object whose fields must all be known.
func (d *decoder) object(path string, v any, known fields) {
	m, ok := v.(map[string]any)
	if !ok {
		d.fail(path, "want fields, have %s", describe(v))
		return
	}
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	given := make([]string, 0, len(m))
	for name := range m {
		given = append(given, name)
	}
	slices.Sort(given)
	for _, name := range given {
		decode, ok := known[name]
		switch {
		case !ok:
			d.fail(join(path, name), "unknown field; known fields: %s", strings.Join(names, ", "))
		case m[name] != nil: // null leaves a field unchanged
			decode(join(path, name), m[name])
		}
	}
}

// list decodes each item of a list into one more element of a slice.
func list[T any](into *[]T, item func(path string, v any, into *T), d *decoder) func(string, any) {
	return func(path string, v any) {
		items, ok := v.([]any)
		if !ok {
			d.fail(path, "want a list, have %s", describe(v))
			return
		}
		*into = make([]T, len(items))
		for i, v := range items {
			item(fmt.Sprintf("%s[%d]", path, i), v, &(*into)[i])
		}
	}
}

func (d *decoder) text(into *string) func(string, any) {
	return func(path string, v any) {
		s, ok := v.(string)
		if !ok {
			d.fail(path, "want text, have %s", describe(v))
		}
		*into = s
	}
}

func (d *decoder) boolean(into *bool) func(string, any) {
	return func(path string, v any) {
		b, ok := v.(bool)
		if !ok {
			d.fail(path, "want true or false, have %s", describe(v))
		}
		*into = b
	}
}

// integer decodes an integer from low to high.
func (d *decoder) integer(low, high uint64, set func(uint64)) func(string, any) {
	return func(path string, v any) {
		f, ok := v.(float64) // the type that encoding/json decodes numbers to
		// The conversion back guards against numbers a float64 does not hold exactly.
		if !ok || f != math.Trunc(f) || f < float64(low) || f > float64(high) {
			d.fail(path, "want a whole number from %d to %d, have %s", low, high, describe(v))
			return
		}
		set(uint64(f))
	}
}

func (d *decoder) addr(path string, v any, into *netip.Addr) {
	s, ok := v.(string)
	if !ok {
		d.fail(path, "want an IP address, have %s", describe(v))
		return
	}
	a, err := kubeaddr.Parse(s)
	if err != nil {
		d.fail(path, "%v", err)
		return
	}
	*into = a
}

func (d *decoder) prefix(path string, v any, into *netip.Prefix) {
	s, ok := v.(string)
	if !ok {
		d.fail(path, "want a CIDR, have %s", describe(v))
		return
	}
	p, err := kubeaddr.ParsePrefix(s)
	if err != nil {
		d.fail(path, "%q is not a CIDR (address/bits)", s)
		return
	}
	address, _, _ := strings.Cut(s, "/")
	if a, err := kubeaddr.Parse(address); err != nil || a != p.Addr() {
		d.fail(path, "%s has bits of a host; the CIDR is %s", s, p)
		return
	}
	*into = p
}

func (d *decoder) port(path string, v any, into *Port) {
	into.Protocol = decision.TCP
	d.object(path, v, fields{
		"port": d.integer(1, math.MaxUint16, func(n uint64) { into.Port = uint16(n) }),
		"protocol": func(path string, v any) {
			switch v {
			case "TCP":
			case "UDP":
				into.Protocol = decision.UDP
			default:
				d.fail(path, "%v: the built-in server supports TCP and UDP", v)
			}
		},
	})
	if m, ok := v.(map[string]any); ok && m["port"] == nil {
		d.fail(join(path, "port"), "missing")
	}
}

func (d *decoder) network(path string, v any, into *Network) {
	d.object(path, v, fields{
		"cidr":    func(path string, v any) { d.prefix(path, v, &into.CIDR) },
		"gateway": func(path string, v any) { d.addr(path, v, &into.Gateway) },
	})
}

func (d *decoder) node(path string, v any, into *Node) {
	d.object(path, v, fields{
		"name":      d.text(&into.Name),
		"addresses": list(&into.Addresses, d.addr, d),
		"podCIDRs":  list(&into.PodCIDRs, d.prefix, d),
		"ports":     list(&into.Ports, d.port, d),
	})
}

func (d *decoder) pod(path string, v any, into *Pod) {
	into.Namespace = "default"
	d.object(path, v, fields{
		"name":      d.text(&into.Name),
		"namespace": d.text(&into.Namespace),
		"node":      d.text(&into.Node),
		"addresses": list(&into.Addresses, d.addr, d),
		"ports":     list(&into.Ports, d.port, d),
	})
}

func (d *decoder) client(path string, v any, into *Client) {
	d.object(path, v, fields{
		"name":         d.text(&into.Name),
		"addresses":    list(&into.Addresses, d.addr, d),
		"ports":        list(&into.Ports, d.port, d),
		"routesToPods": d.boolean(&into.RoutesToPods),
	})
}

func (d *decoder) proxy(into *Proxy) func(string, any) {
	return func(path string, v any) {
		d.object(path, v, fields{
			// 2^53: larger numbers are not exact in every YAML and JSON parser.
			"seed":          d.integer(0, 1<<53, func(n uint64) { into.Seed = &n }),
			"queues":        d.integer(1, 256, func(n uint64) { into.Queues = uint16(n) }),
			"masqueradeAll": d.boolean(&into.MasqueradeAll),
			"masqueradeHairpin": func(path string, v any) {
				masquerade := true
				d.boolean(&masquerade)(path, v)
				into.NoHairpinMasquerade = !masquerade
			},
			"nodePortAddresses": list(&into.NodePortAddresses, d.prefix, d),
		})
	}
}

// spec decodes the Lab document.
func (d *decoder) spec(v any) *Spec {
	var s Spec
	constant := func(want string) func(string, any) {
		return func(path string, v any) {
			if v != want {
				d.fail(path, "want %s, have %s", want, describe(v))
			}
		}
	}
	d.object("", v, fields{
		"apiVersion": constant(APIVersion),
		"kind":       constant(Kind),
		"metadata": func(path string, v any) {
			d.object(path, v, fields{"name": d.text(&s.Name)})
		},
		"clusterCIDRs": list(&s.ClusterCIDRs, d.prefix, d),
		"networks":     list(&s.Networks, d.network, d),
		"nodes":        list(&s.Nodes, d.node, d),
		"pods":         list(&s.Pods, d.pod, d),
		"clients":      list(&s.Clients, d.client, d),
		"proxy":        d.proxy(&s.Proxy),
		"objects": list(&s.Objects, func(path string, v any, into *string) {
			d.text(into)(path, v)
		}, d),
	})
	return &s
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// describe names the kind of a YAML value, for messages.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case map[string]any:
		return "fields"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("text %q", v)
	}
	return fmt.Sprint(v)
}
