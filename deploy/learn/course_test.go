package learn

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// small is a course with one unit. Tests change it with edited.
var small = map[string]string{
	"1-services/chapter.yaml": `apiVersion: nfqproxy.io/v1alpha1
kind: Chapter
title: Services
`,
	"1-services/1-first/unit.yaml": `apiVersion: nfqproxy.io/v1alpha1
kind: Unit
title: A first unit
minutes: 3
lab: lab.yaml
shell: shell
steps:
- name: read
- name: ask
  question:
    text: How many pods?
    answer: {is: ["2", two]}
    wrong:
    - {answer: "1", because: there are two}
  hints: [one, two, three]
  solution: answer 2
- name: do
  checks:
  - flow: {service: default/web, state: answered}
  hints: [one, two, three]
  solution: curl web
`,
	"1-services/1-first/text.md": `# Read

Read this.

# Ask

Count the pods.

# Do

Send a request.
`,
	"1-services/1-first/lab.yaml": `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: first}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}]
nodes:
- {name: node-a, addresses: [172.20.0.2], podCIDRs: [10.244.0.0/24]}
pods:
- {name: shell, node: node-a, addresses: [10.244.0.9]}
`,
}

const (
	unitPath = "1-services/1-first/unit.yaml"
	textPath = "1-services/1-first/text.md"
	labPath  = "1-services/1-first/lab.yaml"
)

// edited is the small course with a text replaced in one of its files. An old text that is empty replaces the whole file.
func edited(t testing.TB, file, old, new string) fstest.MapFS {
	t.Helper()
	files := make(fstest.MapFS)
	for name, text := range small {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	switch text := small[file]; {
	case file == "":
	case old == "":
		files[file] = &fstest.MapFile{Data: []byte(new)}
	case strings.Count(text, old) == 1:
		files[file] = &fstest.MapFile{Data: []byte(strings.Replace(text, old, new, 1))}
	default:
		t.Fatalf("%s has %q %d times", file, old, strings.Count(text, old))
	}
	return files
}

// loaded is a course that must be valid.
func loaded(t testing.TB, files fs.FS, seed uint64) *Course {
	t.Helper()
	c, err := Load(files, seed)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// first is the first unit of a course that must be valid.
func first(t testing.TB, files fs.FS, seed uint64) *Unit {
	t.Helper()
	return loaded(t, files, seed).Units()[0]
}

// three is a course with three units in two chapters.
func three(t testing.TB) *Course {
	t.Helper()
	files := edited(t, "", "", "")
	for _, dir := range []string{"1-services/10-tenth-unit", "2-nodes/1-second"} {
		for _, name := range []string{"unit.yaml", "text.md", "lab.yaml"} {
			files[dir+"/"+name] = files["1-services/1-first/"+name]
		}
	}
	files["2-nodes/chapter.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(small["1-services/chapter.yaml"], "Services", "Nodes", 1))}
	files["README.md"] = &fstest.MapFile{Data: []byte("is no chapter")}
	files["notes/9-not/x"] = &fstest.MapFile{}
	return loaded(t, files, 7)
}

func TestCourse(t *testing.T) {
	c := three(t)
	var got []string
	for _, u := range c.Units() {
		got = append(got, u.ID+" "+u.Name)
	}
	if got, want := strings.Join(got, ", "), "1.1 first, 1.10 tenth-unit, 2.1 second"; got != want {
		t.Errorf("the units are %s, want %s", got, want)
	}
	if len(c.Chapters) != 2 || c.Chapters[1].Title != "Nodes" || c.Chapters[1].Number != 2 {
		t.Errorf("the chapters are %+v", c.Chapters)
	}
	for _, name := range []string{"1.10", "tenth-unit"} {
		if u, err := c.Unit(name); err != nil || u.ID != "1.10" {
			t.Errorf("unit %s: %v, %v", name, u, err)
		}
	}
	_, err := c.Unit("tenth-unti")
	if want := `no unit "tenth-unti" (did you mean "tenth-unit"?); "nfqproxy learn list" lists the units`; err == nil || err.Error() != want {
		t.Errorf("an unknown unit: %v, want %s", err, want)
	}
	u := c.Units()[0]
	for i, want := range []Step{{Title: "Read", Text: "Read this.\n"}, {Title: "Ask", Text: "Count the pods.\n"}, {Title: "Do", Text: "Send a request.\n"}} {
		if s := u.Steps[i]; s.Title != want.Title || s.Text != want.Text || s.Read() != (i == 0) {
			t.Errorf("step %d: %q %q, to be read: %v", i, s.Title, s.Text, s.Read())
		}
	}
	for i, want := range []string{"", "How many pods?", "a flow to default/web, state answered"} {
		if got := u.Steps[i].Task(); got != want {
			t.Errorf("the task of step %d is %q, want %q", i, got, want)
		}
	}
}

// Files of editors do not belong to a unit, and students do not see the course's own texts.
func TestFilesOfAUnit(t *testing.T) {
	files := edited(t, "", "", "")
	for _, name := range []string{".text.md.swp", "text.md~", "data.txt"} {
		files["1-services/1-first/"+name] = &fstest.MapFile{Data: []byte(name)}
	}
	u := first(t, files, 0)
	if got := strings.Join(u.FileNames(), " "); got != "data.txt lab.yaml" {
		t.Errorf("the student's files are %s", got)
	}
	if got := string(u.File("data.txt")); got != "data.txt" || u.File("other") != nil || u.File("text.md~") != nil {
		t.Errorf("data.txt is %q", got)
	}
}
