package script

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// program is a version of a policy. All pickers of the script use it at the same time: its globals
// are frozen.
type program struct {
	pick    *starlark.Function
	observe *starlark.Function // nil: the policy has none
}

// compile makes the program of a text. Errors begin with path, line and column, as far as they have them.
func compile(path string, source []byte) (*program, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%s: %d bytes; at most %d", path, len(source), maxSource)
	}
	file, err := new(syntax.FileOptions).Parse(path, source, 0)
	if err != nil {
		return nil, positioned(err)
	}
	g := new(guard)
	if g.statements(file.Stmts); g.err != nil {
		return nil, positioned(g.err)
	}
	compiled, err := starlark.FileProgram(file, guards.Has)
	if err != nil {
		return nil, positioned(err)
	}
	thread := newThread(nil)
	globals, err := initialise(compiled, thread)
	if err != nil {
		at, what := place(err)
		return nil, fmt.Errorf("%s: %s", cmp.Or(at, path), what)
	}
	globals.Freeze()
	p := new(program)
	if p.pick, err = function(globals, "pick", 3); err == nil && globals.Has("observe") {
		p.observe, err = function(globals, "observe", 2)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func initialise(p *starlark.Program, t *starlark.Thread) (globals starlark.StringDict, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the interpreter panicked: %v", r)
		}
	}()
	return p.Init(t, guards)
}

func function(globals starlark.StringDict, name string, parameters int) (*starlark.Function, error) {
	want := "pick(candidates, flow, state)"
	if name != "pick" {
		want = "observe(event, state)"
	}
	f, ok := globals[name].(*starlark.Function)
	if !ok || f.NumParams() != parameters || f.NumKwonlyParams() > 0 {
		return nil, fmt.Errorf("want a function %s", want)
	}
	return f, nil
}

// newThread returns a thread that has the steps of one call. print may be nil.
func newThread(print func(string)) *starlark.Thread {
	t := &starlark.Thread{
		Print: func(_ *starlark.Thread, s string) {
			if print != nil {
				print(s)
			}
		},
		OnMaxSteps: func(t *starlark.Thread) { t.Cancel(fmt.Sprintf("more than %d steps", maxSteps)) },
	}
	t.SetMaxExecutionSteps(maxSteps)
	return t
}

// positioned is an error of a text, as "path:line:column: what".
func positioned(err error) error {
	var s syntax.Error
	var r resolve.ErrorList
	switch {
	case errors.As(err, &s):
		return fmt.Errorf("%s: %s", s.Pos, s.Msg)
	case errors.As(err, &r):
		return fmt.Errorf("%s: %s", r[0].Pos, r[0].Msg)
	}
	return err
}

// place splits an error at run time into the innermost place in the script, as "path:line:column", and
// the rest; empty: it has none.
func place(err error) (at, what string) {
	what = strings.TrimPrefix(err.Error(), "Starlark computation cancelled: ")
	var e *starlark.EvalError
	if errors.As(err, &e) {
		for i := range e.CallStack {
			if pos := e.CallStack.At(i).Pos; pos.Line > 0 {
				return pos.String(), what
			}
		}
	}
	return "", what
}

// failure is an error at run time, as "file:line:column: what".
func failure(err error) string {
	at, what := place(err)
	if at != "" {
		what = filepath.Base(at) + ": " + what
	}
	return clean(what)
}

// maxText is how many bytes a sentence of a policy may have.
const maxText = 200

// clean makes one short line of a text of a policy: people read it in terminals.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText-3] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}
