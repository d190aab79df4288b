package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// fieldError is what is wrong at one path within an object.
type fieldError struct {
	path string
	err  error
}

// decoder turns untyped values into Kubernetes types, strictly. Unlike the JSON
// decoders it goes on after an error and knows the index of a list's item, so
// that one reading tells everything and each error says where.
type decoder struct {
	fields map[reflect.Type]map[string][]int // JSON names to reflect's index
	errs   []fieldError
}

func newDecoder() *decoder {
	return &decoder{fields: make(map[reflect.Type]map[string][]int)}
}

// decode fills into, a pointer, and gives what is wrong, in the order of the
// fields' names.
func (d *decoder) decode(value, into any) []fieldError {
	d.errs = nil
	d.value("", value, reflect.ValueOf(into).Elem())
	return d.errs
}

func (d *decoder) fail(path, format string, args ...any) {
	d.errs = append(d.errs, fieldError{path, fmt.Errorf(format, args...)})
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (d *decoder) value(path string, value any, into reflect.Value) {
	if value == nil {
		return // as in JSON: null leaves a field as it is
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		d.value(path, value, into.Elem())
		return
	}
	// Times, quantities and int-or-strings know their own format.
	if into.CanAddr() && into.Addr().Type().Implements(unmarshaler) {
		d.unmarshal(path, value, into)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.structure(path, value, into)
	case reflect.Slice:
		d.list(path, value, into)
	case reflect.Map:
		d.mapping(path, value, into)
	case reflect.String:
		if s, ok := value.(string); ok {
			into.SetString(s)
			return
		}
		switch value.(type) {
		case bool, int64, float64: // YAML takes 80, on and even n for these
			d.fail(path, "want a string, have %v: quote it", value)
		default:
			d.mismatch(path, "a string", value)
		}
	case reflect.Bool:
		if b, ok := value.(bool); ok {
			into.SetBool(b)
			return
		}
		d.mismatch(path, "true or false", value)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := value.(int64)
		switch {
		case !ok:
			d.mismatch(path, "an integer", value)
		case into.OverflowInt(n):
			d.fail(path, "%d is out of range", n)
		default:
			into.SetInt(n)
		}
	default:
		// No kept kind has other types (floats, interfaces) today. If one
		// gets some, JSON's own rules are good enough.
		d.unmarshal(path, value, into)
	}
}

func (d *decoder) structure(path string, value any, into reflect.Value) {
	m, ok := value.(map[string]any)
	if !ok {
		d.mismatch(path, "an object", value)
		return
	}
	fields := d.fieldsOf(into.Type())
	for _, key := range slices.Sorted(maps.Keys(m)) {
		index, ok := fields[key]
		if !ok {
			d.unknown(join(path, key), key, fields)
			continue
		}
		d.value(join(path, key), m[key], into.FieldByIndex(index))
	}
}

// unknown reports an unknown field. Kubernetes' names are case sensitive, which
// is the likeliest slip.
func (d *decoder) unknown(path, key string, fields map[string][]int) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if strings.EqualFold(name, key) {
			d.fail(path, "unknown field, did you mean %q?", name)
			return
		}
	}
	d.fail(path, "unknown field")
}

func (d *decoder) list(path string, value any, into reflect.Value) {
	if into.Type().Elem().Kind() == reflect.Uint8 {
		d.unmarshal(path, value, into) // base64
		return
	}
	l, ok := value.([]any)
	if !ok {
		d.mismatch(path, "a list", value)
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(l), len(l)))
	for i, e := range l {
		d.value(fmt.Sprintf("%s[%d]", path, i), e, into.Index(i))
	}
}

func (d *decoder) mapping(path string, value any, into reflect.Value) {
	m, ok := value.(map[string]any)
	if !ok {
		d.mismatch(path, "an object", value)
		return
	}
	t := into.Type()
	into.Set(reflect.MakeMapWithSize(t, len(m)))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		e := reflect.New(t.Elem()).Elem()
		d.value(fmt.Sprintf("%s[%s]", path, key), m[key], e)
		into.SetMapIndex(reflect.ValueOf(key).Convert(t.Key()), e)
	}
}

func (d *decoder) unmarshal(path string, value any, into reflect.Value) {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, into.Addr().Interface())
	}
	if err != nil {
		d.fail(path, "%w", err)
	}
}

func (d *decoder) mismatch(path, want string, have any) {
	d.fail(path, "want %s, have %s", want, describe(have))
}

// describe says what a value is, shortly.
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

// fieldsOf gives the fields of a struct by their JSON names, those of embedded
// structs ("inline") among them.
func (d *decoder) fieldsOf(t reflect.Type) map[string][]int {
	if f, ok := d.fields[t]; ok {
		return f
	}
	fields := make(map[string][]int)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name != "":
			fields[name] = f.Index
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			for inner, index := range d.fieldsOf(f.Type) {
				fields[inner] = append(slices.Clone(f.Index), index...)
			}
		default:
			fields[f.Name] = f.Index
		}
	}
	d.fields[t] = fields
	return fields
}
