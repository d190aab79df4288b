// Package docs tests the documentation, and what it says of the code: commands, flags, messages,
// metrics, the layout of the packages.
package docs

import (
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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }

// repository is the directory of go.mod.
const repository = ".."

// longestREADME is how many bytes README.md may have.
const longestREADME = 14_000

// pages gives the files that match patterns relative to the repository.
func pages(t *testing.T, patterns ...string) []string {
	t.Helper()
	var list []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no page is %s: %v", pattern, err)
		}
		for _, path := range found {
			page, err := filepath.Rel(repository, path)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, page)
		}
	}
	return list
}

// userPages are the pages about using the program.
func userPages(t *testing.T) []string {
	t.Helper()
	return pages(t, "README.md", "docs/*.md", "docs/*/*.md")
}

func TestREADMEIsShort(t *testing.T) {
	if n := len(e2etest.ReadFile(t, filepath.Join(repository, "README.md"))); n > longestREADME {
		t.Errorf("README.md has %d bytes, want at most %d: move text to docs/", n, longestREADME)
	}
}

// TestEveryCommandIsListed: the page of commands answers "which command for which question" with every command.
func TestEveryCommandIsListed(t *testing.T) {
	text := e2etest.ReadFile(t, "reference/commands.md")
	for _, c := range cli.NewCommand().Commands() {
		if !c.Hidden && !strings.Contains(text, "`nfqproxy "+c.Name()) {
			t.Errorf("docs/reference/commands.md does not have the command %s", c.Name())
		}
	}
}

// TestFindings: findings.md describes every code.
func TestFindings(t *testing.T) {
	described := regexp.MustCompile(`(?m)^### (NFQ\d+)$`).FindAllString(e2etest.ReadFile(t, "reference/findings.md"), -1)
	var codes []string
	for _, c := range diagnose.Codes() {
		codes = append(codes, "### "+string(c))
	}
	if !slices.Equal(codes, described) {
		t.Errorf("findings.md describes\n%v\nthe codes are\n%v", described, codes)
	}
	if n := strings.Count(e2etest.ReadFile(t, filepath.Join(repository, "control/paper/diagnose/finding.go")), `Code = "NFQ`); n != len(codes) {
		t.Errorf("there are %d codes, and Codes returns %d", n, len(codes))
	}
}

// purposes are the directories of docs, by what a page is for, and the headings of their tables of contents.
var purposes = map[string]string{"tutorials": "Tutorials", "how-to": "How-to guides", "reference": "Reference", "explanation": "Explanation"}

// contentsLine is an entry of docs/README.md: a page with what it is about. "make site" makes the navigation of these lines.
var contentsLine = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([^)#]+\.md)\): \S.*\.$`)

// TestContents: docs/README.md has each page of docs once, below the heading of its directory, and no entry that "make site" does not see.
func TestContents(t *testing.T) {
	index := e2etest.ReadFile(t, filepath.Join(repository, "docs/README.md"))
	listed := make(map[string]string) // page: the heading above
	for section := range strings.SplitSeq(index, "\n## ") {
		title, text, _ := strings.Cut(section, "\n")
		for _, entry := range contentsLine.FindAllStringSubmatch(text, -1) {
			if listed[entry[2]] != "" {
				t.Errorf("docs/README.md has %s twice", entry[2])
			}
			listed[entry[2]] = title
		}
		if n := strings.Count(text, "\n- "); n != len(contentsLine.FindAllString(text, -1)) {
			t.Errorf("docs/README.md, %s: of %d entries, not all are written as \"- [Title](page.md): What it is about.\"", title, n)
		}
	}
	for _, page := range pages(t, "docs/*.md", "docs/*/*.md") {
		page = strings.TrimPrefix(page, "docs/")
		if want := purposes[filepath.Dir(page)]; listed[page] != want {
			t.Errorf("docs/README.md has %s below the heading %q, want %q", page, listed[page], want)
		}
	}
	if len(listed) < 30 {
		t.Errorf("docs/README.md lists only %d pages", len(listed))
	}
}

var (
	fenced     = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	// inlineLink is [text](target) and ![text](target).
	inlineLink = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors gives the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var list []string
	seen := map[string]int{}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		title := linkText.ReplaceAllString(h[1], "$1")
		slug := strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		n := seen[slug]
		seen[slug]++
		if n > 0 {
			slug += "-" + strconv.Itoa(n)
		}
		list = append(list, slug)
	}
	return list
}

