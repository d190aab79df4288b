package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// vague are words that a reader has to decode, where the field has a noun or a plain verb.
var vague = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|whoever|whomever|tells?|told|telling|asks|asked|asking|asker|says|said|by lot|no room|becomes? of|became of|of its own accord|leftovers?|usher|wants? to know)\b`)

// fine are texts with such a word that stay as they are, each with the reason.
var fine = []struct{ text, why string }{
	{"nobody-home", "the name of a Service without endpoints, in labs and in recorded output"},
	{"ASKED-", "columns of nfqproxy flows -o wide: headers stay as they are"},
}

// visibleTexts calls each for every text that users see: string literals of Go code that is no
// test, the page, the flow API's description, documents.
func visibleTexts(t *testing.T, each func(file string, line int, text string)) {
	t.Helper()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || name == "bin" || name == "peers" || strings.HasSuffix(name, "test") || len(name) > 2 && name[0] == '.'):
			return filepath.SkipDir
		case d.IsDir(), strings.HasSuffix(name, "_test.go"), strings.HasSuffix(name, ".pb.go"): // generated from the texts of others
			return nil
		}
		switch filepath.Ext(name) {
		case ".go":
			textsIn(t, path, each)
		case ".md", ".js", ".html", ".yaml":
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i, line := range strings.Split(string(content), "\n") {
				if code, _, comment := strings.Cut(line, "//"); comment && filepath.Ext(name) == ".js" {
					line = code
				}
				each(path, i+1, line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// textsIn gives the string literals of a Go file, and the comments of what it exports.
func textsIn(t *testing.T, path string, each func(file string, line int, text string)) {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				each(path, files.Position(l.Pos()).Line, text)
			}
		}
		return true
	})
}

// TestPlainWords: no text that users see has a vague word.
func TestPlainWords(t *testing.T) {
	used := make([]bool, len(fine))
	found := make(map[string][]string) // by directory
	visibleTexts(t, func(file string, line int, text string) {
		if i := slices.IndexFunc(fine, func(f struct{ text, why string }) bool { return strings.Contains(text, f.text) }); i >= 0 {
			used[i] = true
			return
		}
		if word := vague.FindString(text); word != "" {
			dir := filepath.Dir(file)
			found[dir] = append(found[dir], fmt.Sprintf("%s:%d: %q in %q", file, line, word, text))
		}
	})
	for _, list := range found {
		for _, f := range list {
			t.Error(f)
		}
	}
	for i, f := range fine {
		if !used[i] {
			t.Errorf("no text has %q any more", f.text)
		}
	}
}
