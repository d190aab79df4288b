package pasted

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// decorations are what stands in front of a line in mails, pages and logs, each once. They are tried in their order.
var decorations = []*regexp.Regexp{
	regexp.MustCompile(`^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?(\s+(stdout|stderr) [FP])?(:\s)?[\s|]*`),
	regexp.MustCompile(`^([A-Z][a-z]{2},? )?[A-Z][a-z]{2} [ \d]?\d (\d{4} )?\d\d:\d\d:\d\d(\.\d+)?\s+(\S+\s+\S+?(\[\d+\])?:\s*)?`), // syslog, journald
	regexp.MustCompile(`^\d\d:\d\d:\d\d([.,]\d+)?\s*`),
	regexp.MustCompile(`^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ \S+:\d+\]\s*`), // klog
	regexp.MustCompile(`^\[[^\]]*\][#$%:]?\s*`),
	regexp.MustCompile(`^\([^)]*\)\s*`),
	regexp.MustCompile(`^[>|│┃»]+\s?`),
	regexp.MustCompile(`^\d*</?[A-Za-z][^>]*>`),
	regexp.MustCompile("^([`\"'\\\\]+|\\*\\*|__)"),
	regexp.MustCompile(`^\d+[:.)|\]]\s*`),
	regexp.MustCompile(`^\d+\s+`),
	regexp.MustCompile(`^\d+-`), // a line of context of grep -n
	regexp.MustCompile(`^[*+•·$%-]+\s+`),
	commentMark,
	regexp.MustCompile(`^\+`),
	regexp.MustCompile(`^(\S+ )?\S+\[\d+\]:\s*`),
	regexp.MustCompile(`^[\w.@/-]+\s+\|\s*`),                                   // docker-compose
	regexp.MustCompile(`^[a-z0-9.-]*-[a-z0-9]{4,10} [a-z][a-z0-9-]* ([│›] )?`), // stern: pod and container
	regexp.MustCompile(`^[\w.@~/-]+:\d+:`),                                     // grep -n
	regexp.MustCompile(`^[\w.@~/-]+:[~/]?[\w./~-]*[#$%]+\s*`),                  // a prompt
	regexp.MustCompile(`^[\w.@~/-]+[>:#$%]\s*`),
	regexp.MustCompile(`^[\w.-]+-\d+-`), // a line of context of grep -n, with the file
}

// commentMark is the prompt of root in front of a command. In front of anything else it makes a comment of it.
var commentMark = regexp.MustCompile(`^#+\s*`)

// maxDecorations bounds how many decorations a line can have.
const maxDecorations = 8

// Front is what stands in front of the lines of a text.
type Front []*regexp.Regexp

// Undecorate takes off what stands in front of a line, piece by piece, until content takes the rest. false: it takes none.
func Undecorate(line string, content func(rest string, front Front) bool) (rest string, front Front, ok bool) {
	rest = line
	for range maxDecorations {
		rest = unquoteLine(rest)
		if content(rest, front) {
			return rest, front, true
		}
		i := slices.IndexFunc(decorations, func(d *regexp.Regexp) bool { return d.FindString(rest) != "" })
		if i < 0 {
			break
		}
		front = append(front, decorations[i])
		rest = strings.TrimLeft(rest[len(decorations[i].FindString(rest)):], " \t")
	}
	return "", nil, false
}

// Comments reports whether a "#" is in front: the line is a comment, or a command behind the prompt of root.
func (f Front) Comments() bool { return slices.Contains(f, commentMark) }

// TakeOff takes the same off another line of the text, and no spaces behind it. A line without it stays.
func (f Front) TakeOff(line string) string {
	rest := strings.TrimSpace(line) + " " // an empty line has its number, too
	for _, d := range f {
		rest = strings.TrimLeft(rest, " \t")
		at := d.FindString(rest)
		if at == "" {
			return line
		}
		rest = rest[len(at):]
	}
	return rest
}

// unquoteLine reads a line in quotes: of a list of strings of JSON, as Ansible prints the lines of an output, or of CSV.
func unquoteLine(line string) string {
	quoted := strings.TrimSuffix(line, ",")
	if len(quoted) < 2 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return line
	}
	if inner := quoted[1 : len(quoted)-1]; strings.Contains(inner, `""`) {
		return strings.TrimSpace(strings.ReplaceAll(inner, `""`, `"`))
	}
	var text string
	if json.Unmarshal([]byte(quoted), &text) != nil || strings.Contains(text, "\n") {
		return line
	}
	return strings.TrimSpace(text)
}

var (
	fence   = regexp.MustCompile("^(```|~~~)[^ ]*( \\S*)?$")
	elision = regexp.MustCompile(`(?i)^[#(\[<{*\s]*(\.{2,}|(\.{2,}\s*)?\b(snip(ped)?|cut|truncated|omitted|trimmed|output (omitted|truncated)|((\d+|many|several|some) )?(more|other|remaining) (lines|rules|chains))\b)[\w\s.,]{0,40}[)\]>}*\s]*$`)
)

// IsFence reports whether a line stands around a block of Markdown.
func IsFence(line string) bool { return fence.MatchString(line) }

// IsElision reports whether a line is what people write in place of lines that they leave out.
func IsElision(line string) bool { return elision.MatchString(line) }