func TestAnchors(t *testing.T) {
	text := "# What `a_b` is: [the](x.md) 2nd-best\n```\n# no heading\n```\n## /proxyMode\n## Life\n## Life\n"
	if got, want := anchors(text), []string{"what-a_b-is-the-2nd-best", "proxymode", "life", "life-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// allPages are all pages of the repository.
func allPages(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		page, err := filepath.Rel(repository, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "bench/peers/bin", "bench/results"}, page):
			return filepath.SkipDir
		case !d.IsDir() && filepath.Ext(page) == ".md":
			list = append(list, page)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestLinks: relative links lead to files and headings that exist.
func TestLinks(t *testing.T) {
	links := 0
	for _, page := range allPages(t) {
		text := e2etest.ReadFile(t, filepath.Join(repository, page))
		prose := inlineCode.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
		for _, match := range inlineLink.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			path, anchor, hasAnchor := strings.Cut(match[1], "#")
			target := filepath.Join(repository, page)
			if path != "" {
				target = filepath.Join(repository, filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link %s: %v", page, match[1], err)
			} else if hasAnchor && !slices.Contains(anchors(e2etest.ReadFile(t, target)), anchor) {
				t.Errorf("%s: link %s: no heading of that page has this anchor", page, match[1])
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links are found", links)
	}
}

var (
	codedPath  = regexp.MustCompile("`([a-z][\\w.-]*/[\\w./-]*[\\w/])`")
	makeTarget = regexp.MustCompile("\\bmake ([a-z-]+)`")
)

// TestInstructionsForContributors: CONTRIBUTING.md mentions only files and make targets
// that exist.
func TestInstructionsForContributors(t *testing.T) {
	text := e2etest.ReadFile(t, filepath.Join(repository, "CONTRIBUTING.md"))
	paths := codedPath.FindAllStringSubmatch(text, -1)
	for _, path := range paths {
		if strings.HasPrefix(path[1], "bin/") || strings.Contains(path[1], "NAME") {
			continue // make writes it; a placeholder
		}
		if _, err := os.Stat(filepath.Join(repository, path[1])); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
	targets := makeTarget.FindAllStringSubmatch(text, -1)
	makefile := e2etest.ReadFile(t, filepath.Join(repository, "Makefile"))
	for _, target := range targets {
		if !regexp.MustCompile(`(?m)^([a-z-]+ )*` + target[1] + `( [a-z-]+)*:`).MatchString(makefile) {
			t.Errorf("CONTRIBUTING.md: the Makefile has no target %s", target[1])
		}
	}
	if len(paths) < 20 || len(targets) < 8 {
		t.Errorf("only %d paths and %d targets are found", len(paths), len(targets))
	}
}

var (
	// commandLine is a call of the program in a page, up to the end of its command.
	commandLine = regexp.MustCompile("nfqproxy ((?:[^`|<>()#;\n\\\\]|\\\\\n)+)")
	longFlag    = regexp.MustCompile(`(?:^|\s)--([a-z][a-z0-9-]*)`)
	codedFlag   = regexp.MustCompile("`--([a-z][a-z0-9-]*)[^`\n]*`")
)

// foreignFlags are flags of other programs that pages mention in code.
var foreignFlags = []string{
	"ctstate", "dst-type", "nfacct-name", "random-fully", // iptables' and kube-proxy's rules
	"node-labels",             // kubelet's
	"nosort",                  // ipvsadm's
	"privileged",              // docker's
	"service-node-port-range", // kube-apiserver's
	"skip-phases",             // kubeadm's
}

// TestDocumentedFlags: the pages mention only flags that exist.
func TestDocumentedFlags(t *testing.T) {
	root := cli.NewCommand()
	known := foreignFlags
	eachCommand(root, func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		c.InheritedFlags() // adds those of parents
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	})
	calls := 0
	for _, page := range userPages(t) {
		text := e2etest.ReadFile(t, filepath.Join(repository, page))
		for _, match := range commandLine.FindAllStringSubmatch(text, -1) {
			line, _, _ := strings.Cut(match[1], " -- ")
			c, _, err := root.Find(strings.Fields(line))
			if err != nil || c == root || c.DisableFlagParsing {
				continue // prose, or another system than Linux
			}
			calls++
			for _, flag := range longFlag.FindAllStringSubmatch(line, -1) {
				if c.Flags().Lookup(flag[1]) == nil && c.InheritedFlags().Lookup(flag[1]) == nil {
					t.Errorf("%s: %s has no flag --%s: %s", page, c.CommandPath(), flag[1], line)
				}
			}
		}
		for _, flag := range codedFlag.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(known, flag[1]) {
				t.Errorf("%s: no command has a flag --%s", page, flag[1])
			}
		}
	}
	if calls < 40 {
		t.Errorf("only %d calls of the program are found", calls)
	}
}

func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, f)
	}
}

