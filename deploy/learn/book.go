package learn

import (
	"fmt"
	"io"
	"strings"
)

// BookOptions are what of a course is printed.
type BookOptions struct {
	HTML bool // one file of HTML; otherwise Markdown
	// Solutions: also hints, solutions and wrong answers, for teachers.
	Solutions bool
}

// WriteBook writes a course as one document.
func WriteBook(w io.Writer, c *Course, o BookOptions) error {
	var book, b strings.Builder
	// add adds a part in Markdown. anchor is the target of links to it; empty: none. In Markdown that is left to the reader's program.
	add := func(anchor, text string) {
		switch {
		case !o.HTML:
			book.WriteString(text)
		case anchor != "":
			fmt.Fprintf(&book, "<a id=%q></a>\n%s", anchor, HTML(text))
		default:
			book.WriteString(HTML(text))
		}
	}
	b.WriteString("# From a Service to a connection\n\nA course in labs of `nfqproxy learn`.\n\n")
	for _, chapter := range c.Chapters {
		fmt.Fprintf(&b, "%d. [%s](#chapter-%[1]d)\n", chapter.Number, escaped(chapter.Title))
	}
	add("", b.String())
	for _, chapter := range c.Chapters {
		b.Reset()
		fmt.Fprintf(&b, "\n## %d. %s\n", chapter.Number, escaped(chapter.Title))
		for _, u := range chapter.Units {
			fmt.Fprintf(&b, "\n### %s %s\n\n%d minutes, in the shell of %s: `nfqproxy learn %[1]s`\n", u.ID, escaped(u.Title), u.Minutes, escaped(u.Shell))
			for i, s := range u.Steps {
				writeStep(&b, i+1, s, o)
			}
			if text := u.Reference(); text != "" {
				b.WriteString("\n#### Reference\n\n" + text)
			}
		}
		add(fmt.Sprintf("chapter-%d", chapter.Number), b.String())
	}
	text := book.String()
	if o.HTML {
		text = page(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

func writeStep(b *strings.Builder, number int, s *Step, o BookOptions) {
	fmt.Fprintf(b, "\n#### %d. %s\n\n%s", number, escaped(s.Title), s.Text)
	if s.Question != nil {
		fmt.Fprintf(b, "\n**Question:** %s\n", strings.TrimSpace(s.Question.Text))
	}
	if len(s.Checks) > 0 {
		b.WriteString("\n**Done when:**\n\n")
		for _, c := range s.Checks {
			fmt.Fprintf(b, "- %s\n", item(escaped(c.String())))
		}
	}
	if !o.Solutions || s.Read() {
		return
	}
	b.WriteString("\n**Hints:**\n\n")
	for i, h := range s.Hints {
		fmt.Fprintf(b, "%d. %s\n", i+1, item(h))
	}
	if s.Question != nil {
		b.WriteString("\n**Wrong answers:**\n\n")
		for _, w := range s.Question.Wrong {
			fmt.Fprintf(b, "- %s: %s\n", item(escaped(w.Answer)), item(w.Because))
		}
	}
	fmt.Fprintf(b, "\n**Solution:**\n\n%s", Indented(s.Solution))
}

// markdown escapes what means something within a line of Markdown.
var markdown = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "[", `\[`, "`", "\\`", "<", `\<`, "&", `\&`, "#", `\#`, "!", `\!`)

// escaped is a text as Markdown.
func escaped(s string) string { return markdown.Replace(s) }

// item is the text of an item of a list: lines after the first one are indented, so that they belong to it.
func item(s string) string {
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n   ")
}

// Indented is a text as a block of code.
func Indented(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(s, "\n") + "\n") {
		b.WriteString("    " + line)
	}
	return b.String()
}

const bookStyle = `body{font:1rem/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
pre{background:#f3f3f3;padding:.7rem;overflow-x:auto}code{font:.9em/1.4 ui-monospace,monospace}
h2{margin-top:4rem;border-bottom:2px solid}h3{margin-top:3rem}h4{margin-bottom:.3rem}
@media print{h2,h3{break-before:page}h4,pre{break-inside:avoid;break-after:avoid}body{margin:0}}`

// page is the body of a book as a file of HTML.
func page(body string) string {
	return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">" +
		"<title>From a Service to a connection</title>\n<style>" + bookStyle + "</style></head>\n<body>\n" + body + "</body></html>\n"
}
