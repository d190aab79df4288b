package proxyconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v2"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"
)

// maxFileSize is that of a ConfigMap, from which these files come.
const maxFileSize = 1 << 20

// Load reads a file; see [Parse].
func Load(path string) (Config, []string, error) {
	// Without O_NONBLOCK, opening a pipe waits for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, nil, fmt.Errorf("cannot find the file %q: give kube-proxy's configuration file (key config.conf of the ConfigMap kube-proxy in kube-system), or leave --config out", path)
	case err != nil:
		return Config{}, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return Config{}, nil, err
	case !info.Mode().IsRegular():
		return Config{}, nil, fmt.Errorf("%s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return Config{}, nil, err
	}
	return Parse(path, data)
}

// Parse reads a KubeProxyConfiguration in YAML or JSON. The name of the file is for
// errors.
//
// Like kube-proxy it goes on where a field is unknown or given twice (the last one
// counts) and warns; fields of the right name that nfqproxy does not honour are warned of
// as well, if they differ from the default. Each warning begins with the
// field's path. A value that is not possible is an error; the error has one line for each,
// "FILE: PATH: what is wrong and what is expected", and the Config is of no use then.
func Parse(name string, data []byte) (Config, []string, error) {
	o, warnings, err := decode(data)
	if err != nil {
		return Config{}, nil, inFile(name, []error{err})
	}
	setDefaults(o)
	config, errs := honoured(o)
	if len(errs) > 0 {
		return Config{}, nil, inFile(name, errs)
	}
	return config, append(warnings, ignored(o)...), nil
}

func inFile(name string, errs []error) error {
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", name, err)
	}
	return errors.Join(errs...)
}

// decode decodes the file, with warnings for unknown and duplicate fields.
func decode(data []byte) (*object, []string, error) {
	if len(data) > maxFileSize {
		return nil, nil, fmt.Errorf("more than %d bytes: not a %s", maxFileSize, kind)
	}
	var warnings []string
	if secondDocument(data) {
		warnings = append(warnings, "only the first YAML document is used")
	}
	text, err := kyaml.YAMLToJSON(data)
	if err != nil {
		return nil, nil, errors.New("neither YAML nor JSON: " + oneLine(err))
	}
	if _, err := kyaml.YAMLToJSONStrict(data); err != nil {
		warnings = append(warnings, "a field is given twice: "+oneLine(err))
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, nil, fmt.Errorf("want an object of kind %s", kind)
	}
	if err := checkKind(fields); err != nil {
		return nil, nil, err
	}
	o := new(object)
	strict, err := kjson.UnmarshalStrict(text, o)
	if err != nil {
		return nil, nil, undecodableField("", fields, func(t any) error {
			part, err := json.Marshal(t)
			if err != nil {
				return err
			}
			return kjson.UnmarshalCaseSensitivePreserveInts(part, new(object))
		})
	}
	for _, e := range strict {
		path := e.Error()
		if field, ok := errors.AsType[kjson.FieldError](e); ok {
			path = field.FieldPath()
		}
		warnings = append(warnings, path+": unknown field, ignored")
	}
	return o, warnings, nil
}

func checkKind(fields map[string]any) error {
	for _, field := range []struct{ name, want string }{{"kind", kind}, {"apiVersion", apiVersion}} {
		switch got := fields[field.name]; got {
		case field.want:
		case nil:
			return fmt.Errorf("no %s: want %s", field.name, field.want)
		case "ConfigMap":
			return fmt.Errorf("kind: ConfigMap: want %s (the text under its key config.conf)", kind)
		default:
			return fmt.Errorf("%s: %v: want %s", field.name, got, field.want)
		}
	}
	return nil
}

// undecodableField finds the field that cannot be decoded, by decoding each on its own: the
// decoders' errors name types of Go, and those of durations no field at all.
func undecodableField(path string, fields map[string]any, decode func(any) error) error {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		within := func(v any) error { return decode(map[string]any{key: v}) }
		err := within(fields[key])
		if err == nil {
			continue
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		// {} is an object where there should be none.
		if inner, ok := fields[key].(map[string]any); ok && within(map[string]any{}) == nil {
			return undecodableField(at, inner, within)
		}
		return fmt.Errorf("%s: %s", at, wrongType(err))
	}
	return fmt.Errorf("%s: cannot be decoded", path)
}

// wrongType words a decoder's error without types of Go.
func wrongType(err error) string {
	typed, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return oneLine(err)
	}
	want := typed.Type.String()
	switch typed.Type.Kind().String() {
	case "bool":
		want = "true or false"
	case "string":
		want = "a string"
	case "slice":
		want = "a list"
	case "struct", "map":
		want = "an object"
	case "int32", "uint32", "int64":
		want = "an integer"
	case "float32":
		want = "a number"
	}
	return fmt.Sprintf("%s: want %s", typed.Value, want)
}

// secondDocument reports whether more follows the first YAML document. A program that reads
// with sigs.k8s.io/yaml, as kube-proxy does, never sees it.
func secondDocument(data []byte) bool {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var v any
	if decoder.Decode(&v) != nil {
		return false
	}
	err := decoder.Decode(&v)
	return !errors.Is(err, io.EOF) && v != nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
