package learn

import (
	"strings"
	"testing"
	"testing/fstest"
)

func book(t testing.TB, c *Course, o BookOptions) string {
	t.Helper()
	var b strings.Builder
	if err := WriteBook(&b, c, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestMarkdownBook(t *testing.T) {
	c := loaded(t, edited(t, unitPath, "title: A first unit", "title: 'A *first* [unit] <b>'"), 0)
	want := `# From a Service to a connection

A course in labs of ` + "`nfqproxy learn`" + `.

1. [Services](#chapter-1)

## 1. Services

### 1.1 A \*first\* \[unit] \<b>

3 minutes, in the shell of shell: ` + "`nfqproxy learn 1.1`" + `

#### 1. Read

Read this.

#### 2. Ask

Count the pods.

**Question:** How many pods?

#### 3. Do

Send a request.

**Done when:**

- a flow to default/web, state answered
`
	if got := book(t, c, BookOptions{}); got != want {
		t.Errorf("the book is\n%s\nwant\n%s", got, want)
	}
	got := book(t, loaded(t, edited(t, "1-services/1-first/reference.md", "", "Recorded output.\n"), 0), BookOptions{})
	if !strings.Contains(got, "\n#### Reference\n\nRecorded output.\n") {
		t.Errorf("the book has no reference:\n%s", got)
	}
	got = book(t, c, BookOptions{Solutions: true})
	for _, text := range []string{
		"**Hints:**\n\n1. one\n2. two\n3. three\n\n**Wrong answers:**\n\n- 1: there are two\n\n**Solution:**\n\n    answer 2\n",
		"**Hints:**\n\n1. one\n2. two\n3. three\n\n**Solution:**\n\n    curl web\n",
	} {
		if !strings.Contains(got, text) {
			t.Errorf("the book of teachers lacks\n%s\n%s", text, got)
		}
	}
}

// No text of a course becomes a tag, an anchor or a heading of its own.
func TestBookIsHarmless(t *testing.T) {
	const bad = "<script>alert(1)</script>"
	files := edited(t, textPath, "Read this.", bad+"\n\ufffdx\ufffd \x00y\x00\n\n[link](javascript:alert(2)) ![i](javascript:alert(3))")
	files[unitPath] = &fstest.MapFile{Data: []byte(strings.NewReplacer(
		"A first unit", "'"+bad+" &lt; &amp;'",
		"How many pods?", "'"+bad+"'",
		`answer: "1"`, `answer: "<b>1"`,
		"there are two", "'"+bad+"'",
		"[one, two, three]\n  solution: answer", "['"+bad+"', two, three]\n  solution: answer",
		"  - flow: {service: default/web, state: answered}", "  - run: {script: \"true "+bad+"\\n# no heading\\n- no item\"}",
	).Replace(small[unitPath]))}
	files["1-services/chapter.yaml"].Data = []byte(strings.Replace(small["1-services/chapter.yaml"], "title: Services", "title: 'Services\" "+bad+"'", 1))
	got := book(t, loaded(t, files, 0), BookOptions{HTML: true, Solutions: true})
	for _, text := range []string{"<script", "javascript:", "<b>", "<h1>no heading", "x</a>", `id="x`} {
		if strings.Contains(got, text) {
			t.Errorf("the book has %q", text)
		}
	}
	for text, want := range map[string]int{
		`<a id="chapter-1"></a>`: 1, `<a href="#chapter-1">Services`: 1, "<a id=": 1, "<h1>": 1, "<h2>": 1, "<h3>": 1, "<h4>": 3, "<!doctype html>": 1, "</html>": 1,
		"# no heading": 1, "<li>no item</li>": 1, "&lt;script&gt;alert(1)&lt;/script&gt;": 8, "&amp;lt; &amp;amp;": 1, "&lt;b&gt;1": 1,
	} {
		if n := strings.Count(got, text); n != want {
			t.Errorf("the book has %q %d times, want %d", text, n, want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// Each chapter has the anchor that the table of contents links to.
func TestBookAnchors(t *testing.T) {
	got := book(t, three(t), BookOptions{HTML: true})
	for _, id := range []string{"chapter-1", "chapter-2"} {
		if strings.Count(got, `<a href="#`+id+`">`) != 1 || strings.Count(got, `<a id="`+id+`"></a>`) != 1 {
			t.Errorf("the book lacks a link or the anchor %s", id)
		}
	}
	if i, j := strings.Index(got, `<a id="chapter-2"></a>`), strings.Index(got, "<h2>2. Nodes"); i < 0 || j < i {
		t.Errorf("the anchor is not before its chapter")
	}
	if strings.Contains(got, "Solution:") || strings.Contains(got, "there are two") {
		t.Error("students read solutions")
	}
}
