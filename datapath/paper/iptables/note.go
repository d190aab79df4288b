package iptables

import (
	"fmt"
	"strconv"
	"strings"
)

// Note is one sentence.
type Note struct {
	Line int // where this occurs first, from 1; 0: it is about the whole file
	Text string
}

func (n Note) String() string {
	if n.Line == 0 {
		return n.Text
	}
	return fmt.Sprintf("line %d: %s", n.Line, n.Text)
}

// MergeNotes makes one note of those with the same text. It has the first of their lines, and names others.
func MergeNotes(notes []Note) []Note {
	const most = 5
	var texts []string // in their order
	lines := make(map[string][]int)
	for _, n := range notes {
		if lines[n.Text] == nil {
			texts = append(texts, n.Text)
		}
		lines[n.Text] = append(lines[n.Text], n.Line)
	}
	var merged []Note
	for _, text := range texts {
		lines := lines[text]
		var others []string
		for _, n := range lines[1:min(len(lines), most)] {
			others = append(others, strconv.Itoa(n))
		}
		if len(others) > 0 {
			text += "; also line " + strings.Join(others, ", ")
		}
		if more := len(lines) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		merged = append(merged, Note{Line: lines[0], Text: text})
	}
	return merged
}
