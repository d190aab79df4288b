package pastedrules

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// undecorateListing takes off what is around the lines of a listing in mails, pages and logs: prose, fences, and the text
// in front of each line. The lines keep their numbers. The rules that stand below no chain are lost. false: there is no listing.
func undecorateListing(text string) (cleaned string, lost []iptables.Note, found bool) {
	if !strings.Contains(text, "Chain") { // reading a long text of something else takes time
		return "", nil, false
	}
	var b strings.Builder
	number := 0
	var front pasted.Front // of the lines of the chain
	inChain := false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(pasted.Restore(line))
		if chain, taken, ok := pasted.Undecorate(line, func(rest string, _ pasted.Front) bool { return iptables.IsChainLine(rest) }); ok {
			line, front, found, inChain = chain, taken, true, true
		} else if iptables.IsListCommand(line) {
			inChain = false
		} else if iptables.IsLegacyWarning(iptables.Fields(line)) {
			// it stays, also above the first chain
		} else {
			line = front.TakeOff(line)
			switch content := strings.TrimSpace(line); {
			case iptables.NamesColumns(line):
				inChain = true
			case content == "", strings.HasPrefix(content, "```"), strings.HasPrefix(content, "</"):
				inChain = false
			case found && listedRow.MatchString(line): // some pages have an empty line behind each
				inChain = true
			}
			if !inChain {
				if listedRow.MatchString(line) {
					lost = append(lost, iptables.Note{Line: number, Text: "a rule of iptables -L without the line of its chain is left out: list the chain without grep, or use iptables-save"})
				}
				line = ""
			}
		}
		b.WriteString(line + "\n")
	}
	return b.String(), lost, found
}

// rowBegins is the beginning of a rule in a listing.
var rowBegins = regexp.MustCompile(`^\s*(\d+[KMGTP]?\s+){0,3}(\S+\s+)?(all|tcp|udp|icmp|ipv6-icmp|icmpv6|sctp|\d+)\s+(--|-f|!f)(\s|$)`)

// joinRows puts the rows of a listing together that a terminal or a mail wrapped. The lines keep their numbers; rests are those that
// continue the line above. text is the listing as it was before it was cleaned: a terminal wraps within words, where a line is full.
func joinRows(cleaned, text string) (joined string, rests []int) {
	lines, raw := strings.Split(cleaned, "\n"), strings.Split(strings.ReplaceAll(text, "\r", ""), "\n")
	width := 0
	for _, line := range raw {
		width = max(width, utf8.RuneCountInString(line))
	}
	begin := make([]int, len(lines)) // of each rest: the line where its row begins; others: 0
	withinWords := true
	last := -1 // the line that may be continued
	for i, line := range lines {
		switch {
		case line == "" || line[0] == '#' || iptables.IsChainLine(line) || iptables.IsListCommand(line):
			if last = -1; iptables.IsChainLine(line) {
				continue
			}
		case last < 0, rowBegins.MatchString(line), iptables.NamesColumns(lines[last]), iptables.NamesColumns(line):
			last = i
		default:
			rests, begin[i] = append(rests, i+1), last
			withinWords = withinWords && utf8.RuneCountInString(raw[i-1]) == width
		}
	}
	for i := range lines {
		if begin[i] == 0 {
			continue
		}
		space := " "
		if withinWords && !strings.HasSuffix(raw[i-1], " ") && !strings.HasPrefix(raw[i], " ") {
			space = ""
		}
		row := &lines[begin[i]]
		*row, lines[i] = strings.TrimSpace(*row)+space+strings.TrimSpace(lines[i]), ""
	}
	return strings.Join(lines, "\n"), rests
}

// cutRows marks the rows of a listing that were cut off at a width, as by cut -c: they lose the last word, which may be a part of one,
// and get the beginning of a comment without an end, which iptables.Read takes for a line that is cut off. 0: none was.
func cutRows(text string) (marked string, width int) {
	lines := strings.Split(text, "\n")
	columns := 0
	for _, line := range lines {
		width = max(width, utf8.RuneCountInString(line))
		if iptables.NamesColumns(line) {
			columns = len(strings.Fields(line))
		}
	}
	full, sure := 0, false
	for i, line := range lines {
		if utf8.RuneCountInString(line) < width || !rowBegins.MatchString(line) {
			continue
		}
		if i+1 < len(lines) {
			if below := lines[i+1]; strings.TrimSpace(below) != "" && !rowBegins.MatchString(below) && !iptables.IsChainLine(below) {
				return text, 0 // its rest
			}
		}
		words := strings.Fields(line)
		whole := len(words) - 1
		switch comment, _, closed := strings.Cut(line, "*/"); {
		case closed: // what follows may be an option without its value
			whole = min(len(words), len(strings.Fields(comment))+1)
		case strings.Contains(line, " /*"):
			sure = true
		default:
			whole = min(whole, columns)
		}
		words = append(words[:whole], slices.Repeat([]string{"?"}, max(0, columns-whole))...)
		lines[i] = strings.Join(words, " ") + " /*"
		full++
	}
	if width < leastWidth || columns == 0 || full < 2 || !sure {
		return text, 0
	}
	return strings.Join(lines, "\n"), width
}
