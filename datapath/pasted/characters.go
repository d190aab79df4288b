package pasted

import (
	"html"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Restore undoes what editors, mails, browsers and terminals do to the characters of a line. It keeps the text of
// comments, as far as it can be told.
func Restore(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if !mayBeChanged(line) {
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

// mayBeChanged is a fast test for lines as programs print them.
func mayBeChanged(line string) bool {
	for i := range len(line) {
		switch c := line[i]; {
		case c >= utf8.RuneSelf, c < ' ' && c != '\t', c == '&', c == '^', c == '\\':
			return true
		case c == '[': // of a colour: "[1;32m"
			if rest := strings.TrimLeft(line[i+1:min(i+4, len(line))], "0123456789"); rest != "" && (rest[0] == ';' || rest[0] == 'm') {
				return true
			}
		}
	}
	return false
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

// windows1252 are the characters of the bytes 0x80 to 0x9f.
var windows1252 = []rune("€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ")

// fromWindows1252 returns a line with the bytes that are not UTF-8 read as Windows wrote them.
func fromWindows1252(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); {
		r, n := utf8.DecodeRuneInString(line[i:])
		if r == utf8.RuneError && n == 1 {
			if r = rune(line[i]); r < 0xa0 {
				r = windows1252[r-0x80]
			}
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}
