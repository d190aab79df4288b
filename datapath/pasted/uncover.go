// Package pasted reads text that went through a mail, a page, a log, a terminal or an editor: it restores encodings and
// characters, takes off what stands in front of lines, and finds texts in strings with escapes. It knows the contents of no text.
//
// It is a ground package.
package pasted

import "strings"

// Uncover returns the output of a program, of which content tells lines: without what stands in front of each line, and with the
// characters that programs print, from its first line to its last, and the lines between them that are none. Lines keep their
// numbers. Where there are none, the text stays.
func Uncover(text string, content func(line string) bool) string {
	if plain, ok := UncoverLines(text, content, func(line string) bool { return content(line) || IsElision(line) }, nil); ok {
		return plain
	}
	return decoded(text)
}

// UncoverLines is like Uncover for an output of which only the ends can be told: begins recognizes its first line, and ends those
// that may be its last. false: there is none, or none before a line that stops recognizes. stops may be nil.
func UncoverLines(text string, begins, ends, stops func(line string) bool) (string, bool) {
	lines := strings.Split(decoded(text), "\n")
	first, front := -1, Front(nil)
	for i, line := range lines {
		line = strings.TrimSpace(Restore(line))
		if _, found, ok := Undecorate(line, func(rest string, _ Front) bool { return begins(rest) }); ok {
			first, front = i, found
			break
		}
		if stops != nil && stops(line) {
			return "", false
		}
	}
	if first < 0 {
		return "", false
	}
	last := 0
	for i, line := range lines {
		if i < first {
			lines[i] = ""
			continue
		}
		line = Restore(line)
		if len(front) > 0 {
			line = front.TakeOff(line)
		}
		if trimmed := strings.TrimSpace(line); pagerLine(trimmed) || IsFence(trimmed) {
			line = ""
		} else if ends(trimmed) {
			last = i
		}
		lines[i] = line
	}
	return strings.Join(lines[:last+1], "\n") + "\n", true
}

// pagerLine reports whether a line is of more or less.
func pagerLine(line string) bool {
	return strings.HasPrefix(line, "--More--") || line == "(END)" || line == ":"
}
