package learn

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/yuin/goldmark"
	markdownparser "github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/util"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// renderer renders no raw HTML: what looks like a tag stays text, as on a terminal.
var renderer = goldmark.New(goldmark.WithParser(markdownparser.NewParser(
	markdownparser.WithBlockParsers(without(markdownparser.DefaultBlockParsers(), 900)...),
	markdownparser.WithInlineParsers(without(markdownparser.DefaultInlineParsers(), 400)...),
	markdownparser.WithParagraphTransformers(markdownparser.DefaultParagraphTransformers()...))))

// without removes the parser with a priority; goldmark documents the priorities.
func without(all []util.PrioritizedValue, priority int) []util.PrioritizedValue {
	return slices.DeleteFunc(all, func(v util.PrioritizedValue) bool { return v.Priority == priority })
}

// HTML renders Markdown. What looks like raw HTML in it is text.
func HTML(markdown string) string {
	var b bytes.Buffer
	if err := renderer.Convert([]byte(markdown), &b); err != nil {
		return "" // a Buffer takes everything
	}
	return b.String()
}

// LessonText is the step under way as plain text: heading, text and task.
func LessonText(l *labapi.Lesson) string {
	var b strings.Builder
	if l.Unit == "" {
		return "No unit is running.\n"
	}
	fmt.Fprintf(&b, "%s %s", l.Unit, l.Title)
	if l.Finished() {
		b.WriteString("\n\nThe unit is finished.")
		if l.Next != "" {
			fmt.Fprintf(&b, " \"next\" starts unit %s.", l.Next)
		} else {
			b.WriteString(" All units are finished.")
		}
		return b.String() + "\n"
	}
	fmt.Fprintf(&b, " (step %d of %d)\n\n%s\n\n%s\n%s", l.Step+1, len(l.Steps), l.Steps[l.Step].Title, plain(l.Text), TaskText(l))
	return b.String()
}

// TaskText is the task of the step under way as plain text: what is done of it and what is not.
func TaskText(l *labapi.Lesson) string {
	if l.Unit == "" || l.Finished() {
		return ""
	}
	var b strings.Builder
	if l.Steps[l.Step].Read {
		return "To continue: next\n"
	}
	for _, fact := range l.Held {
		fmt.Fprintf(&b, "  %s\n", fact)
	}
	if l.Question != "" {
		fmt.Fprintf(&b, "[%s] %s  (answer ...)\n", box(l.Answered), inline(strings.TrimSpace(l.Question)))
	}
	for _, c := range l.Checks {
		fmt.Fprintf(&b, "[%s] %s\n", box(c.Met), c.Text)
		if c.Detail != "" && !c.Met {
			fmt.Fprintf(&b, "      %s\n", strings.ReplaceAll(c.Detail, "\n", "\n      "))
		}
	}
	return b.String()
}

func box(done bool) string {
	if done {
		return "done"
	}
	return "to do"
}

// plain is Markdown as plain text: without the marks of code and emphasis, and with code blocks indented.
func plain(markdown string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(markdown) {
		switch {
		case strings.HasPrefix(line, "```"):
			code = !code
			continue
		case code:
			b.WriteString("    " + line)
			continue
		case strings.HasPrefix(line, "    "):
			b.WriteString(line)
			continue
		}
		b.WriteString(inline(line))
	}
	return b.String()
}

// HintText is a hint as plain text.
func HintText(hint string) string { return inline(hint) }

// NoticeText is a notice of a lesson as plain text. Only the reason of a wrong answer is from the course; all else is what
// the student typed or what a program printed, in which marks mean themselves.
func NoticeText(notice string) string {
	first, rest, more := strings.Cut(notice, "\n")
	if reason, wrong := strings.CutPrefix(first, WrongNotice); wrong {
		first = WrongNotice + inline(reason)
	}
	if more {
		return first + "\n" + rest
	}
	return first
}

// WrongNotice is the beginning of a notice about a wrong answer.
const WrongNotice = "wrong: "

// inline is a line without the marks of code and emphasis.
func inline(line string) string {
	var b strings.Builder
	for i, part := range strings.Split(line, "`") {
		if i%2 == 0 {
			part = strings.NewReplacer("**", "", "*", "").Replace(part)
		}
		b.WriteString(part)
	}
	return b.String()
}

// ListText lists units with their states.
func ListText(units []labapi.LessonUnit) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	chapter := ""
	for _, u := range units {
		if u.Chapter != chapter {
			if chapter != "" {
				fmt.Fprintln(t)
			}
			chapter = u.Chapter
			number, _, _ := strings.Cut(u.ID, ".")
			fmt.Fprintf(t, "%s %s\n", number, chapter)
		}
		fmt.Fprintf(t, "  %s\t%s\t%d min\t%s\n", u.ID, u.Title, u.Minutes, strings.TrimPrefix(u.State, "new"))
	}
	_ = t.Flush() // a Builder takes everything
	return trailing.ReplaceAllString(b.String(), "")
}

// trailing are the spaces at the ends of lines: of empty cells.
var trailing = regexp.MustCompile(`(?m) +$`)
