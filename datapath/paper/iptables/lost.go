package iptables

import (
	"fmt"
	"strconv"
	"strings"
)

// lostList collects the rules whose options a print lost.
type lostList struct {
	texts []string // in the order of the file
	lines map[string][]int
}

func (l *lostList) add(line int, text string) {
	if l.lines == nil {
		l.lines = make(map[string][]int)
	}
	if l.lines[text] == nil {
		l.texts = append(l.texts, text)
	}
	l.lines[text] = append(l.lines[text], line)
}

// notes are one of each kind, which has the first of the lines.
func (l *lostList) notes() []Note {
	const most = 5
	var notes []Note
	for _, text := range l.texts {
		lines := l.lines[text]
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
		notes = append(notes, Note{Line: lines[0], Text: text})
	}
	return notes
}
