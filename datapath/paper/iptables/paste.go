package iptables

import (
	"cmp"
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"unicode/utf8"
)

// pasted is a line of a text that went through a terminal, a mail or a page.
type pasted struct {
	number int    // counts from 1
	text   string // without what others put around it
	before string // what was in front, without spaces
	// shell: the line begins with a command, whose words are split as a shell does.
	shell bool
	// elided: the line stands for others.
	elided bool
	// title: the line names the host or the file of those below it.
	title bool
	// damaged: text around the rule, or the line below it, is not understood and may be part of it.
	damaged bool
	// body: the line may be a rule whose beginning is damaged.
	body bool
}

// restoreCharacters undoes what editors, mails, browsers and terminals do to characters. It keeps the text of
// comments, as far as it can be told.
func restoreCharacters(line string) string {
	line = strings.TrimRight(line, "\r\n")
	ascii := true
	for i := range len(line) {
		if line[i] >= utf8.RuneSelf || line[i] < ' ' && line[i] != '\t' || strings.IndexByte(`&^[\`, line[i]) >= 0 {
			ascii = false
			break
		}
	}
	if ascii {
		return line
	}
	line = control.ReplaceAllString(escapeSequence.ReplaceAllString(line, ""), "")
	if !utf8.ValidString(line) {
		line = fromWindows1252(line)
	}
	if escaped := strings.Count(line, `\"`); escaped > 0 && escaped == strings.Count(line, `"`) { // half of a string of JSON
		line = strings.ReplaceAll(line, `\"`, `"`)
	}
	if entity.MatchString(line) {
		line = html.UnescapeString(line)
	}
	return restoreDashes(typographic.Replace(line))
}

// escape begins the sequences of a terminal.
const escape = 0x1b

var (
	// escapeSequence is also what programs leave of it that print ^[ for the escape, or nothing.
	escapeSequence = regexp.MustCompile(`(` + string(rune(escape)) + `|\^\[)(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])|` + colour.String())
	colour         = regexp.MustCompile(`\[\d{1,2}(;\d{1,2}){0,3}m(\[K)?|\[m\[K`)
	// control is what else moves the cursor: bold letters are written twice, with a step back between.
	control = regexp.MustCompile(`.\x08|[\x00-\x08\x0b-\x1f\x7f]`)
	entity  = regexp.MustCompile(`&(quot|gt|lt|amp|nbsp|#34|#39|#x27|#x22);`)
)

// typographic are spaces, quotes and dashes of word processors. Dashes become U+2013, for restoreDashes.
var typographic = strings.NewReplacer(
	"\u00a0", " ", "\u2007", " ", "\u202f", " ", "\u2009", " ", "\u200a", " ", "\u3000", " ", "\u2002", " ", "\u2003", " ",
	"\u200b", "", "\u200c", "", "\u200d", "", "\u200e", "", "\u200f", "", "\ufeff", "", "\u00ad", "", "\u2060", "",
	"\u202a", "", "\u202b", "", "\u202c", "", "\u202d", "", "\u202e", "", "\u2066", "", "\u2067", "", "\u2068", "", "\u2069", "", "\uff0d", "-", "\uff1a", ":",
	"“", `"`, "”", `"`, "„", `"`, "‟", `"`, "«", `"`, "»", `"`, "″", `"`, "＂", `"`,
	"‘", "'", "’", "'", "‚", "'", "‛", "'", "′", "'",
	"\u2010", "-", "\u2011", "-", "\u2012", "\u2013", "\u2014", "\u2013", "\u2015", "\u2013", "\u2212", "\u2013", "…", "...",
)

// restoreDashes turns dashes into hyphens: at the beginning of a word one dash is what an editor made of two, but
// in front of a single letter.
func restoreDashes(line string) string {
	const dash = '\u2013'
	if !strings.ContainsRune(line, dash) {
		return line
	}
	runes := []rune(line)
	var b strings.Builder
	for i := 0; i < len(runes); i++ {
		if runes[i] != dash {
			b.WriteRune(runes[i])
			continue
		}
		end := i
		for end < len(runes) && (runes[end] == dash || runes[end] == '-') {
			end++
		}
		letters := end
		for letters < len(runes) && runes[letters] != ' ' && runes[letters] != '\t' {
			letters++
		}
		first := i == 0 || strings.ContainsRune(" \t>\"'`", runes[i-1])
		if first && letters-end > 1 {
			b.WriteString("--")
		} else {
			b.WriteString("-")
		}
		i = end - 1
	}
	return b.String()
}

// decorations are what stands in front of a rule in mails, pages and logs, each once. They are tried in their order.
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

// commentMark is the prompt of root in front of a command. In front of a rule it makes a comment of it, as iptables-restore reads it.
var commentMark = regexp.MustCompile(`^#+\s*`)

// maxDecorations bounds how many decorations a line can have.
const maxDecorations = 8

// undecorate takes off what is in front of and behind the content of a line, if that is one of iptables. Else the line
// is nothing that iptables prints or takes.
func undecorate(line string) (text, before string, ok bool) {
	trimmed := strings.TrimSpace(line)
	rest, comment := trimmed, false
	for range maxDecorations {
		rest = unquoteLine(rest)
		if content := withoutTail(rest); isContent(content) && (!comment || isCommandContent(content)) {
			before = strings.TrimSpace(trimmed[:max(0, len(trimmed)-len(rest))])
			if strings.ContainsAny(before, "`*_") {
				content = strings.TrimRight(content, "`*_ ")
			}
			if strings.HasSuffix(before, ">") {
				content = closingTag.ReplaceAllString(content, "")
			}
			return strings.TrimRight(content, " \t"), before, true
		}
		cut := false
		for _, d := range decorations {
			if found := d.FindString(rest); found != "" {
				rest, cut = strings.TrimLeft(rest[len(found):], " \t"), true
				comment = comment || d == commentMark
				break
			}
		}
		if !cut {
			break
		}
	}
	return "", "", false
}

// tail is what people write behind a line, the end of a row of a table, that of an element of HTML, and of cat -A.
var tail = regexp.MustCompile(`(\s*[|;│]+|\s+(<[-=]+|←|#|//|<<)(\s.*)?|(</[A-Za-z][^<>]*>|<br ?/?>)+|(\^M)?\$)$`)

// withoutTail takes off what iptables would not read at the end of a line.
func withoutTail(line string) string {
	if len(line) == 0 || line[0] == '#' || !strings.ContainsAny(line, "|;│<←#/$") || isCommandContent(line) {
		return line
	}
	if at := tail.FindStringIndex(line); at != nil && strings.Count(line[:at[0]], `"`)%2 == 0 {
		return line[:at[0]]
	}
	return line
}

var closingTag = regexp.MustCompile(`(</[A-Za-z][^>]*>)+$`)

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
	saveContent    = regexp.MustCompile(`^(\*(raw|mangle|nat|filter|security)|:[^\s:]+ +(ACCEPT|DROP|-)( +\[\d+:\d+\])?|COMMIT)\s*["'` + "`" + `]*$`)
	ruleContent    = regexp.MustCompile(`^(\[\d+:\d+\]\s+)?(-t\s*\w+\s+)?(-[AINPDRE]\s|-[XFZ](\s|$)|--(append|insert|new-chain|new|policy|delete|replace|rename-chain)\s|--(delete-chain|flush|zero)(\s|$))`)
	remarkContent  = regexp.MustCompile("^# ?(Generated by|Completed on|Warning: ip6?tables-legacy tables present|Table [`'\"]?\\w+['\"]? is incompatible)")
	commandContent = regexp.MustCompile(`^(sudo\s+(-\S+\s+)*)?\S*?\b(ip6?tables|xtables)(-legacy|-nft)?(-save|-restore)?(\s|$)`)
	// promptContent are commands that run another one, in a container or on another host.
	promptContent = regexp.MustCompile(`^(\S+\s+){1,14}?(sudo\s+|--\s+|\S*/)?(ip6?tables)(-legacy|-nft)?(-save\b|\s+(-\S+\s+)*(-t\s*\w+\s+)?(-[AINPDRESXF]\b|--list-rules|--append|--insert))`)
)

// isContent reports whether a line is one of iptables-save or iptables -S, or a command.
func isContent(line string) bool {
	if line == "" {
		return false
	}
	switch c := line[0]; {
	case c == '-' || c == '[':
		return ruleContent.MatchString(line)
	case c == '*' || c == ':' || c == 'C':
		return saveContent.MatchString(line)
	case c == '#':
		return remarkContent.MatchString(line)
	}
	return isCommandContent(line)
}

func isCommandContent(line string) bool {
	return strings.Contains(line, "tables") && (commandContent.MatchString(line) || promptedBy.MatchString(line) && promptContent.MatchString(line))
}

// promptedBy are the beginnings of a line that runs iptables elsewhere.
var promptedBy = regexp.MustCompile(`^(kubectl|docker|podman|nerdctl|crictl|nsenter|ssh|sudo|oc|minikube|ip netns|for|if|then|do|exec|su|time|watch|timeout|while|/)\S*\s`)

// undecorateAll finds the lines of iptables in a text. others are the numbers of those that are none, and not empty
// or a comment.
func undecorateAll(all []string) (lines []pasted, others []int) {
	last, open, inTable := 0, false, false // last is the line that may be continued
	width, margin := screenWidth(all)
	full := false
	for i := 0; i < len(all); i++ {
		line, number := all[i], i+1
		if n := len(lines); full && last == number-1 && continuesWord(&lines[n-1], line) {
			lines[n-1].text += strings.TrimRight(line[min(margin, indentOf(line)):], " \t")
			last, full = number, utf8.RuneCountInString(line) == width
			continue
		}
		full = width > 0 && utf8.RuneCountInString(line) == width
		if content, before, ok := undecorate(line); ok {
			if !strings.Contains(content, `"`) {
				content = singleQuoted.ReplaceAllString(content, ` "$1"$2`)
			}
			if full && strings.HasSuffix(line, " ") {
				content += " "
			}
			p := pasted{number: number, text: content, before: before, shell: isCommandContent(content)}
			if width == 0 {
				i += joinIndented(&p, all[i:])
			}
			lines = append(lines, p)
			last, open = i+1, strings.HasSuffix(p.text, `\`)
			inTable = content[0] == '*' || inTable && !strings.HasPrefix(content, "COMMIT")
			continue
		}
		rest := strings.TrimSpace(strings.TrimLeft(line, "> \t|"))
		if n := len(lines); n > 0 && last == number-1 && continues(&lines[n-1], rest, open) {
			lines[n-1].text = joinedTo(lines[n-1].text, rest)
			i += joinIndented(&lines[n-1], all[i:])
			last = i + 1
			open = strings.HasSuffix(lines[n-1].text, `\`)
			continue
		}
		open = false
		if elision.MatchString(rest) {
			lines = append(lines, pasted{number: number, text: rest, elided: true})
			continue
		}
		if title := titleOf(rest); title != "" {
			lines = append(lines, pasted{number: number, text: title, title: true})
		}
		if rest == "" || rest[0] == '#' || fence.MatchString(rest) {
			continue
		}
		if at := hiddenRule.FindStringIndex(rest); at != nil && inTable {
			lines = append(lines, pasted{number: number, text: rest[at[1]-len("-A "):], before: rest, damaged: true})
			continue
		}
		if n := len(lines); n > 0 && last == number-1 && inTable && misses(&lines[n-1]) {
			lines[n-1].damaged = true
		} else if inTable && ruleBody.MatchString(rest) {
			lines = append(lines, pasted{number: number, text: rest, before: rest, damaged: true, body: true})
			continue
		}
		others = append(others, number)
	}
	return lines, others
}

// hiddenRule finds a rule in a line of a table that is otherwise not understood, and no comment.
var hiddenRule = regexp.MustCompile(`^([^#]*[^#\w])?-A `)

// fence is a line around a block of Markdown.
var fence = regexp.MustCompile("^(```|~~~)[^ ]*( \\S*)?$")

// ruleBody finds the options of a rule in such a line.
var ruleBody = regexp.MustCompile(`^-A\b|^([^#]*\s)?-[jgmsdpio] \S`)

// misses reports whether a rule has no target, or the value of an option is missing: the line below may be its rest.
func misses(p *pasted) bool {
	if !ruleContent.MatchString(p.text) {
		return false
	}
	words := fields(p.text)
	return jumpIndex(words) < 0 || endsOpen(words)
}

// singleQuoted is a word in single quotes, as scripts have them. iptables-restore takes double quotes only.
var singleQuoted = regexp.MustCompile(`\s'([^']*)'(\s|$)`)

// screenWidth is the number of characters after which the lines of a terminal were cut, also within words, and the spaces
// in front of each rest; 0: they were not. Where lines were wrapped between words, most rests of rules follow a line that
// is shorter.
func screenWidth(all []string) (width, margin int) {
	const least = 40
	for _, line := range all {
		width = max(width, utf8.RuneCountInString(line))
	}
	if width < least {
		return 0, 0
	}
	full, other := 0, 0 // lines above a rest
	above := 0
	margin = width
	for _, line := range all {
		if trimmed := strings.TrimSpace(line); trimmed != "" && above > 0 && !isContent(trimmed) {
			if above == width {
				full++
				margin = min(margin, indentOf(line))
			} else {
				other++
			}
		}
		above = utf8.RuneCountInString(line)
	}
	if full < 2 || full < 4*other {
		return 0, 0
	}
	return width, margin
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }

// maxRests is how many lines below a rule may be its rest.
const maxRests = 40

var quoteMarks = regexp.MustCompile(`^[>|│ ]*[>|│] ?`)

// joinIndented adds the lines below a rule that are indented, or the text of an open quote, as a mail or an editor wraps long
// lines: as many as make a rule that iptables reads. It returns how many they are. lines[0] is that of the rule.
func joinIndented(p *pasted, lines []string) int {
	if !p.shell && !ruleContent.MatchString(p.text) || strings.HasSuffix(p.text, `\`) {
		return 0
	}
	body := func(line string) string { return line[len(quoteMarks.FindString(line)):] }
	indent := indentOf(body(lines[0]))
	texts := []string{p.text}
	for _, line := range lines[1:min(len(lines), maxRests)] {
		line = body(line)
		rest := strings.TrimSpace(line)
		if rest == "" || indentOf(line) <= indent && !openQuote(texts[len(texts)-1]) || ruleContent.MatchString(rest) || len(texts[len(texts)-1])+len(rest) > maxWrapped {
			break
		}
		texts = append(texts, texts[len(texts)-1]+" "+rest)
	}
	for n := len(texts) - 1; n > 0; n-- {
		if (&pasted{text: texts[n], shell: p.shell}).isWhole() {
			p.text = texts[n]
			return n
		}
	}
	return 0
}

// joinedTo is a line with its rest.
func joinedTo(above, rest string) string {
	return strings.TrimRight(strings.TrimSuffix(above, `\`), " ") + " " + rest
}

// isWhole reports whether iptables reads the line as a rule.
func (p *pasted) isWhole() bool {
	s := parseStatement(*p)
	if s.rule == nil || s.fault != nil {
		return false
	}
	args := s.rule.Args()
	chains := make(map[string]bool)
	if jump := jumpIndex(args); jump >= 0 && jump+1 < len(args) && targets[args[jump+1].Text] == nil && chainNameFault(args[jump+1].Text) == "" {
		chains[args[jump+1].Text] = true
	}
	a := analysis{family: cmp.Or(familyOfRule(args), IPv4), declared: chains}
	return a.analyse(&Rule{}, args) == nil
}

// continuesWord reports whether a line is the rest of one that filled the screen.
func continuesWord(above *pasted, line string) bool {
	return (above.shell || ruleContent.MatchString(above.text)) && strings.TrimSpace(line) != "" && len(above.text) <= maxWrapped && !isContent(strings.TrimSpace(line))
}

// elision is what people write instead of lines that they leave out.
var elision = regexp.MustCompile(`(?i)^[#(\[<{*\s]*(\.{2,}|(\.{2,}\s*)?\b(snip(ped)?|cut|truncated|omitted|trimmed|output (omitted|truncated)|((\d+|many|several|some) )?(more|other|remaining) (lines|rules|chains))\b)[\w\s.,]{0,40}[)\]>}*\s]*$`)

var (
	optionBegins = regexp.MustCompile(`^(! )?(-[mjgpsdio]\s|--[a-z][a-z-]+(\s|$))`)
	optionLast   = regexp.MustCompile(`\s(-\w|--[a-z][a-z-]+|!)$`)
	valueWanted  = regexp.MustCompile(`(^|\s)(-[mjgpsdioA]|--(comment|[sd]ports?|to-destination|to-source|to-ports|ctstate|state|mark|set-xmark|[sd]st-type|probability|mode|match-set)|!)$`)
)

// continues reports whether a line is the rest of the rule above it, as mails and pages wrap long lines.
func continues(above *pasted, rest string, escaped bool) bool {
	if rest == "" || !above.shell && !ruleContent.MatchString(above.text) {
		return false
	}
	if escaped {
		return true
	}
	if joined := (&pasted{text: joinedTo(above.text, rest)}); !above.shell && above.isWhole() && !joined.isWhole() &&
		!openQuote(joined.text) && !optionLast.MatchString(joined.text) {
		return false // a rule whose beginning is damaged
	}
	if len(above.text) > maxWrapped {
		return false
	}
	// The words of a comment may begin like an option, and the text of a page like a value.
	return openQuote(above.text) && strings.Contains(rest, `"`) || optionBegins.MatchString(rest) ||
		(valueWanted.MatchString(above.text) || optionLast.MatchString(above.text) && !above.isWhole()) && !strings.Contains(rest, ". ")
}

// maxWrapped is the length of a rule that is not continued any more.
const maxWrapped = 4096

func openQuote(text string) bool {
	_, e := split(text, 1)
	return e != nil
}