// literals gives the strings in the program's source, each sum of strings as one.
func literals(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, dir := range []string{"cmd", "conntrack", "control", "datapath", "deploy"} {
		err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				e, isExpr := n.(ast.Expr)
				if !isExpr {
					return true
				}
				text, ok := stringOf(e)
				if ok {
					list = append(list, text)
				}
				return !ok
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// stringOf is the value of a string, or of a sum of strings; what is not a literal counts
// as "%v".
func stringOf(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		left, isLeft := stringOf(e.X)
		right, isRight := stringOf(e.Y)
		if e.Op == token.ADD && (isLeft || isRight) {
			if !isLeft {
				left = "%v"
			}
			if !isRight {
				right = "%v"
			}
			return left + right, true
		}
	}
	return "", false
}

var (
	messageBlock = regexp.MustCompile("(?ms)^ *```text\n(.*?)^ *```")
	metricName   = regexp.MustCompile(`\bnfqproxy_[a-z0-9_]+\b`)
)

// TestDocumentedMessages: the program prints each message of the page about troubleshooting;
// "…" stands for what differs.
func TestDocumentedMessages(t *testing.T) {
	printed := literals(t)
	messages := 0
	for _, block := range messageBlock.FindAllStringSubmatch(e2etest.ReadFile(t, filepath.Join(repository, "docs/how-to/troubleshoot.md")), -1) {
		for line := range strings.Lines(block[1]) {
			messages++
			line = strings.TrimSpace(line)
			if !slices.ContainsFunc(printed, func(s string) bool { return hasInOrder(s, strings.Split(line, "…")) }) {
				t.Errorf("no message of the program is %q", line)
			}
		}
	}
	if messages < 20 {
		t.Errorf("only %d messages are found", messages)
	}
}

// hasInOrder reports whether a text has all parts, one behind the other.
func hasInOrder(text string, parts []string) bool {
	for _, part := range parts {
		_, rest, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = rest
	}
	return true
}

// TestDocumentedMetrics: the pages mention only metrics that exist.
func TestDocumentedMetrics(t *testing.T) {
	names := literals(t)
	for _, page := range userPages(t) {
		for _, name := range metricName.FindAllString(e2etest.ReadFile(t, filepath.Join(repository, page)), -1) {
			if !slices.Contains(names, name) && !slices.Contains(names, strings.TrimPrefix(name, "nfqproxy_")) {
				t.Errorf("%s: there is no metric %s", page, name)
			}
		}
	}
}
