package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
)

// plain is a page without roff's requests, fonts and escapes, and without white space.
func plain(page string) string {
	var text strings.Builder
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, ".SH"); ok || !strings.HasPrefix(line, ".") {
			text.WriteString(rest)
			if !ok {
				text.WriteString(line)
			}
		}
	}
	return withoutSpace(strings.NewReplacer(`\fB`, "", `\fI`, "", `\fP`, "", `\fR`, "", `\fC`, "", `\&`, "", `\-`, "-", `\\`, `\`, `\[ti]`, "~", `\[ha]`, "^", `\(aq`, "'").Replace(text.String()))
}

func withoutSpace(text string) string { return strings.Join(strings.Fields(text), "") }

// TestPages: each command has a page with all that its help prints, of the time SOURCE_DATE_EPOCH: the
// conversion takes no word for markup.
func TestPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir, root := t.TempDir(), cli.NewCommand()
	if err := run(root, dir); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			check(sub)
		}
		if !c.IsAvailableCommand() && c.HasParent() || c.Name() == "help" {
			return
		}
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		content, err := os.ReadFile(filepath.Join(dir, "man1", name+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		if !strings.Contains(string(content), `"Nov 2023"`) {
			t.Errorf("%s: another date than SOURCE_DATE_EPOCH", name)
		}
		got := plain(string(content))
		want := []string{c.Short, c.Long, c.Example}
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				_, usage := pflag.UnquoteUsage(f)
				want = append(want, "--"+f.Name, usage)
			}
		})
		for _, text := range want {
			for line := range strings.Lines(text) {
				heading := strings.HasPrefix(line, "#### ") // of cobra's texts
				if !heading && !strings.Contains(got, withoutSpace(line)) {
					t.Errorf("%s lacks %q", name, line)
				}
			}
		}
	}
	check(root)
	if files, err := os.ReadDir(filepath.Join(dir, "man1")); err != nil || len(files) != pages || pages < 20 {
		t.Errorf("%d pages of %d commands: %v", len(files), pages, err)
	}
}

// TestCompletions: the completions are of this program, and another run writes the same.
func TestCompletions(t *testing.T) {
	for shell, word := range map[string]string{"bash": "__start_nfqproxy", "zsh": "#compdef nfqproxy", "fish": "complete -c nfqproxy"} {
		var texts []string
		for range 2 {
			dir := t.TempDir()
			if err := run(cli.NewCommand(), dir); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "completion", "nfqproxy."+shell))
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		if !strings.Contains(texts[0], word) || texts[0] != texts[1] {
			t.Errorf("%s:\n%s", shell, texts[0])
		}
	}
}
