package licenses

import (
	"fmt"
	"strings"
)

const (
	heading = `The program nfqproxy is under the Apache License 2.0: see the file LICENSE. It contains Go's standard library, and the modules
and npm packages of this list, under the licences below. Each text follows the modules and files that have it.
`
	line = "================================================================================"
)

// Text is the file of all licences and notices. A text that several modules have occurs once.
func Text(modules []Module) string {
	var texts []string // in the order of the modules
	owners := make(map[string][]string)
	var all strings.Builder
	all.WriteString(heading + "\n")
	for _, m := range modules {
		fmt.Fprintf(&all, "    %s\n", m)
		for _, f := range m.Files {
			text := plain(f.Text)
			if owners[text] == nil {
				texts = append(texts, text)
			}
			owners[text] = append(owners[text], m.String()+": "+f.Name)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&all, "\n%s\n%s\n%s\n\n%s\n", line, strings.Join(owners[text], "\n"), line, text)
	}
	return all.String()
}

// plain is a text without a byte order mark, and without the space and carriage returns at the ends of lines: copies of one
// licence differ in them.
func plain(text string) string {
	var lines []string
	for l := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		lines = append(lines, strings.TrimRight(l, " \t\r\n"))
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}
