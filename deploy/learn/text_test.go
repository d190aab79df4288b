package learn

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

func TestHTML(t *testing.T) {
	for markdown, want := range map[string]string{
		"a `b` **c** *d*\n":           "<p>a <code>b</code> <strong>c</strong> <em>d</em></p>\n",
		"<b>x</b> & <address>\n":      "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;address&gt;</p>\n",
		"<script>\nx\n</script>\n":    "<p>&lt;script&gt;\nx\n&lt;/script&gt;</p>\n",
		"<!-- x -->\n":                "<p>&lt;!-- x --&gt;</p>\n",
		"[a](javascript:x)\n":         "<p><a href=\"\">a</a></p>\n",
		"```\n<b>\n```\n":             "<pre><code>&lt;b&gt;\n</code></pre>\n",
		"<http://10.0.0.1/>\n":        "<p><a href=\"http://10.0.0.1/\">http://10.0.0.1/</a></p>\n",
		"- a\n- b\n\n## c\n\n1. d\n":  "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n<h2>c</h2>\n<ol>\n<li>d</li>\n</ol>\n",
		"\x1b[31m \x00\n":             "<p>\x1b[31m \ufffd</p>\n",
		"&lt;b&gt; \\<b> \\& &amp;\n": "<p>&lt;b&gt; &lt;b&gt; &amp; &amp;</p>\n",
	} {
		if got := HTML(markdown); got != want {
			t.Errorf("%q is %q, want %q", markdown, got, want)
		}
	}
}

// lesson is the second of three steps.
func lesson() *labapi.Lesson {
	return &labapi.Lesson{
		Unit: "1.1", Title: "First", Step: 1, Text: "Type `ls *` and **look**.\n\n```\nls *\n```\n",
		Steps:    []labapi.LessonStep{{Title: "Read", Read: true}, {Title: "Ask"}, {Title: "Do"}},
		Question: "How many `pods`?\n", Checks: []labapi.LessonCheck{{Text: "a", Met: true, Detail: "x"}, {Text: "b", Detail: "one\ntwo"}},
		Held: []string{"held: TCP"}, Next: "1.2",
	}
}

func TestLessonText(t *testing.T) {
	l := lesson()
	want := `1.1 First (step 2 of 3)

Ask

Type ls * and look.

    ls *

  held: TCP
[to do] How many pods?  (answer ...)
[done] a
[to do] b
      one
      two
`
	if got := LessonText(l); got != want {
		t.Errorf("the text is\n%s\nwant\n%s", got, want)
	}
	l.Answered = true
	if got := TaskText(l); !strings.Contains(got, "[done] How many pods?") {
		t.Errorf("the question is answered:\n%s", got)
	}
	l.Step = 0
	if got := TaskText(l); got != "To continue: next\n" {
		t.Errorf("a text to read: %q", got)
	}
	l.Step = 3
	if got, task := LessonText(l), TaskText(l); got != "1.1 First\n\nThe unit is finished. \"next\" starts unit 1.2.\n" || task != "" {
		t.Errorf("after the unit: %q, %q", got, task)
	}
	l.Next = ""
	if got := LessonText(l); got != "1.1 First\n\nThe unit is finished. All units are finished.\n" {
		t.Errorf("after all units: %q", got)
	}
	none := new(labapi.Lesson)
	if got, task := LessonText(none), TaskText(none); got != "No unit is running.\n" || task != "" {
		t.Errorf("without a unit: %q, %q", got, task)
	}
}

// Of hints and of the reasons of wrong answers the marks are left out. What the student typed or a program printed has none.
func TestMarks(t *testing.T) {
	if got := HintText("Type `grep 'a.*'`, a *pattern*."); got != "Type grep 'a.*', a pattern." {
		t.Errorf("the hint is %q", got)
	}
	for notice, want := range map[string]string{
		"":                                  "",
		"wrong: `ip link` shows it.":        "wrong: ip link shows it.",
		"wrong: see `a`\n  * `b` is *c*\nd": "wrong: see a\n  * `b` is *c*\nd",
		"right: `a` *b*\ndone: c":           "right: `a` *b*\ndone: c",
		"done: a":                           "done: a",
	} {
		if got := NoticeText(notice); got != want {
			t.Errorf("%q is %q, want %q", notice, got, want)
		}
	}
}

// A check in words names what it wants.
func TestCheckText(t *testing.T) {
	yes, no := true, false
	for want, c := range map[string]*Check{
		"mine": {Text: "mine", Not: true, Flow: &FlowCheck{}},
		"a flow to default/web, to 10.0.0.1, from shell, endpoint e, on node n, protocol tcp, verdict dnat, reason r, entry new, masqueraded: yes, because of m, state s": {Flow: &FlowCheck{
			Service: "default/web", From: "shell", To: "10.0.0.1", Endpoint: "e", Node: "n", Protocol: "tcp", Verdict: "dnat", Reason: "r", State: "s", Entry: "new", Masquerade: &yes, MasqueradeReason: "m"}},
		"not: 3 flows masqueraded: no":         {Not: true, Flow: &FlowCheck{Count: 3, Masquerade: &no}},
		"a flow":                               {Flow: new(FlowCheck)},
		"a request from a to b is answered":    {Request: &RequestCheck{From: "a", To: "b"}},
		"2 requests from a to b fail: refused": {Request: &RequestCheck{From: "a", To: "b", Count: 2, Error: "refused"}},
		"a request from a to b is answered by c or d, and the server sees the client address e": {Request: &RequestCheck{From: "a", To: "b", By: Texts{"c", "d"}, Client: "e"}},
		"the connection table of n has an entry":                                                {Entry: &EntryCheck{On: "n"}},
		"the connection table of n has an entry: protocol tcp, from a, to b, replies from c, replies to d, state S, answered: yes": {Entry: &EntryCheck{
			On: "n", Protocol: "tcp", From: "a", To: "b", ReplyFrom: "c", ReplyTo: "d", State: "S", Answered: true}},
		"n has a rule with DROP":                            {Rule: &RuleCheck{On: "n", Matches: "DROP"}},
		"the route of n to a leads via b, through device c": {Route: &RouteCheck{On: "n", To: "a", Via: "b", Dev: "c"}},
		"the lab has the Service default/web, a.b 1, c d":   {Object: &ObjectCheck{Kind: "Service", Name: "web", Has: map[string]string{"c": "d", "a.b": "1"}}},
		"the lab has the Pod x/y":                           {Object: &ObjectCheck{Kind: "Pod", Namespace: "x", Name: "y"}},
		"this succeeds: true":                               {Run: &RunCheck{Script: Script{Text: "true\n"}}},
		"this succeeds on n: true":                          {Run: &RunCheck{Script: Script{On: "n", Text: "true"}}},
	} {
		if got := c.String(); got != want {
			t.Errorf("the check is %q, want %q", got, want)
		}
	}
}
