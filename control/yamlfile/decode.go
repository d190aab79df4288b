package yamlfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// FieldError is a mistake at one path within an object.
type FieldError struct {
	Field string // as in "spec.ports[0].name"; empty: the object as a whole
	Err   error
}

// Decoder turns the values of documents into Go's types, strictly, by the names of their fields in JSON. Unlike the JSON
// decoders it goes on after an error and knows the index of a list's item, so
// that one reading reports all errors, each with its position. What it gives is read only. The zero value is ready.
type Decoder struct {
	// Formats are the types with a form of their own. Times with a unit are known without.
	Formats map[reflect.Type]Format
	// ListFields: errors about unknown fields name the nearest known one, or list all.
	ListFields bool

	types  map[reflect.Type]*structType
	shared shared
	errs   []FieldError
}

// Format is how a type is read.
type Format struct {
	Want string // as "an IP address": in the error about a value of another type than Read returns without an error
	// Read returns a value of the type. Without ok the value is of another type than it can be.
	Read func(field string, value any) (v any, ok bool, err error)
}

// TextFormat is the format of a type with a text form.
func TextFormat(want string, read func(string) (any, error)) Format {
	return Format{want, func(_ string, value any) (any, bool, error) {
		text, ok := value.(string)
		if !ok {
			return nil, false, nil
		}
		v, err := read(text)
		return v, true, err
	}}
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

// Decode fills into, a pointer, and gives what is wrong, in the order of the
// fields' names.
func (d *Decoder) Decode(value, into any) []FieldError {
	d.errs = nil
	d.value(nil, value, reflect.ValueOf(into).Elem())
	return d.errs
}

func (d *Decoder) fail(at *path, format string, args ...any) {
	d.errs = append(d.errs, FieldError{at.String(), fmt.Errorf(format, args...)})
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

var unmarshaler, duration = reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[time.Duration]()

func (d *Decoder) value(at *path, value any, into reflect.Value) {
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
	if len(d.Formats) > 0 && d.format(at, value, into) {
		return
	}
	if s, ok := value.(Scalar); ok {
		if value = s.Value; into.Kind() == reflect.String {
			value = s.Text
		}
	}
	// Times, quantities and int-or-strings know their own format.
	if into.CanAddr() && into.Addr().Type().Implements(unmarshaler) {
		d.unmarshal(at, value, into)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.structure(at, value, into)
	case reflect.Slice:
		d.list(at, value, into)
	case reflect.Map:
		d.mapping(at, value, into)
	case reflect.String:
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
			into.SetBool(b)
			return
		}
		d.mismatch(at, "true or false", value)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := value.(int64)
		switch {
		case into.Type() == duration:
			d.duration(at, value, into)
		case !ok:
			d.mismatch(at, "an integer", value)
		case into.OverflowInt(n):
			d.fail(at, "%d is out of range", n)
		default:
			into.SetInt(n)
		}
	case reflect.Uint16:
		if n, ok := value.(int64); !ok || n < 0 || into.OverflowUint(uint64(n)) {
			d.mismatch(at, "a whole number from 0 to 65535", value)
		} else {
			into.SetUint(uint64(n))
		}
	case reflect.Float32, reflect.Float64:
		switch n := value.(type) {
		case int64:
			into.SetFloat(float64(n))
		case float64:
			into.SetFloat(n)
		default:
			d.mismatch(at, "a number", value)
		}
	default:
		// No kept kind has other types (interfaces) today. If one
		// gets some, JSON's own rules are good enough.
		d.unmarshal(at, value, into)
	}
}

func (d *Decoder) duration(at *path, value any, into reflect.Value) {
	text, _ := value.(string)
	if v, err := time.ParseDuration(text); err != nil {
		d.mismatch(at, "a time with its unit, as 30s or 5ms", value)
	} else {
		into.SetInt(int64(v))
	}
}

func (d *Decoder) structure(at *path, value any, into reflect.Value) {
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

// UnknownField is the error about a field that a type does not have.
type UnknownField struct {
	Meant string   // the one that differs in upper and lower case only; empty: there is none
	known []string // to be listed
}

// Error has what is meant or known.
func (e *UnknownField) Error() string {
	switch {
	case e.Meant != "":
		return fmt.Sprintf("unknown field, did you mean %q?", e.Meant)
	case len(e.known) > 0:
		return "unknown field; known fields: " + strings.Join(e.known, ", ")
	}
	return "unknown field"
}

// unknown reports an unknown field. Kubernetes' names are case sensitive, which
// is the likeliest slip.
func (d *Decoder) unknown(at *path, key string, t *structType) {
	e := new(UnknownField)
	if i := slices.IndexFunc(t.names, func(name string) bool { return strings.EqualFold(name, key) }); i >= 0 {
		e.Meant = t.names[i]
	} else if d.ListFields {
		if e.Meant = nearest.Name(key, t.names); e.Meant == "" {
			e.known = t.names
		}
	}
	d.errs = append(d.errs, FieldError{at.String(), e})
}

// number decodes a whole number within its limits.
func (d *Decoder) number(at *path, value any, into reflect.Value, f structField) {
	if value == nil {
		return
	}
	if s, ok := value.(Scalar); ok {
		value = s.Value
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
	into.Set(reflect.ValueOf(n).Convert(into.Type()))
}

// format decodes a type with a form of its own, and reports whether it is one.
func (d *Decoder) format(at *path, value any, into reflect.Value) bool {
	f, ok := d.Formats[into.Type()]
	if !ok {
		return false
	}
	v, ok, err := f.Read(at.String(), value)
	switch {
	case !ok:
		d.mismatch(at, f.Want, value)
	case err != nil:
		d.fail(at, "%w", err)
	default:
		into.Set(reflect.ValueOf(v))
	}
	return true
}

func (d *Decoder) list(at *path, value any, into reflect.Value) {
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

func (d *Decoder) mapping(at *path, value any, into reflect.Value) {
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

func (d *Decoder) unmarshal(at *path, value any, into reflect.Value) {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, into.Addr().Interface())
	}
	if err != nil {
		d.fail(at, "%w", err)
	}
}

func (d *Decoder) mismatch(at *path, want string, have any) {
	d.fail(at, "want %s, have %s", want, Describe(have))
}

// Describe describes a value briefly.
func Describe(v any) string {
	switch v := v.(type) {
	case Scalar:
		return Describe(v.Value)
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
func (d *Decoder) structType(t reflect.Type) *structType {
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
	if d.types == nil {
		d.types = make(map[reflect.Type]*structType)
	}
	d.types[t] = s
	return s
}

// join adds a field's name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
