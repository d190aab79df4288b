package nftables

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var update = flag.Bool("update", false, "write the golden listings of testdata/listings")

func TestMain(m *testing.M) { netnstest.Main(m) }

// nfts are the programs that judge: the installed nft and Debian's newest.
func nfts(t *testing.T) map[string]string {
	t.Helper()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	programs := map[string]string{"installed": "nft"}
	newest, err := filepath.Abs("../../../bench/peers/bin/newest-nft/nft")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(newest); err != nil {
		t.Run("newest", func(t *testing.T) { netnstest.Missing(t, "bench/peers/bin/newest-nft (make peers, on Debian)") })
	} else {
		programs["newest"] = newest
		if !netnstest.All() {
			delete(programs, "installed")
		}
	}
	return programs
}

// nft runs nft in a network namespace of the test.
type nft struct {
	t       *testing.T
	program string
	ns      *netns.Namespace
}

func newNft(t *testing.T, program string) *nft {
	t.Helper()
	ns, err := netns.New("nft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return &nft{t, program, ns}
}

// run gives nft a text to read; the error has what it says.
func (n *nft) run(stdin string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := n.ns.Do(func() error {
		cmd := exec.Command(n.program, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("nft %s: %w:\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), err
}

func (n *nft) list(args ...string) string {
	n.t.Helper()
	out, err := n.run("", append(args, "list", "ruleset")...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// faultyLine finds the line of a fault that nft reports.
var faultyLine = regexp.MustCompile(`(?m)^/dev/stdin:(\d+):.*`)

// accepted are those of the lines that nft and the kernel accept; refused says why not the others. They are loaded in place of what
// the namespace has, between head and foot.
func (n *nft) accepted(head, foot string, lines []string) (good []string, refused map[string]string) {
	refused = map[string]string{}
	first := strings.Count(head, "\n") + 2
	var try func(lines []string)
	try = func(lines []string) {
		_, err := n.run("flush ruleset\n"+head+strings.Join(lines, "\n")+"\n"+foot, "-f", "-")
		var rest []string
		if err == nil { // What nft cannot list again, because it crashes, says nothing about us.
			if _, err = n.run("", "list", "ruleset"); err == nil {
				_, err = n.run("", "-j", "list", "ruleset")
			}
		} else {
			faulty := map[int]bool{}
			for _, found := range faultyLine.FindAllStringSubmatch(err.Error(), -1) {
				if at, _ := strconv.Atoi(found[1]); at >= first && at < first+len(lines) {
					faulty[at-first] = true
					if len(faulty) == 1 || refused[strings.TrimSpace(lines[at-first])] == "" {
						refused[strings.TrimSpace(lines[at-first])] = found[0]
					}
				}
			}
			for i, line := range lines {
				if !faulty[i] {
					rest = append(rest, line)
				}
			}
			if len(faulty) > 11 || len(faulty) == len(lines) && len(lines) > 1 { // one that makes the table invalid is a fault of all
				rest = nil
				for i := range faulty {
					delete(refused, strings.TrimSpace(lines[i]))
				}
			}
		}
		switch {
		case err == nil:
			good = append(good, lines...)
		case len(rest) > 0 && len(rest) < len(lines):
			try(rest)
		case len(lines) == 1:
			refused[strings.TrimSpace(lines[0])] = err.Error()
		case len(lines) > 0:
			try(lines[:len(lines)/2])
			try(lines[len(lines)/2:])
		}
	}
	try(lines)
	return good, refused
}

// everyRuleset is the part of a file of testdata/every that this nft and this kernel accept.
func everyRuleset(t *testing.T, n *nft, file string) string {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const other, rules = "\tchain other {\n\t}\n", "\tchain rules {\n"
	declared, body, ok := strings.Cut(string(src), rules)
	begin := strings.Index(declared, "table ")
	if !ok || begin < 0 {
		t.Fatalf("%s has no chain “rules”", file)
	}
	table, things, _ := strings.Cut(declared[begin:], "\n")
	var one []string
	for line := range strings.Lines(strings.ReplaceAll(things, other, "")) {
		one = append(one, strings.TrimSuffix(line, "\n"))
	}
	good, refused := n.accepted(table+"\n"+other, "}\n", one)
	report(t, refused)
	head := table + "\n" + other + strings.Join(good, "\n") + "\n" + rules
	var lines []string
	for line := range strings.Lines(strings.TrimSuffix(body, "\t}\n}\n")) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "\t\ttype ") || strings.HasPrefix(line, "\t\tcomment ") {
			head += line + "\n"
			continue
		}
		lines = append(lines, line)
	}
	const foot = "\t}\n}\n"
	good, refused = n.accepted(head, foot, lines)
	report(t, refused)
	if len(good) < len(lines)/3 {
		t.Errorf("%s: only %d of %d rules are accepted", file, len(good), len(lines))
	}
	return head + strings.Join(good, "\n") + "\n" + foot
}

func report(t *testing.T, refused map[string]string) {
	t.Helper()
	for line, err := range refused {
		t.Logf("refused: %s: %s", line, strings.TrimSpace(err))
	}
}

// passing are the parts of a listing that change while the test runs.
var passing = regexp.MustCompile(`( expires| last used) [0-9a-z]+`)

// TestListingsReadAndPrint has nft load each statement and expression into the kernel, and compares what it lists with what is
// printed after reading that.
func TestListingsReadAndPrint(t *testing.T) {
	files, err := filepath.Glob("testdata/every/*.nft")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for version, program := range nfts(t) {
		for _, file := range files {
			t.Run(version+"/"+filepath.Base(file), func(t *testing.T) {
				n := newNft(t, program)
				ruleset := everyRuleset(t, n, file)
				if _, err := n.run("flush ruleset\n"+ruleset, "-f", "-"); err != nil {
					t.Fatal(err)
				}
				checkListings(t, n)
			})
		}
	}
}

// checkListings compares all forms in which nft lists what the kernel has.
func checkListings(t *testing.T, n *nft) {
	t.Helper()
	plain := n.list()
	full := readString(t, "text", plain)
	noUnknowns(t, full)
	for _, form := range []struct {
		flag   string
		format Format
		source *Ruleset // that is printed too
	}{
		{"-y", Format{}, nil}, {"-a", Format{Handles: true}, nil}, {"-nn", Format{}, nil}, {"-s", Format{Stateless: true}, full}, {"-t", Format{Terse: true}, full},
	} {
		listed := n.list(form.flag)
		if form.flag == "-y" { // priorities as numbers
			listed = n.list()
		}
		for _, r := range []*Ruleset{readString(t, form.flag, listed), form.source} {
			if r == nil {
				continue
			}
			if d := firstDifference(passing.ReplaceAllString(listed, "$1"), passing.ReplaceAllString(printed(t, r, form.format), "$1")); d != "" {
				t.Errorf("nft %s lists, and the print after reading it is: %s", form.flag, d)
			}
		}
	}
	checkJSON(t, n.list("-a"), n.list("-j"), n.program == "nft")
	// What is printed can be loaded again and means the same.
	again := newNft(t, n.program)
	if _, err := again.run(printed(t, full, Format{}), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if d := firstDifference(passing.ReplaceAllString(plain, "$1"), passing.ReplaceAllString(again.list(), "$1")); d != "" {
		t.Errorf("nft lists, and after loading the print: %s", d)
	}
	// So can what is printed after reading JSON, unless that lacks something: the devices of hooks, and the types of values of maps
	// whose keys have an expression as type.
	if strings.Contains(plain, " device") && n.program == "nft" || regexp.MustCompile(`typeof .* : `).MatchString(plain) {
		return
	}
	again = newNft(t, n.program)
	if _, err := again.run(printed(t, readString(t, "json", n.list("-j")), Format{}), "-f", "-"); err != nil {
		t.Error(err)
	}
}

// checkJSON compares the values of a text with those of its JSON. Older nft resolves typeof in JSON.
func checkJSON(t *testing.T, text, json string, older bool) {
	t.Helper()
	leaveOut := append([]string{"Element.Expires", "Last.Used", "Last.Never", "Last.Given"}, onlyText...)
	if older {
		leaveOut = append(leaveOut, "Set.Key", "Set.Value", "Set.Statements", "Chain.Comment", "Base.Devices", "Table.Comment", "Set.AutoMerge", "Set.Flags", "Element.Statements")
	} else {
		leaveOut = append(leaveOut, "Set.Value")
	}
	a, b := readString(t, "text", text), readString(t, "json", json)
	if d := firstDifference(dump(a, leaveOut...), dump(b, leaveOut...)); d != "" {
		t.Errorf("the text and the JSON differ in %s", d)
	}
}

func readString(t *testing.T, name, text string) *Ruleset {
	t.Helper()
	r, err := Read(name, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func printed(t *testing.T, r *Ruleset, f Format) string {
	t.Helper()
	var out strings.Builder
	n, err := r.Print(&out, f)
	if err != nil || n != int64(out.Len()) {
		t.Fatal(n, err)
	}
	return out.String()
}

// noUnknowns fails for each statement that was not understood.
func noUnknowns(t *testing.T, r *Ruleset) {
	t.Helper()
	for _, table := range r.Tables {
		for _, o := range table.Objects {
			if u, ok := o.Body.(Unknown); ok {
				t.Errorf("%s: not understood: %s (%v)", u.Position, u.Text, u.Err)
			}
		}
		for _, c := range table.Chains {
			for _, rule := range c.Rules {
				for _, s := range rule.Statements {
					if u, ok := s.(Unknown); ok {
						t.Errorf("%s: not understood: %s (%v)", u.Position, u.Text, u.Err)
					}
				}
			}
		}
	}
}

// TestRulesets reads files written by hand, and has nft load what is printed: it must list the same as after loading the file itself.
func TestRulesets(t *testing.T) {
	files, err := filepath.Glob("testdata/rulesets/*.nft")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for version, program := range nfts(t) {
		for _, file := range files {
			t.Run(version+"/"+filepath.Base(file), func(t *testing.T) {
				n, ours := newNft(t, program), newNft(t, program)
				text := readTestFile(t, file)
				if _, err := n.run(text, "-f", "-"); err != nil {
					t.Fatal(err)
				}
				read := readString(t, file, text)
				noUnknowns(t, read)
				if _, err := ours.run(printed(t, read, Format{}), "-f", "-"); err != nil {
					t.Fatal(err)
				}
				if d := firstDifference(passing.ReplaceAllString(n.list(), "$1"), passing.ReplaceAllString(ours.list(), "$1")); d != "" {
					t.Errorf("nft lists, and after loading what was read: %s", d)
				}
				checkListings(t, n)
				if *update {
					name := filepath.Join("testdata/listings", strings.TrimSuffix(filepath.Base(file), ".nft")+"."+version)
					for form, suffix := range map[string]string{"-a": ".txt", "-j": ".json"} {
						if err := os.WriteFile(name+suffix, []byte(n.list(form)), 0o644); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
	}
}
