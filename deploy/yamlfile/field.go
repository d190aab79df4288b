package yamlfile

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// place is a node of a document.
type place struct {
	field string // as steps[0].name; empty: the document
	key   string // in its mapping; empty: it has none
	node  *yaml.Node
}

// places are the nodes of a document by their lines. Fields stand on the lines of their keys and of their values.
type places map[int][]place

// placesOf lists the nodes of a document. What an alias refers to is there once, where it is written.
func placesOf(n *yaml.Node) places {
	all := make(places)
	all.add(place{node: n}, n.Line)
	return all
}

func (all places) add(at place, line int) {
	n := at.node
	all[line] = append(all[line], at)
	if n.Line != line {
		all[n.Line] = append(all[n.Line], at)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		for _, content := range n.Content {
			all.add(place{node: content}, content.Line)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			all.add(place{strings.TrimPrefix(at.field+"."+key.Value, "."), key.Value, value}, key.Line)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			all.add(place{field: at.field + "[" + strconv.Itoa(i) + "]", node: item}, item.Line)
		}
	}
}

// fieldOf is the field of an error of package yaml in a line: if several may be meant, the one that has them all.
func (all places) fieldOf(line int, text string) (field string) {
	isMeant := func(place) bool { return true }
	unknown := unknownField.FindStringSubmatch(text)
	if unknown != nil {
		isMeant = func(at place) bool { return at.key == unknown[1] }
	} else if m := wrongType.FindStringSubmatch(text); m != nil {
		value := strings.TrimSuffix(strings.Trim(m[2], " `"), "...") // the text of a long one is cut
		isMeant = func(at place) bool {
			return at.node.ShortTag() == "!!"+m[1] && strings.HasPrefix(at.node.Value, value)
		}
	}
	first := true
	for _, at := range all[line] {
		switch {
		case !isMeant(at):
		case first:
			field, first = at.field, false
		default:
			field = common(field, at.field)
		}
	}
	if unknown != nil { // the message has its name
		field = strings.TrimSuffix(strings.TrimSuffix(field, unknown[1]), ".")
	}
	return field
}

// common is the field that has both fields.
func common(a, b string) string {
	end := 0
	for i := 0; ; i++ {
		aEnds := i == len(a) || a[i] == '.' || a[i] == '['
		bEnds := i == len(b) || b[i] == '.' || b[i] == '['
		if aEnds && bEnds {
			end = i
		}
		if i == len(a) || i == len(b) || a[i] != b[i] {
			return a[:end]
		}
	}
}
