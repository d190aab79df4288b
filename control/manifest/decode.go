package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// fieldError is what is wrong at one path within an object.
type fieldError struct {
	path string
	err  error
}

// decoder turns untyped values into Kubernetes types, strictly. Unlike the JSON
// decoders it goes on after an error and knows the index of a list's item, so
// that one reading reports all errors, each with its position.
type decoder struct {
	types  map[reflect.Type]*structType
	shared shared
	errs   []fieldError
	// listFields: errors about unknown fields list the known ones.
	listFields bool
	respelled  kubeaddr.Respelled // of formats
}

// structType are the fields of a struct by their JSON names.
type structType struct {
	names  []string // sorted
	fields map[string]structField
}

// structField is a field of a struct. A whole number with the tag range:"1-256" has limits.
type structField struct {
	index     []int // reflect's
	low, high int64 // valid iff high is not 0
}

func newDecoder() *decoder { return &decoder{types: make(map[reflect.Type]*structType)} }

// decode fills into, a pointer, and gives what is wrong, in the order of the
// fields' names.
func (d *decoder) decode(value, into any) []fieldError {
	d.errs = nil
	d.value(nil, value, reflect.ValueOf(into).Elem())
	return d.errs
}

func (d *decoder) fail(at *path, format string, args ...any) {
	d.errs = append(d.errs, fieldError{at.String(), fmt.Errorf(format, args...)})
}

// path leads to a field. Most paths are never written, so none is a text until it is.
type path struct {
	parent *path // nil: the object itself
	name   string
	key    string // of a map, with its brackets; valid iff name is empty
	index  int    // of a list; valid iff name and key are empty
}

