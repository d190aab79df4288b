package cli

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// evil is what an attacker writes into a name or a comment: a new title for the window, text
// that hides, one that reads the other way round, and C1's CSI.
const evil = "\x1b]0;owned\a\x1b[2J\x1b[31mred\u202eDLRO\u009b2K\x9b2K"

// controls finds the first character that a terminal would obey.
func controlIn(b []byte) (string, bool) {
	for i, r := range string(b) {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r <= 0x9f || r >= 0x202a && r <= 0x202e {
			return string(b[max(0, i-20):min(len(b), i+20)]), true
		}
	}
	return "", !utf8.Valid(b)
}

// TestForeignTextDoesNotControlTheTerminal: whatever rules, objects and servers say.
func TestForeignTextDoesNotControlTheTerminal(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rules := write("evil.rules", "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -m comment --comment \""+evil+"\" -j KUBE-SERVICES\n"+
		"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"default/web"+evil+" cluster IP\" -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80\nCOMMIT\n")
	other := write("other.rules", "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j ACCEPT\nCOMMIT\n")
	objects := write("evil.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: \"we\\e]0;owned\\ab\\N\\L\", namespace: default}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n")
	log := write("evil.log", `{"version":1,"event":"decided","time":"2026-01-02T03:04:05Z","node":"a\u001b[2J","protocol":"TCP","source":"10.0.0.1:1","destination":"10.96.0.20:80","verdict":"dnat","reason":"balanced","service":"default/\u001b]0;owned\u0007\u202e","endpoint":"10.0.0.1:80"}`+"\n")
	packet := []string{"--protocol", "tcp", "--source", "10.0.0.9:1000", "--destination", "10.96.0.1:80"}
	printed := 0
	for _, args := range [][]string{
		append([]string{"trace", "--rules", rules}, packet...),
		append([]string{"trace", "--rules", rules, "-o", "json"}, packet...),
		{"services", "--rules", rules}, {"services", "--rules", rules, "-o", "wide"}, {"services", "--rules", rules, "-o", "json"}, {"services", "--rules", rules, "-o", "yaml"},
		{"diff", "--all", rules, other}, {"diff", "-o", "json", other, rules},
		append([]string{"explain", "--objects", objects}, packet...),
		{"render", "--objects", objects},
		{"lab", "up", "--objects", objects}, {"lab", "init", "--objects", objects, dir},
		{"lab", "up", evil}, {evil}, {"lab", evil}, {"flows", "--" + evil}, {"flows", "--color", evil}, {"explain", "--objects", evil}, {"help", evil},
		{"run", "--objects", objects, "--queues", evil},
		{"replay", log, "--objects", "../../../datapath/flow/testdata/cluster.yaml", "--node", "node-a"},
		{"replay", log, "--rules", rules},
		{"flows", "--server", "unix:/" + evil}, {"flows", evil},
	} {
		var stdout, stderr bytes.Buffer
		run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
		printed += strings.Count(stdout.String()+stderr.String(), `\x1b`)
		for _, out := range [][]byte{stdout.Bytes(), stderr.Bytes()} {
			if near, found := controlIn(out); found {
				t.Errorf("%q: %q is not quoted", args, near)
			}
		}
	}
	if printed < 20 {
		t.Errorf("only %d escapes were to be printed: the test tests nothing", printed)
	}
}

// hostile is a server whose every text is evil.
func hostile(string, string) (observe.Observer, error) {
	c := observetest.NewCluster()
	return evilObserver{c}, nil
}

type evilObserver struct{ *observetest.Cluster }

func (o evilObserver) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	_ = o.Cluster.Flows(ctx, q, func(i observe.Item) error {
		if i.Record != nil {
			i.Record.Service, i.Record.SourcePod, i.Record.Pod, i.Record.Node, i.Record.Reason = "default/"+evil, "default/"+evil, "default/"+evil, evil, evil
		}
		return each(i)
	})
	return &observe.Error{Status: 500, Message: "server: " + evil}
}

func (o evilObserver) Services(context.Context, observe.ServiceQuery) (*observe.Services, error) {
	return nil, &observe.Error{Status: 500, Message: "server: " + evil}
}

func TestServersDoNotControlTheTerminal(t *testing.T) {
	for _, args := range [][]string{
		{"flows"}, {"flows", "-o", "wide"}, {"flows", "-o", "json"}, {"flows", "-o", "jsonl"}, {"flows", "--walk", "words"}, {"flows", "-o", "custom-columns=S:.service"}, {"flows", "-o", "hubble"},
		{"flows", "--color", "always"},
	} {
		var stdout, stderr bytes.Buffer
		if code := execute(t.Context(), newRootCommand(hostile), args, strings.NewReader(""), &stdout, &stderr); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
		out := stdout.Bytes()
		if slices.Contains(args, "always") {
			// Our own colours are there, and theirs is not.
			if !bytes.Contains(out, []byte("\x1b[2m")) || bytes.Contains(out, []byte("\x1b[31mred")) {
				t.Errorf("%q prints %q", args, out)
			}
			for _, own := range []string{"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"} {
				out = bytes.ReplaceAll(out, []byte(own), nil)
			}
		}
		for _, b := range [][]byte{out, stderr.Bytes()} {
			if near, found := controlIn(b); found {
				t.Errorf("%q: %q is not quoted", args, near)
			}
		}
		if !strings.Contains(stderr.String(), `server: \x1b]0;owned\x07`) {
			t.Errorf("%q: %q", args, stderr.String())
		}
	}
}

// isModule reports whether a Go module begins at the directory.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// TestOneWayToTheTerminal: all output goes through the writers that quote. Whoever writes to the
// process's files, or an escape sequence into a text, goes past them.
func TestOneWayToTheTerminal(t *testing.T) {
	allowed := map[string]string{
		"cmd/nfqproxy/cli/cli.go":             "wraps them",
		"cmd/nfqproxy/cli/run_linux.go":       "the daemon's output passes as it is: it quotes itself",
		"control/live/daemon/daemon.go":       "wraps them",
		"deploy/lab/exec_linux.go":            "a program's own output passes as it is",
		"datapath/netns/init_linux.go":        "a process of this program, that quotes itself",
		"datapath/netns/isolation_linux.go":   "likewise",
		"control/view/terminal/terminal.go":   "the sequences themselves",
		"cmd/nfqproxy/cli/learn.go":           "a shell's output passes by an emulator, and the texts beside it are quoted",
		"deploy/learn/screen/model_linux.go":  "likewise",
		"deploy/learn/session/prove_linux.go": "a shell's prompt, to compare with",
		"cmd/nfqproxy/manual/main.go":         "a tool of releases, not part of the program",
	}
	root := "../../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, root+"/"))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bench" || d.Name() == "testdata" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() && path != root && isModule(path): // not part of the program
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") || allowed[name] != "":
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				of, ok := n.X.(*ast.Ident)
				if !ok {
					break
				}
				what := of.Name + "." + n.Sel.Name
				if slices.Contains([]string{"os.Stdout", "os.Stderr", "fmt.Print", "fmt.Printf", "fmt.Println", "log.Print", "log.Printf", "log.Println"}, what) {
					t.Errorf("%s: %s goes past the writers of package visible: use the command's output", set.Position(n.Pos()), what)
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && (strings.Contains(n.Value, `\x1b`) || strings.Contains(n.Value, `\033`) || strings.Contains(n.Value, `\u001b`)) {
					t.Errorf("%s: an escape sequence without a seal is not obeyed: use terminal.Seal or text.Style", set.Position(n.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
