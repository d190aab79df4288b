package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const pastedService = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: "10.96.0.20"
  ports:
  - port: 80
---
kind: Endpoints
apiVersion: v1
metadata: {name: web}
subsets:
- addresses: [{ip: 10.244.1.2}]
  ports: [{port: 8080}]
`

func loadText(t *testing.T, text string) (*Objects, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pasted.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load([]string{name})
}

// TestUncover reads the same objects out of a text that went through a mail, a chat, a terminal or an editor.
func TestUncover(t *testing.T) {
	want, err := loadText(t, pastedService)
	if err != nil {
		t.Fatal(err)
	}
	each := func(front string) string {
		return front + strings.ReplaceAll(strings.TrimSuffix(pastedService, "\n"), "\n", "\n"+front) + "\n"
	}
	numbered := ""
	for i, line := range strings.Split(pastedService, "\n") {
		numbered += fmt.Sprintf("%6d\t%s\n", i+1, line)
	}
	for name, text := range map[string]string{
		"indented":   each("    "),
		"in a mail":  "They wrote:\n\n" + each("> ") + "\nAny ideas?\n",
		"in a fence": "```yaml\n" + pastedService + "```\n",
		"numbered":   numbered,
		"with times": each("12:00:01 "),
		"prompts":    "$ kubectl get svc,ep web -o yaml\nWarning: v1 Endpoints is deprecated in v1.33+\n" + pastedService + "$ ",
		"colours":    strings.ReplaceAll(pastedService, ":", "\x1b[36m:\x1b[0m"),
		"no-break":   strings.ReplaceAll(pastedService, " ", "\u00a0"),
		"curly":      strings.ReplaceAll(pastedService, `"10.96.0.20"`, "“10.96.0.20”"),
	} {
		got, err := loadText(t, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got.Services, want.Services) || !reflect.DeepEqual(got.Endpoints, want.Endpoints) {
			t.Errorf("%s: %+v, %+v", name, got.Services, got.Endpoints)
		}
		if len(got.Notes) != len(want.Notes)+1 {
			t.Errorf("%s: notes %q", name, got.Notes)
		}
	}
	// What is missing is not passed over.
	for _, text := range []string{pastedService[strings.Index(pastedService, "  name"):], pastedService + "```\nspec:\n"} {
		if _, err := loadText(t, text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
