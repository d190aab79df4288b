package web_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVendored: the files of npm packages are those that were looked at, each package has its licence, and the page serves
// what it loads.
func TestVendored(t *testing.T) {
	want := map[string]string{
		"addon-fit/LICENSE":       "e256f01188af527e4d06d21d06fbf785ae9c50d4b328bf03cbe0ba7f0aa4228f",
		"addon-fit/addon-fit.mjs": "2d87e1bddc73be9111de8beee5370c3bb7aac9c94e18e6f245f02ca741ef1769",
		"addon-fit/package.json":  "2f1016c5683f76ac1250c466afc29164bc82da7c2ef224c7d5ab83397edf1637",
		"xterm/LICENSE":           "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
		"xterm/package.json":      "f5a0dde40a146d6c7a86b22daf6e5740517e5d708ec1d162197e0445431d8f4f",
		"xterm/xterm.css":         "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
		"xterm/xterm.mjs":         "b336ec65a086c056d4804b3d4c2347da5663d3f23c3f25be866467bd8857ad59",
	}
	files, err := filepath.Glob("vendored/*/*")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("vendored/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), "vendored/")
		if sum := fmt.Sprintf("%x", sha256.Sum256(content)); want[name] != sum {
			t.Errorf("%s has the checksum %s, want %q", file, sum, want[name])
		}
		delete(want, name)
		if filepath.Base(name) == "package.json" {
			var p struct{ Name, Version string }
			if err := json.Unmarshal(content, &p); err != nil {
				t.Fatal(err)
			}
			if row := fmt.Sprintf("| `%s` | `%s` %s |", filepath.Dir(name), p.Name, p.Version); !strings.Contains(string(readme), row) {
				t.Errorf("vendored/README.md lacks %s", row)
			}
			continue
		}
		served := filepath.Ext(name) != ""
		if answer := request(t, "GET", "/vendored/"+name, nil); (answer.StatusCode == 200) != served {
			t.Errorf("/vendored/%s: %d", name, answer.StatusCode)
		}
	}
	for name := range want {
		t.Errorf("vendored/%s is missing", name)
	}
}
