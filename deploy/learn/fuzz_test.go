package learn

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// FuzzUnit: no unit.yaml and no text.md makes the parser panic. What it takes has all that a session counts on.
func FuzzUnit(f *testing.F) {
	read := func(name string) string {
		data, err := scaffold.ReadFile("scaffold/" + name)
		if err != nil {
			f.Fatal(err)
		}
		return string(data)
	}
	f.Add(small[unitPath], small[textPath], uint64(0))
	f.Add(read("unit.yaml"), read("text.md"), uint64(1))
	f.Add(bomb(), "# a\n", uint64(0))
	f.Add("variables: [{name: a, from: -9223372036854775808, to: 9223372036854775807}]\n", "", uint64(3))
	f.Add(strings.Replace(small[unitPath], "steps:\n", "variants: [{name: a, values: {x: '${x}'}, solutions: {do: y}}]\nsteps:\n-\n", 1), "# a\n", uint64(3))
	f.Add(strings.Replace(small[unitPath], "  - flow", "  -\n  - flow", 1), small[textPath], uint64(3))
	f.Add(strings.Replace(small[unitPath], "{is: [\"2\", two]}", "{held: true, field: endpoint}\n  hold: {flow: {port: '80'}, show: [a.b]}", 1), small[textPath], uint64(3))
	f.Fuzz(func(t *testing.T, unit, text string, seed uint64) {
		templates := map[string][]byte{unitFile: []byte(unit), textFile: []byte(text), "lab.yaml": []byte(small[labPath])}
		u, err := parseUnit("1-a/1-b", "b", templates, seed)
		if err != nil {
			mistakes, ok := errors.AsType[Mistakes](err)
			if !ok {
				t.Fatalf("the error is %T", err)
			}
			for _, m := range mistakes {
				if m.File == "" || m.Err == nil || m.Error() == "" {
					t.Fatalf("a mistake without a file or a cause: %+v", m)
				}
			}
			return
		}
		if len(u.Steps) == 0 || u.Shell == "" || u.Minutes < 1 {
			t.Fatalf("a unit without steps, shell or time: %+v", u)
		}
		for _, s := range u.Steps {
			if s.Name == "" || s.Title == "" || !strings.HasSuffix(s.Text, "\n") || !s.Read() && (len(s.Hints) != 3 || s.Solution == "") {
				t.Fatalf("a step is not complete: %+v", s)
			}
			_ = s.Task()
			if s.Question != nil {
				_, _ = s.Question.Answer.Judge("1/2", "0.5"), s.Question.WrongReason("x")
			}
		}
		if again, err := u.Draw(seed); err != nil || string(again.File(unitFile)) != string(u.File(unitFile)) {
			t.Fatalf("the same seed draws another unit: %v", err)
		}
		if err := WriteBook(io.Discard, &Course{Chapters: []*Chapter{{Number: 1, Units: []*Unit{u}}}}, BookOptions{HTML: true, Solutions: true}); err != nil {
			t.Fatal(err)
		}
	})
}
