package iptables

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// refusal is one place in the source that refuses a rule, and the faults that it reports.
type refusal struct {
	at    string // file:line
	fault *regexp.Regexp
}

// otherReaders are files that read no rules of iptables-restore.
var otherReaders = map[string]bool{
	"ipset.go": true, "setlisting.go": true, "listing.go": true, "listtable.go": true, "row.go": true, "wording.go": true,
}

// sourceRefusals finds all refusals in the source of this package: calls of fail and needs, kinds of values, and
// options that cannot be used together.
func sourceRefusals(t *testing.T) []refusal {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []refusal
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") && !otherReaders[name] {
			all = append(all, refusalsIn(t, name)...)
		}
	}
	return all
}

// refusalsIn finds the refusals in a file.
func refusalsIn(t *testing.T, name string) (all []refusal) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(n ast.Node, before string, e ast.Expr, after string) {
		pattern := pattern(e)
		if pattern == "" {
			return
		}
		p := files.Position(n.Pos())
		all = append(all, refusal{p.Filename + ":" + strconv.Itoa(p.Line), regexp.MustCompile("^" + before + pattern + after + "(: want |$)")})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := calledName(n.Fun); name {
			case "fail":
				add(n, "", n.Args[1], "")
			case "needs":
				add(n, "", n.Args[1], " in a rule that is not for the protocol")
			case "someOf", "someShort", "oneName":
				add(n, `".*" is not `, n.Args[0], "")
			case "oneOf", "atMostOne":
				if names := alternatives(n.Args); len(names) > 1 {
					add(n, "", nil, "("+strings.Join(names, "|")+") together with ("+strings.Join(names, "|")+")")
				}
			}
		case *ast.CompositeLit:
			switch kindName(n.Type) {
			case "kind":
				if len(n.Elts) > 0 && pattern(n.Elts[0]) != "text" { // keptText refuses nothing
					add(n, `".*" is not `, n.Elts[0], "")
				}
			case "Error":
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "Problem" {
						add(n, "", kv.Value, "")
					}
				}
			}
		}
		return true
	})
	return all
}

func calledName(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.IndexExpr:
		return calledName(f.X)
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func kindName(typ ast.Expr) string {
	switch t := typ.(type) {
	case *ast.IndexExpr:
		return kindName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// alternatives are the names of options in a call, if they are all written there.
func alternatives(args []ast.Expr) (names []string) {
	for _, a := range args {
		l, ok := a.(*ast.BasicLit)
		if !ok {
			return nil
		}
		name, _ := strconv.Unquote(l.Value)
		names = append(names, regexp.QuoteMeta(name))
	}
	return names
}

var verb = regexp.MustCompile(`%[\\.0-9]*[a-z]`)

// pattern is a regular expression for a text in the source; empty: the text is a variable, which is refused elsewhere.
func pattern(e ast.Expr) string {
	switch e := e.(type) {
	case nil:
		return "()"
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return verb.ReplaceAllString(regexp.QuoteMeta(text), ".*")
	case *ast.BinaryExpr:
		x, y := pattern(e.X), pattern(e.Y)
		if x+y == "" {
			return ""
		}
		if x == "" {
			x = ".*"
		}
		if y == "" {
			y = ".*"
		}
		return x + y
	case *ast.CallExpr:
		if calledName(e.Fun) == "Sprintf" {
			return pattern(e.Args[0])
		}
	}
	return ""
}

// limits are refusals that no iptables-restore has: of files, not of rules.
var limits = []string{
	"too many faults: the rest of the file is not read",
}

// text is the file in which the example's rule stands.
func (e example) text() string {
	if strings.HasPrefix(e.rule, "*") || e.table == "" {
		return e.rule
	}
	return "*" + e.table + "\n:own - [0:0]\n-A " + e.rule + "\nCOMMIT\n"
}

func (e example) parse() error {
	_, err := Parse(strings.NewReader(e.text()), Options{Family: cmp.Or(e.family, IPv4)})
	return err
}

// TestRefusals checks that each refusal in the source has an example, and that each example is refused so.
func TestRefusals(t *testing.T) {
	faults := make(map[string]int) // of the table's examples
	for _, e := range examples {
		err := e.parse()
		if len(Errors(err)) == 0 || !strings.HasPrefix(Errors(err)[0].Problem, e.fault) {
			t.Errorf("%s: %v, want %s", e.rule, err, e.fault)
			continue
		}
		faults[Errors(err)[0].Problem]++
	}
	for _, limit := range limits {
		faults[limit] = 1
	}
	same := make(map[string]int) // how many refusals have the same text
	for _, r := range sourceRefusals(t) {
		pattern := r.fault.String()
		same[pattern]++
		matching := 0
		for fault, n := range faults {
			if r.fault.MatchString(fault) {
				matching += n
			}
		}
		if matching < same[pattern] {
			t.Errorf("%s: the refusal %s has %d examples, want %d: add one to the table examples", r.at, pattern, matching, same[pattern])
		}
	}
}
