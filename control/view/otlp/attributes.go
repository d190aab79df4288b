package otlp

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// prefix begins the names of attributes for which no semantic convention has a name.
const prefix = "nfqproxy."

// attributes are those of a record: with the names of OpenTelemetry's semantic conventions where they
// have one, otherwise as in SCHEMA.md, in snake case after the prefix.
func attributes(r *flow.Record) []attribute.KeyValue {
	list := []attribute.KeyValue{attribute.String("network.transport", strings.ToLower(r.Protocol))}
	if a, err := netip.ParseAddrPort(r.Source); err == nil {
		kind := "ipv4"
		if a.Addr().Is6() {
			kind = "ipv6"
		}
		list = append(list, attribute.String("network.type", kind), attribute.String("source.address", a.Addr().String()), attribute.Int("source.port", int(a.Port())))
	}
	if a, err := netip.ParseAddrPort(r.Destination); err == nil {
		list = append(list, attribute.String("destination.address", a.Addr().String()), attribute.Int("destination.port", int(a.Port())))
	}
	if namespace, name, ok := strings.Cut(r.Service, "/"); ok {
		name, _, _ = strings.Cut(name, ":")
		list = append(list, attribute.String("k8s.namespace.name", namespace), attribute.String("k8s.service.name", name))
	}
	return recordFields.add(list, reflect.ValueOf(r).Elem())
}

// conventional are the fields of records that have attributes of the semantic conventions, or a place of
// their own: node is an attribute of the resource, and version is the schema's.
var conventional = map[string]bool{"source": true, "destination": true, "protocol": true, "node": true, "version": true}

// field is a field of a struct.
type field struct {
	index int
	key   string
	// omitempty: as in JSON.
	omitempty bool
	fields    fields // of a struct, or of a pointer to one
}

type fields []field

var recordFields = fieldsOf(reflect.TypeFor[flow.Record](), prefix, conventional)

// fieldsOf are the fields of a type that become attributes. Lists are counted; the records of other nodes
// and the walk, which a stream's records do not have, are left out.
func fieldsOf(t reflect.Type, prefix string, without map[string]bool) (list fields) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		simulation := kind == reflect.TypeFor[flow.Reply]() || f.Name == "Others" || f.Name == "Steps" || f.Name == "History" || f.Name == "Hint"
		if without[name] || simulation {
			continue
		}
		x := field{index: i, key: prefix + snake(name), omitempty: options == "omitempty"}
		if kind.Kind() == reflect.Struct && kind != reflect.TypeFor[time.Time]() {
			x.fields = fieldsOf(kind, x.key+".", nil)
		}
		list = append(list, x)
	}
	return list
}

// add appends the attributes of a struct.
func (l fields) add(to []attribute.KeyValue, of reflect.Value) []attribute.KeyValue {
	for i := range l {
		f := &l[i]
		v := of.Field(f.index)
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				continue
			}
			v = v.Elem()
		} else if f.omitempty && v.IsZero() {
			continue
		}
		if f.fields != nil {
			to = f.fields.add(to, v)
			continue
		}
		if a, ok := value(f.key, v); ok {
			to = append(to, a)
		}
	}
	return to
}

// value is an attribute; false: an empty text, which has none.
func value(key string, v reflect.Value) (attribute.KeyValue, bool) {
	switch x := v.Interface().(type) {
	case time.Time:
		return attribute.String(key, x.Format(time.RFC3339Nano)), true
	case fmt.Stringer:
		return attribute.String(key, x.String()), true
	}
	switch {
	case v.Kind() == reflect.String:
		return attribute.String(key, v.String()), v.Len() > 0
	case v.Kind() == reflect.Bool:
		return attribute.Bool(key, v.Bool()), true
	case v.CanInt():
		return attribute.Int64(key, v.Int()), true
	case v.CanUint():
		return attribute.Int64(key, int64(min(v.Uint(), math.MaxInt64))), true
	case v.CanFloat():
		return attribute.Float64(key, v.Float()), true
	case v.Kind() == reflect.Slice:
		return attribute.Int(key+".count", v.Len()), true
	}
	return attribute.KeyValue{}, false
}

// snake turns sourcePod into source_pod.
func snake(camel string) string {
	var b strings.Builder
	for i, c := range camel {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
