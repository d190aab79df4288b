package yamlfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxExpanded bounds what the aliases of a document add to it, in bytes, and maxAliased in values.
	maxExpanded = 64 << 20
	maxAliased  = 1 << 18
	// maxDepth is the limit of the library's parser. Aliases may add to it.
	maxDepth = 10000
)

// Scalar is a value of a file in which a number may stand for a text.
type Scalar struct {
	Value any    // bool, int64 or float64
	Text  string // as written
}

// TextOf returns a value as a text, if it is one or may stand for one.
func TextOf(value any) (text string, ok bool) {
	if s, ok := value.(Scalar); ok {
		return s.Text, true
	}
	text, ok = value.(string)
	return text, ok
}

// converter converts the nodes of a document to the types of JSON. Aliases share memory in the document but not in what is
// made of it.
type converter struct {
	texts bool // bools and numbers are Scalars, and "on" is a text
	line  int  // of the file, where the document begins
	// budget and nodes are the bytes and values that may still come, depth is that of the node.
	budget       int64
	nodes, depth int
	open         []*yaml.Node // what aliases stand for, on the way to the node
	duplicates   []string
}

func (c *converter) fail(n *yaml.Node, format string, args ...any) error {
	return &LineError{c.line + n.Line - 1, fmt.Errorf(format, args...)}
}

func (c *converter) value(at *path, n *yaml.Node) (any, error) {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxDepth {
		return nil, c.fail(n, "aliases exceed the max depth of %d", maxDepth)
	}
	if len(c.open) > 0 {
		if c.nodes--; c.nodes < 0 {
			return nil, errors.New("document contains excessive aliasing")
		}
	}
	switch n.Kind {
	case yaml.AliasNode:
		for _, o := range c.open {
			if o == n.Alias {
				return nil, c.fail(n, "anchor %q contains itself", n.Value)
			}
		}
		c.open = append(c.open, n.Alias)
		v, err := c.value(at, n.Alias)
		c.open = c.open[:len(c.open)-1]
		return v, err
	case yaml.MappingNode:
		return c.mapping(at, n)
	case yaml.SequenceNode:
		all := make([]any, len(n.Content))
		for i, e := range n.Content {
			var err error
			if all[i], err = c.value(&path{parent: at, index: i}, e); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return c.scalar(n)
}

func (c *converter) mapping(at *path, n *yaml.Node) (any, error) {
	m := make(map[string]any, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() == "!!merge" {
			continue
		}
		key, err := c.key(n.Content[i])
		if err == nil {
			err = c.spend(key)
		}
		if err != nil {
			return nil, err
		}
		if _, twice := m[key]; twice {
			c.duplicates = append(c.duplicates, join(at.String(), key))
		}
		if m[key], err = c.value(&path{parent: at, name: key}, n.Content[i+1]); err != nil {
			return nil, err
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() == "!!merge" {
			if err := c.merge(at, m, n.Content[:i], n.Content[i+1]); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// merge adds the fields of a mapping, or of several, that are not there yet. Of a field that is above it, programs differ in which one
// counts; one below it replaces the merged one.
func (c *converter) merge(at *path, into map[string]any, above []*yaml.Node, n *yaml.Node) error {
	v, err := c.value(at, n)
	if err != nil {
		return err
	}
	all, ok := v.([]any)
	if !ok {
		all = []any{v}
	}
	for _, one := range all {
		from, ok := one.(map[string]any)
		if !ok {
			return c.fail(n, "map merge requires a mapping or a list of mappings as the value")
		}
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if _, has := into[key]; !has {
				into[key] = from[key]
			} else if !c.texts && hasKey(above, key) {
				c.duplicates = append(c.duplicates, join(at.String(), key))
			}
		}
	}
	return nil
}

// hasKey reports whether a key is among keys and their values.
func hasKey(pairs []*yaml.Node, key string) bool {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].Value == key {
			return true
		}
	}
	return false
}

// key returns a mapping's key as Kubernetes' YAML-to-JSON conversion does.
func (c *converter) key(n *yaml.Node) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode {
		v, err := c.scalar(n)
		if err != nil {
			return "", err
		}
		switch v := v.(type) {
		case string:
			return v, nil
		case Scalar:
			return v.Text, nil
		case bool, int64:
			return fmt.Sprint(v), nil
		case float64:
			return strconv.FormatFloat(v, 'g', -1, 32), nil
		}
	}
	return "", c.fail(n, "a key is neither text nor a number")
}

func (c *converter) scalar(n *yaml.Node) (any, error) {
	switch tag := n.ShortTag(); tag {
	case "!!null":
		return nil, nil
	case "!!bool", "!!int", "!!float", "!!binary":
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, c.fail(n, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		switch i := v.(type) {
		case int:
			v = int64(i)
		case uint64:
			v = float64(i) // as JSON does with integers beyond int64
		case string:
			return v, c.spend(i)
		}
		if c.texts {
			return Scalar{v, n.Value}, nil
		}
		return v, nil
	}
	if !c.texts && n.Style == 0 {
		switch n.Value { // YAML 1.1
		case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
			return true, nil
		case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
			return false, nil
		}
	}
	return n.Value, c.spend(n.Value)
}

// spend guards against one long text that is named by thousands of aliases.
func (c *converter) spend(s string) error {
	if c.budget -= int64(len(s)); c.budget < 0 {
		return fmt.Errorf("aliases add more than %d MiB", maxExpanded>>20)
	}
	return nil
}
