package docs

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var updateDocs = flag.Bool("docs.update", false, "write what the commands print into README.md and docs")

// shown are the commands that the pages show with their output: "$ ./bin/nfqproxy ..."
// as the first line of a block, perhaps on several lines.
var shown = regexp.MustCompile("(?m)^```\n\\$ (\\./bin/nfqproxy (?:.*\\\\\n)*.*)\n((?:.*\n)*?)```$")

// cut ends the shown part of an output.
const cut = "...\n"

// TestDocumentedCommands: the commands print what README.md and docs show, up to a
// line "...".
func TestDocumentedCommands(t *testing.T) {
	netnstest.RequireTool(t, "bash")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "nfqproxy")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	before := repositoryFiles(t)
	var commands int
	for _, page := range userPages(t) {
		text := e2etest.ReadFile(t, filepath.Join(repository, page))
		printed := shown.ReplaceAllStringFunc(text, func(block string) string {
			commands++
			match := shown.FindStringSubmatch(block)
			command, want := match[1], match[2]
			cmd := exec.Command("bash", "-c", strings.ReplaceAll(command, "./bin/nfqproxy", program))
			cmd.Dir = repository
			cmd.Env = append(os.Environ(), e2etest.CommandEnv()...)
			out, err := cmd.Output() // diff ends with 1 where there are differences
			got := string(out)
			if start, isCut := strings.CutSuffix(want, cut); isCut {
				got = firstLines(got, strings.Count(start, "\n")) + cut
			}
			if got != want && !*updateDocs {
				t.Errorf("%s: %s\nprints (%v)\n%s\nand on the page\n%s", page, command, err, got, want)
			}
			return "```\n$ " + command + "\n" + got + "```"
		})
		if *updateDocs && printed != text {
			if err := os.WriteFile(filepath.Join(repository, page), []byte(printed), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if commands < 10 {
		t.Errorf("only %d commands with their output are found", commands)
	}
	if after := repositoryFiles(t); !slices.Equal(after, before) {
		t.Errorf("the commands write files into the repository: it has %q, and had %q", after, before)
	}
}

// repositoryFiles are the files in the directory of the documented commands.
func repositoryFiles(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// firstLines gives the first n lines of a text.
func firstLines(text string, n int) string {
	return strings.Join(strings.SplitAfter(text, "\n")[:min(n, strings.Count(text, "\n"))], "")
}
