package diagnose

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// NodeNames are the names of nodes, separated by commas: unlike a list, they can be compared. In JSON they are a list.
type NodeNames string

// List is the list of names.
func (n NodeNames) List() []string {
	if n == "" {
		return nil
	}
	return strings.Split(string(n), ",")
}

// With has one more name, unless it has it already.
func (n NodeNames) With(name string) NodeNames {
	names := n.List()
	if slices.Contains(names, name) {
		return n
	}
	return NodeNames(strings.Join(append(names, name), ","))
}

// MarshalJSON makes a list.
func (n NodeNames) MarshalJSON() ([]byte, error) { return json.Marshal(n.List()) }

// UnmarshalJSON reads a list.
func (n *NodeNames) UnmarshalJSON(data []byte) error {
	var names []string
	err := json.Unmarshal(data, &names)
	*n = NodeNames(strings.Join(names, ","))
	return err
}

// OfOneNode are the findings about one of several nodes.
type OfOneNode struct {
	Node     string
	Findings []Finding
}

// place is what differs between the same findings of two nodes: the file, the lines in it, and the bundle.
var place = regexp.MustCompile(`--node (?:'[^']*'|\S+)|(?:[^\s:]+\.rules: )|\blines? \d+(?:(?:, | and )\d+)*|, and \d+ more`)

// MergeNodes returns the findings of several nodes once per cause, the worst first, each with the nodes that have it. The
// text of each is that of the first node.
func MergeNodes(all []OfOneNode) []Finding {
	type cause struct{ code, text, do string }
	var merged []Finding
	at := make(map[cause]int)
	for _, of := range all {
		for _, f := range of.Findings {
			key := cause{string(f.Code), place.ReplaceAllString(f.Text, ""), place.ReplaceAllString(f.Do, "")}
			i, known := at[key]
			if !known {
				i = len(merged)
				at[key] = i
				merged = append(merged, f)
			}
			merged[i].Nodes = merged[i].Nodes.With(of.Node)
		}
	}
	Sort(merged)
	return merged
}
