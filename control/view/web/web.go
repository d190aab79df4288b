// Package web is the web page of the flow API: live flows, the path of each flow through
// kube-proxy's chains, services, a map, explanations, and holds. It consists of plain files embedded
// in the program, and of the program's vocabulary. The page gets all its data from the API (see package observe) that serves it.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// files are the page's own below static, and those of npm packages below vendored.
//
//go:embed static vendored/*/*.mjs vendored/*/*.css
var files embed.FS

// policy is the page's Content-Security-Policy: nothing from elsewhere and nothing inline, so
// that a name from the cluster can do no harm even where the page would fail to quote it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// types are by extension, and do not depend on the machine's own list (package mime).
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// asset is a file as it is served.
type asset struct {
	name, contentType, etag string
	content                 []byte
}

// Handler serves the page at / and its files beside it. It has to be mounted at the root of
// the server whose /v1 is the API. All other paths are not found. It is safe for concurrent use.
func Handler() http.Handler {
	assets := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := assets[r.URL.Path]
		if !ok {
			http.Error(w, fmt.Sprintf("%s: not found; the page is at /", r.URL.Path), http.StatusNotFound)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, fmt.Sprintf("%s of %s: method not allowed, use GET", r.Method, r.URL.Path), http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Content-Type", a.contentType)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		// Revalidated each time, and sent only if another version of the program serves it.
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", a.etag)
		http.ServeContent(w, r, a.name, time.Time{}, bytes.NewReader(a.content))
	})
}

// load reads the files, by the paths they are served at. They are part of the program: a fault
// is one of the program, which the tests find.
func load() map[string]*asset {
	assets := make(map[string]*asset)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if types[path.Ext(name)] == "" {
			return fmt.Errorf("%s: no content type is known for %q", name, path.Ext(name))
		}
		assets["/"+strings.TrimPrefix(name, "static/")] = newAsset(name, content)
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("package web is built wrongly: %v", err))
	}
	assets["/"] = assets["/index.html"]
	assets["/js/vocabulary.js"] = newAsset("vocabulary.js", codesModule())
	return assets
}

func newAsset(name string, content []byte) *asset {
	return &asset{path.Base(name), types[path.Ext(name)], fmt.Sprintf(`"%x"`, sha256.Sum256(content)), content}
}

// codesModule is a module of JavaScript with the codes in records and their descriptions: the page
// has every state, verdict and reason of the program that serves it.
func codesModule() []byte {
	v := vocabulary.Words()
	var b bytes.Buffer
	object := func(name, about string) func() {
		fmt.Fprintf(&b, "/** %s %s */\nexport const %[1]s = {\n", name, about)
		return func() { b.WriteString("};\n\n") }
	}
	end := object("events", "are the states and the other events; ended marks final states.")
	for _, e := range v.Events {
		fmt.Fprintf(&b, "  %q: { tone: %q, ended: %t, text: %q },\n", e.Code, e.Tone, e.Ended, e.Text)
	}
	end()
	end = object("verdicts", "have the state of a flow right after the verdict; '' where it is not known.")
	for _, d := range v.Verdicts {
		fmt.Fprintf(&b, "  %q: { state: %q, text: %q },\n", d.Code, d.State, d.Text)
	}
	end()
	for _, list := range []struct {
		name, about string
		words       vocabulary.List
	}{
		{"reasons", "are the reasons of verdicts.", v.Reasons},
		{"exclusions", "are why endpoints are excluded.", v.Exclusions},
		{"masquerades", "are why sources are masqueraded.", v.Masquerades},
		{"entries", "are the address types of a service.", v.Entries},
		{"branches", "are why a set of endpoints was considered.", v.Branches},
		{"outcomes", "are the outcomes for conntrack entries.", v.Outcomes},
		{"holds", "are how holds ended.", v.Holds},
		{"gaps", "are why a node on a path has no record.", v.Gaps},
	} {
		end := object(list.name, list.about)
		for _, w := range list.words {
			fmt.Fprintf(&b, "  %q: %q,\n", w.Code, w.Text)
		}
		end()
	}
	return b.Bytes()
}