// String writes a path as in "spec.ports[0].name".
func (p *path) String() string {
	switch {
	case p == nil:
		return ""
	case p.name != "":
		return join(p.parent.String(), p.name)
	case p.key != "":
		return p.parent.String() + p.key
	}
	return fmt.Sprintf("%s[%d]", p.parent.String(), p.index)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (d *decoder) value(at *path, value any, into reflect.Value) {
	if value == nil {
		return // as in JSON: null leaves a field as it is
	}
	if into.Kind() == reflect.Pointer {
		if p, ok := d.shared.pointer(value, into.Type().Elem()); ok {
			into.Set(p)
			return
		}
		into.Set(reflect.New(into.Type().Elem()))
		d.value(at, value, into.Elem())
		return
	}
	// Times, quantities and int-or-strings know their own format.
	if into.CanAddr() && into.Addr().Type().Implements(unmarshaler) {
		d.unmarshal(at, value, into)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		if !d.format(at, value, into) {
			d.structure(at, value, into)
		}
	case reflect.Slice:
		d.list(at, value, into)
	case reflect.Map:
		d.mapping(at, value, into)
	case reflect.String:
		if into.Type() == labServer {
			d.format(at, value, into)
			return
		}
		if s, ok := value.(string); ok {
			into.SetString(d.shared.text(s))
			return
		}
		switch value.(type) {
		case bool, int64, float64: // YAML takes 80, on and even n for these
			d.fail(at, "want a string, have %v: quote it", value)
		default:
			d.mismatch(at, "a string", value)
		}
	case reflect.Bool:
		if b, ok := value.(bool); ok {
			into.SetBool(b != (into.Type() == negated))
			return
		}
		d.mismatch(at, "true or false", value)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := value.(int64)
		switch {
		case !ok:
			d.mismatch(at, "an integer", value)
		case into.OverflowInt(n):
			d.fail(at, "%d is out of range", n)
		default:
			into.SetInt(n)
		}
	default:
		// No kept kind has other types (floats, interfaces) today. If one
		// gets some, JSON's own rules are good enough.
		if !d.format(at, value, into) {
			d.unmarshal(at, value, into)
		}
	}
}

func (d *decoder) structure(at *path, value any, into reflect.Value) {
	m, ok := value.(map[string]any)
	if !ok {
		d.mismatch(at, "an object", value)
		return
	}
	t, found := d.structType(into.Type()), 0
	for _, name := range t.names {
		if _, ok := m[name]; ok {
			found++
		}
	}
	names := t.names
	if found < len(m) {
		names = slices.Sorted(maps.Keys(m)) // some of them are unknown
	}
	for _, name := range names {
		v, ok := m[name]
		if !ok {
			continue
		}
		at := &path{parent: at, name: name}
		switch f, ok := t.fields[name]; {
		case !ok:
			d.unknown(at, name, t)
		case f.high != 0:
			d.number(at, v, into.FieldByIndex(f.index), f)
		default:
			d.value(at, v, into.FieldByIndex(f.index))
		}
	}
}

// unknown reports an unknown field. Kubernetes' names are case sensitive, which
// is the likeliest slip.
func (d *decoder) unknown(at *path, key string, t *structType) {
	for _, name := range t.names {
		if strings.EqualFold(name, key) {
			d.fail(at, "unknown field, did you mean %q?", name)
			return
		}
	}
	err := errUnknown
	if d.listFields {
		err = fmt.Errorf("%w; known fields: %s", err, strings.Join(t.names, ", "))
	}
	d.errs = append(d.errs, fieldError{at.String(), err})
}

// errUnknown is a field that the types of this program do not have.
var errUnknown = errors.New("unknown field")

// number decodes an unsigned number within its limits.
func (d *decoder) number(at *path, value any, into reflect.Value, f structField) {
	if value == nil {
		return
	}
	n, ok := value.(int64)
	if !ok || n < f.low || n > f.high {
		d.mismatch(at, fmt.Sprintf("a whole number from %d to %d", f.low, f.high), value)
		return
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	into.SetUint(uint64(n))
}

// format decodes a type with a text form, and reports whether it is one.
func (d *decoder) format(at *path, value any, into reflect.Value) bool {
	f, ok := formats[into.Type()]
	if !ok {
		return false
	}
	s, ok := value.(string)
	if !ok {
		d.mismatch(at, f.want, value)
		return true
	}
	v, err := f.read(s)
	if err != nil {
		d.fail(at, "%w", err)
		return true
	}
	into.Set(reflect.ValueOf(v))
	d.respelled.See(at.String(), s)
	return true
}

func (d *decoder) list(at *path, value any, into reflect.Value) {
	if into.Type().Elem().Kind() == reflect.Uint8 {
		d.unmarshal(at, value, into) // base64
		return
	}
	l, ok := value.([]any)
	if !ok {
		d.mismatch(at, "a list", value)
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(l), len(l)))
	for i, e := range l {
		at := &path{parent: at, index: i}
		if e == nil && d.format(at, e, into.Index(i)) {
			continue // an error: the zero address is none
		}
		d.value(at, e, into.Index(i))
	}
}

func (d *decoder) mapping(at *path, value any, into reflect.Value) {
	m, ok := value.(map[string]any)
	if !ok {
		d.mismatch(at, "an object", value)
		return
	}
	t := into.Type()
	into.Set(reflect.MakeMapWithSize(t, len(m)))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		e := reflect.New(t.Elem()).Elem()
		d.value(&path{parent: at, key: "[" + key + "]"}, m[key], e)
		into.SetMapIndex(reflect.ValueOf(d.shared.text(key)).Convert(t.Key()), e)
	}
}

func (d *decoder) unmarshal(at *path, value any, into reflect.Value) {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, into.Addr().Interface())
	}
	if err != nil {
		d.fail(at, "%w", err)
	}
}

func (d *decoder) mismatch(at *path, want string, have any) {
	d.fail(at, "want %s, have %s", want, describe(have))
}

// describe describes a value briefly.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		if len(v) > 40 {
			return "a long string"
		}
		return fmt.Sprintf("the string %q", v)
	}
	return fmt.Sprint(v)
}

// structType returns the fields of a struct, those of embedded structs ("inline") among
// them.
func (d *decoder) structType(t reflect.Type) *structType {
	if s, ok := d.types[t]; ok {
		return s
	}
	fields := make(map[string]structField)
	for i := range t.NumField() {
		f := t.Field(i)
		field := structField{index: f.Index}
		if limits := f.Tag.Get("range"); limits != "" {
			if _, err := fmt.Sscanf(limits, "%d-%d", &field.low, &field.high); err != nil {
				panic(err) // of a constant
			}
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name != "":
			fields[name] = field
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			for name, inner := range d.structType(f.Type).fields {
				inner.index = slices.Concat(f.Index, inner.index)
				fields[name] = inner
			}
		default:
			fields[f.Name] = field
		}
	}
	s := &structType{slices.Sorted(maps.Keys(fields)), fields}
	d.types[t] = s
	return s
}
