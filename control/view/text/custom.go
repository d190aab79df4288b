package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// customColumns reads kubectl's syntax, NAME:.path,NAME:.path,...
// (k8s.io/kubectl/pkg/cmd/get/customcolumn.go). In contrast to kubectl, a path that no record can
// have is an error, not a column of <none>.
func customColumns(spec string) ([]column, error) {
	var columns []column
	for part := range strings.SplitSeq(spec, ",") {
		name, path, ok := strings.Cut(part, ":")
		if !ok || name == "" || path == "" {
			return nil, fmt.Errorf("%q: want NAME:.path, for example ID:.id,TO:.endpoint", "custom-columns="+spec)
		}
		text := normalizedPath(path)
		if err := known(text); err != nil {
			return nil, fmt.Errorf(`"custom-columns=%s:%s": %w`, name, path, err)
		}
		columns = append(columns, column{name: name, value: evaluate(text)})
	}
	return columns, nil
}

// normalizedPath completes a path: kubectl accepts x.y, .x.y, {x.y} and {.x.y}.
func normalizedPath(path string) string {
	path = strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}")
	if !strings.HasPrefix(path, ".") && !strings.HasPrefix(path, "[") {
		path = "." + path
	}
	return "{" + path + "}"
}

// known returns an error for an invalid path, or for fields that no record has.
func known(path string) error {
	parser, err := jsonpath.Parse("path", path)
	if err != nil {
		return fmt.Errorf("invalid JSONPath: %w", err)
	}
	if len(parser.Root.Nodes) != 1 {
		return errors.New("invalid JSONPath: want one path, for example .life.state")
	}
	list, ok := parser.Root.Nodes[0].(*jsonpath.ListNode)
	if !ok {
		return errors.New("invalid JSONPath: want a path, for example .life.state")
	}
	of, where := reflect.TypeFor[flow.Record](), "a record"
	for _, node := range list.Nodes {
		switch node := node.(type) {
		case *jsonpath.FieldNode:
			if of.Kind() != reflect.Struct || node.Value == "" {
				return nil
			}
			field, ok := field(of, node.Value)
			if !ok {
				return fmt.Errorf("%s has no field %q; it has %s", where, node.Value, strings.Join(fields(of), ", "))
			}
			of, where = field, node.Value
		case *jsonpath.ArrayNode:
			if of.Kind() != reflect.Slice {
				return fmt.Errorf("%s is not a list", where)
			}
			of, where = of.Elem(), "one of "+where
		default: // anything may follow
			return nil
		}
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
	}
	return nil
}

// field returns the type of a field by its name in JSON.
func field(of reflect.Type, name string) (reflect.Type, bool) {
	for f := range of.Fields() {
		if jsonName(f) == name {
			return f.Type, true
		}
	}
	return nil, false
}

func fields(of reflect.Type) []string {
	var names []string
	for f := range of.Fields() {
		if name := jsonName(f); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// jsonName is the name of a field in JSON; empty: it has none.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// evaluate returns a path's values in a record, separated by commas, or <none>, as kubectl does.
func evaluate(path string) func(*flow.Record) cell {
	return func(r *flow.Record) cell {
		found, err := find(path, r)
		if err != nil {
			return cell{text: "<error: " + err.Error() + ">"}
		}
		var texts []string
		for _, values := range found {
			for _, v := range values {
				if v.IsValid() && v.CanInterface() && v.Interface() != nil {
					texts = append(texts, fmt.Sprint(v.Interface()))
				}
			}
		}
		if len(texts) == 0 {
			return cell{text: "<none>"}
		}
		return cell{text: strings.Join(texts, ",")}
	}
}

func find(path string, r *flow.Record) ([][]reflect.Value, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(b, &object); err != nil {
		return nil, err
	}
	// It keeps a state while it runs, so that each one runs once.
	j := jsonpath.New("path").AllowMissingKeys(true)
	if err := j.Parse(path); err != nil {
		return nil, err
	}
	return j.FindResults(object)
}
