package web_test

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

func request(t *testing.T, method, path string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	web.Handler().ServeHTTP(w, r)
	return w.Result()
}

func TestHandler(t *testing.T) {
	for _, c := range []struct {
		method, path, contentType string
		status                    int
	}{
		{"GET", "/", "text/html; charset=utf-8", 200},
		{"HEAD", "/", "text/html; charset=utf-8", 200},
		{"GET", "/index.html", "text/html; charset=utf-8", 200},
		{"GET", "/js/app.js", "text/javascript; charset=utf-8", 200},
		{"GET", "/js/vocabulary.js", "text/javascript; charset=utf-8", 200},
		{"GET", "/css/base.css", "text/css; charset=utf-8", 200},
		{"GET", "/icon.svg", "image/svg+xml", 200},
		{"GET", "/js/", "text/plain; charset=utf-8", 404},
		{"GET", "/nowhere", "text/plain; charset=utf-8", 404},
		{"GET", "/../web.go", "text/plain; charset=utf-8", 404},
		{"POST", "/", "text/plain; charset=utf-8", 405},
	} {
		answer := request(t, c.method, c.path, nil)
		if answer.StatusCode != c.status || answer.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, answer.StatusCode, answer.Header.Get("Content-Type"), c.status, c.contentType)
		}
		if c.status != 200 {
			continue
		}
		const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
		for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"} {
			if have := answer.Header.Get(name); !strings.Contains(have, want) {
				t.Errorf("%s %s: %s: %q, want %q in it", c.method, c.path, name, have, want)
			}
		}
	}
}

func TestUnchangedFilesAreNotSentAgain(t *testing.T) {
	first := request(t, "GET", "/js/app.js", nil)
	again := request(t, "GET", "/js/app.js", http.Header{"If-None-Match": {first.Header.Get("ETag")}})
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("second request with the ETag %s: %d, want 304", first.Header.Get("ETag"), again.StatusCode)
	}
	if other := request(t, "GET", "/js/dom.js", nil); other.Header.Get("ETag") == first.Header.Get("ETag") {
		t.Error("two files have the same ETag")
	}
}

// TestPageHasAllWords: the page's words are those of Go.
func TestPageHasAllWords(t *testing.T) {
	b, err := io.ReadAll(request(t, "GET", "/js/vocabulary.js", nil).Body)
	if err != nil {
		t.Fatal(err)
	}
	v := vocabulary.Words()
	all := slices.Concat(v.Reasons, v.Exclusions, v.Masquerades, v.Entries, v.Branches, v.Outcomes, v.Holds)
	for _, e := range v.Events {
		all = append(all, e.Word)
	}
	for _, d := range v.Verdicts {
		all = append(all, d.Word)
	}
	for _, w := range all {
		if line := regexp.MustCompile(`(?m)^  "` + w.Code + `": .*` + regexp.QuoteMeta(fmt.Sprintf("%q", w.Text))); !line.Match(b) {
			t.Errorf("the page has no words for %s (%s)", w.Code, w.Text)
		}
	}
}

// forbidden is what would make markup or code of texts, or make a request to another host.
var forbidden = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment|DOMParser|\bstyle=|<script>|https?://`)

func TestSources(t *testing.T) {
	err := filepath.WalkDir("static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := strings.Split(string(content), "\n")
		if filepath.Ext(path) == ".js" && len(lines) > 300 {
			t.Errorf("%s has %d lines", path, len(lines))
		}
		for i, line := range lines {
			found := forbidden.FindString(line)
			if found == "DOMParser" && filepath.Base(path) == "prose.js" { // which copies what is allowed
				continue
			}
			if found != "" && !strings.Contains(line, "http://www.w3.org/2000/svg") {
				t.Errorf("%s:%d: %s", path, i+1, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
