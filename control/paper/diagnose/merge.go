package diagnose

import (
	"regexp"
	"slices"
	"strings"
)

// OfOneNode are the findings about one of several nodes.
type OfOneNode struct {
	Node     string
	Findings []Finding
}

// place is what differs between the same findings of two nodes: the file, and the lines in it.
var place = regexp.MustCompile(`(?:[^\s:]+\.rules: )|\blines? \d+(?:(?:, | and )\d+)*|, and \d+ more`)

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
			if nodes := strings.Split(merged[i].Nodes, ","); merged[i].Nodes == "" {
				merged[i].Nodes = of.Node
			} else if !slices.Contains(nodes, of.Node) {
				merged[i].Nodes += "," + of.Node
			}
		}
	}
	Sort(merged)
	return merged
}
