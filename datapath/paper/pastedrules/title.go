package pastedrules

import (
	"regexp"
	"strings"
)

var (
	fileTitle = regexp.MustCompile(`^=+> (\S.*) <=+$`) // head and tail print it above each file
	hostWord  = regexp.MustCompile(`(?i)\b(node|worker|master|control-?plane|host|server|machine|vm|instance|agent)(\b|[-_]?\d|[-_]\w)`)
	// titleForm is a short line that is a heading: it ends with a colon, or has marks of Markdown around it.
	titleForm = regexp.MustCompile(`^([#*=_-]{1,6} ?)?\W?(\S+ ){0,6}\S+$`)
	titleMark = regexp.MustCompile(`^([#*=_-]{1,6} ?[^\s#*=_-].*|.*:[*_]*)$`)
)

// titleOf is what a line above some rules calls their file or their host; empty: it names none.
func titleOf(line string) string {
	line = strings.TrimSpace(line)
	if found := fileTitle.FindStringSubmatch(line); found != nil {
		return found[1]
	}
	if len(line) > 80 || !titleForm.MatchString(line) || !titleMark.MatchString(line) || !hostWord.MatchString(line) {
		return ""
	}
	return strings.Trim(line, "#*=_-: ")
}

var (
	promptHost = regexp.MustCompile(`[\w.-]+@([\w.-]+)`)
	// remoteHost is the host, or the container of a node, where a command line runs iptables.
	remoteHost = regexp.MustCompile(`(?:^|\s)(?:ssh\s+(?:-\S+\s+)*(?:[\w.-]+@)?([\w.-]+)|(?:docker|podman|nerdctl)\s+exec\s+(?:-\S+\s+)*([\w.-]+)|kubectl\s+(?:-\S+\s+)*exec\s+(?:(?:-n|--namespace|-c|--container)\s+\S+\s+|-\S+\s+)*([\w./-]+))\s`)
)

// host is where the command of a line runs; empty: the line does not show it.
func (s *statement) host() string {
	for _, found := range remoteHost.FindAllStringSubmatch(s.text, 1) {
		return found[1] + found[2] + found[3]
	}
	if found := promptHost.FindStringSubmatch(s.before); found != nil {
		return found[1]
	}
	return ""
}
