package manifest

import (
	"regexp"
	"strings"
)

// This file finds objects in a text that went through a mail, a chat, a terminal or an editor.

var (
	// begins is the first line of objects, of the tables of kubectl get, or of kubectl describe.
	begins = regexp.MustCompile(`^((apiVersion|kind): |\{|NAME(SPACE)? |Name: )|` + bareRow.String())
	// marks are what stands in front of each line: times, signs of quotes, numbers.
	marks = []*regexp.Regexp{
		regexp.MustCompile(`^[ \t]*\d\d:\d\d:\d\d\S*`), regexp.MustCompile(`^[ \t]*[>|│]`), regexp.MustCompile(`^[ \t]*\d{1,6}[:.)|]?`),
	}
	// topLevel is a line that begins in the first column of objects in YAML; a prompt of a shell has its brackets.
	topLevel    = regexp.MustCompile(`^([a-z][\w.-]*:(\s|$)|["'#%\[\]{}-]|\.\.\.|\s|$)`)
	shellPrompt = regexp.MustCompile(`^\[[\w.-]+@[^\]]*\][#$]`)
	// ofObject is a field below kind, which may be of an object that a fence of Markdown cut.
	ofObject = regexp.MustCompile(`^(metadata|spec|status|subsets|endpoints|ports|addressType):`)
	// nested is a line of an object in YAML that is not its first.
	nested = regexp.MustCompile(`^[ \t]+(- )?[A-Za-z][\w./-]*:( |$)`)
	// colour is what sets the colours of a terminal.
	colour = regexp.MustCompile(`[\x0e-\x1f]\[[0-9;]*[A-Za-z]`)
	// curly are quotes of word processors around a whole value.
	curly = regexp.MustCompile(`(?m)(:\s+|-\s+)[“”]([^“”\n]*)[“”][ \t]*$`)
	// tabbed is a field of kubectl describe, before kubectl 1.6.
	tabbed = regexp.MustCompile(`(?m)^([A-Z][A-Za-z ()]*:)\t+`)
	// logs are those of a container in the output of kubectl cluster-info dump.
	logs       = regexp.MustCompile(`(?ms)^==== START logs .*?(^==== END logs [^\n]*|\z)`)
	characters = strings.NewReplacer("\u00a0", " ", "\u202f", " ", "\u200b", "", "\ufeff", "", "\r\n", "\n")
)

// mark is what stands in front of each line, with the spaces behind it.
type mark struct {
	sign   *regexp.Regexp // nil: only spaces
	spaces int
}

func inColumnOne(line string) bool {
	return topLevel.MatchString(line) && !shellPrompt.MatchString(line)
}

// uncover returns the objects of a text without what stands in front of each line and around them. Lines keep their numbers.
// false: there is nothing to take off, or no object.
func uncover(data []byte) ([]byte, bool) {
	text := curly.ReplaceAllString(colour.ReplaceAllString(characters.Replace(string(data)), ""), `$1"$2"`)
	text = tabbed.ReplaceAllString(text, "$1 ")
	text = logs.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		front, rest, ok := frontOf(line)
		if !ok && nested.MatchString(line) {
			return nil, false // the beginning of an object is missing
		}
		if !ok {
			continue
		}
		for j := range lines {
			if lines[j] = withoutFront(lines[j], front); j < i && !prompt.MatchString(lines[j]+"\n") {
				lines[j] = ""
			}
		}
		_, _, isMixed := apart([]byte(strings.Join(lines, "\n")))
		inYAML := !isMixed && (strings.HasPrefix(rest, "apiVersion") || strings.HasPrefix(rest, "kind"))
		between, fenced := -1, false // the last line that is none of the document; a fence ended it
		for j := range lines {
			switch {
			case j < i && (inYAML || rest[0] == '{') && !isMixed:
				lines[j] = ""
			case strings.HasPrefix(lines[j], "```"):
				lines[j], between, fenced = "", j, true
			case inYAML && between >= 0 && objectHead.MatchString(lines[j]):
				lines[between], between, fenced = "---", -1, false
			case inYAML && (fenced && !ofObject.MatchString(lines[j]) || !inColumnOne(lines[j])):
				lines[j], between = "", j
			}
		}
		text = strings.Join(lines, "\n")
		break
	}
	return []byte(text), text != string(data)
}

// frontOf finds what stands in front of the first line of objects. false: the line is not.
func frontOf(line string) (front []mark, rest string, ok bool) {
	const most = 4
	rest = line
	for range most {
		if begins.MatchString(rest) {
			return front, rest, true
		}
		m := mark{}
		for _, sign := range marks {
			if found := sign.FindString(rest); found != "" {
				m.sign, rest = sign, rest[len(found):]
				break
			}
		}
		trimmed := strings.TrimLeft(rest, " \t")
		if m.spaces = len(rest) - len(trimmed); m.sign == nil && m.spaces == 0 {
			break
		}
		front, rest = append(front, m), trimmed
	}
	return nil, "", false
}

// withoutFront takes off what stands in front of a line, as far as it does.
func withoutFront(line string, front []mark) string {
	for _, m := range front {
		if m.sign != nil {
			found := m.sign.FindString(line)
			if found == "" {
				return line
			}
			line = line[len(found):]
		}
		for n := m.spaces; n > 0 && line != "" && (line[0] == ' ' || line[0] == '\t'); n-- {
			line = line[1:]
		}
	}
	return line
}

// namespaceInCommands is the namespace that all commands of kubectl in a text name; empty: none, or they differ.
func namespaceInCommands(text string) (namespace string) {
	for line := range strings.Lines(text) {
		if !prompt.MatchString(line) {
			continue
		}
		m := namespaceFlag.FindStringSubmatch(line)
		if m == nil || namespace != "" && namespace != m[1] {
			return ""
		}
		namespace = m[1]
	}
	return namespace
}
