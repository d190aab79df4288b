package programs

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
)

const repository = "../../.."

// everywhere are programs and words of the shell that need no package: of Debian's essential packages, of Go and its
// tools, and our own.
var everywhere = strings.Fields(`
	alias answer bash basename basenc base64 break cat cd chmod chown clear command comm compgen complete continue cp cut date dd declare df
	dirname dpkg dpkg-deb dpkg-query echo env eval exec exit export false find function go grep gzip head hint hostname id install kill ln local ls
	mkdir mkfifo mktemp mv next nfqproxy od on perl printf pwd read readlink realpath return rm rmdir sed seq set sh shift sleep sort source stat
	sha256sum shasum stty sync tail tar tee test time timeout touch tr trap true truncate type ulimit umask uname uniq unset wait wc wget which xargs
	[ apt apt-get link ldd git gofmt golangci-lint kubectl
	open xdg-open rundll32 kube-proxy iptables-no-such`)

func inRepository(t *testing.T, use func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(repository, path)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "bench/peers/bin", "bench/floor/bin", "bench/results"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err == nil {
			use(name, string(b))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// calls are the functions whose argument of that number is the name of a program.
var calls = map[string]int{"exec.Command": 0, "exec.CommandContext": 1, "exec.LookPath": 0, "netnstest.RequireTool": 1}

// TestGoCalls: the list has every program that Go code names when it starts one.
func TestGoCalls(t *testing.T) {
	found := 0
	inRepository(t, func(path, text string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return // a test file with mistakes on purpose
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			of, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, _ := of.X.(*ast.Ident)
			if pkg == nil {
				return true
			}
			number, ok := calls[pkg.Name+"."+of.Sel.Name]
			if !ok || len(call.Args) <= number {
				return true
			}
			literal, ok := call.Args[number].(*ast.BasicLit)
			if !ok {
				return true
			}
			program, err := strconv.Unquote(literal.Value)
			if err != nil || strings.Contains(program, "/") {
				return true
			}
			found++
			if _, known := Package(program); !known && !slices.Contains(everywhere, program) {
				t.Errorf("%s starts %s, which debian.txt lacks", path, program)
			}
			return true
		})
	})
	if found < 50 {
		t.Errorf("found %d calls only", found)
	}
}

// Words before a command, by themselves or with an argument, and the ends of commands.
var (
	ends   = regexp.MustCompile(`\|\|?|&&|&|;|\$\(|[()\x60{}]`)
	quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'`)
	before = []string{"!", "do", "else", "elif", "exec", "if", "sudo", "then", "time", "until", "while"}
	pairs  = []string{"on", "timeout"}
)

// commands are the programs that a line of a script starts, as far as one can see without a shell.
func commands(line string) (list []string) {
	line = quoted.ReplaceAllString(line, "_")
	if strings.HasPrefix(strings.TrimSpace(line), "#") {
		return nil
	}
	for _, part := range ends.Split(line, -1) {
		words := strings.Fields(part)
		for len(words) > 0 {
			switch w := words[0]; {
			case slices.Contains(before, w), strings.Contains(w, "=") && !strings.HasPrefix(w, "="):
				words = words[1:]
				continue
			case slices.Contains(pairs, w) && len(words) > 1:
				words = words[2:]
				continue
			}
			list = append(list, words[0])
			break
		}
	}
	return list
}

func TestCommands(t *testing.T) {
	for line, want := range map[string]string{
		"on web timeout 20 tcpdump -lnti eth0 -c 2 port 8080 &> seen.txt &": "tcpdump > ",
		`X=1 curl -d "a | dig b" c && if ! ping -c 1 d; then nft list; fi`:  "curl ping nft fi",
		"# dig":                               "",
		"a=$(ip -br link | awk '{print $1}')": "ip awk",
	} {
		if got := strings.Join(commands(line), " "); strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestUnitCalls: a unit of the course names the programs that its scripts and its text call.
func TestUnitCalls(t *testing.T) {
	requires := regexp.MustCompile(`(?m)^requires: \[(.*)\]$`)
	named, called := make(map[string][]string), make(map[string]map[string]string) // by the unit's directory
	inRepository(t, func(path, text string) {
		dir := filepath.Dir(path)
		if !strings.HasPrefix(path, "deploy/learn/units/") {
			return
		}
		if m := requires.FindStringSubmatch(text); m != nil && filepath.Base(path) == "unit.yaml" {
			named[dir] = strings.Split(m[1], ", ")
		}
		for number, line := range strings.Split(text, "\n") {
			switch filepath.Base(path) {
			case "unit.yaml":
			case "text.md":
				if !strings.HasPrefix(line, "    ") {
					continue
				}
			default:
				if filepath.Ext(path) != ".sh" {
					continue
				}
			}
			for _, c := range commands(line) {
				if _, known := Package(c); !known {
					continue
				}
				if called[dir] == nil {
					called[dir] = make(map[string]string)
				}
				called[dir][c] = path + ":" + strconv.Itoa(number+1)
			}
		}
	})
	for dir, programs := range called {
		for program, place := range programs {
			if program != "bash" && !slices.ContainsFunc(named[dir], func(n string) bool { return packages[n] == packages[program] }) {
				t.Errorf("%s calls %s, which unit.yaml does not require", place, program)
			}
		}
	}
	if len(called) < 20 {
		t.Errorf("%d units call programs, want all", len(called))
	}
}

// TestScriptCalls: the list has every program that a shell script of the project calls.
func TestScriptCalls(t *testing.T) {
	scripts := 0
	inRepository(t, func(path, text string) {
		if !strings.HasPrefix(text, "#!/bin/sh") && !strings.HasPrefix(text, "#!/usr/bin/env bash") && !strings.HasPrefix(text, "#!/bin/bash") {
			return
		}
		scripts++
		for number, line := range strings.Split(text, "\n") {
			for _, c := range commands(line) {
				_, known := Package(c)
				if !known && slices.Contains(installed, c) {
					t.Errorf("%s:%d calls %s, which debian.txt lacks", path, number+1, c)
				}
			}
		}
	})
	if scripts < 5 {
		t.Errorf("found %d scripts only", scripts)
	}
}

// installed are programs of this machine: a word of a script that is none of them is a function, or not a program.
var installed = func() (list []string) {
	for _, dir := range []string{"/bin", "/usr/bin", "/usr/sbin", "/sbin"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !slices.Contains(everywhere, e.Name()) {
				list = append(list, e.Name())
			}
		}
	}
	return list
}()
