package learn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// differing is the small course with variables and variants: a course in which students differ.
func differing(t testing.TB) fstest.MapFS {
	t.Helper()
	files := edited(t, unitPath, "steps:\n", `setup: echo setup ${port}
variables:
- {name: port, from: 1000, to: 60000}
- {name: one, oneOf: [x]}
- {name: node, oneOf: [node-a, node-b, node-c]}
variants:
- name: first
  values: {target: "${port}", kind: "1"}
- name: second
  values: {target: "${node} ${kind} $${port}", kind: "2"}
  setup: echo more
  solutions: {do: "curl ${target}\n"}
- name: third
  values: {target: t, kind: "3", one: y}
steps:
`)
	files["1-services/1-first/data.txt"] = &fstest.MapFile{Data: []byte("${port} ${node} ${one} ${target} ${kind} ${HOME} ${Port} $port {port} ${}")}
	files[textPath] = &fstest.MapFile{Data: []byte(strings.Replace(small[textPath], "Read this.", "Port ${port}.", 1))}
	return files
}

func TestDraw(t *testing.T) {
	files := differing(t)
	variants, ports, nodes := make(map[string]int), make(map[string]bool), make(map[string]int)
	for seed := range uint64(60) {
		u, err := first(t, files, 1).Draw(seed)
		if err != nil {
			t.Fatal(err)
		}
		again, err := LoadUnit(files, "1-services/1-first", seed)
		if err != nil {
			t.Fatal(err)
		}
		data := string(u.File("data.txt"))
		if other := string(again.File("data.txt")); data != other || u.Variant != again.Variant || u.Seed != seed || again.Seed != seed {
			t.Fatalf("seed %d draws %q and %q", seed, data, other)
		}
		if u.ID != "1.1" || !u.Differs() || u.SeedText() != fmt.Sprint(seed) {
			t.Fatalf("the unit has the ID %q, and the seed %s", u.ID, u.SeedText())
		}
		f := strings.Fields(data)
		port, node := f[0], f[1]
		var want, solution, setup string
		switch u.Variant {
		case "first":
			want, solution, setup = fmt.Sprintf("%s %s x %[1]s 1", port, node), "curl web", ""
		case "second": // values of variables, but not those of the variant itself
			want, solution, setup = fmt.Sprintf("%s %s x %[2]s ${kind} $%[1]s 2", port, node), fmt.Sprintf("curl %s ${kind} $%s\n", node, port), "echo more"
		case "third":
			want, solution, setup = fmt.Sprintf("%s %s y t 3", port, node), "curl web", ""
		}
		if want += " ${HOME} ${Port} $port {port} ${}"; data != want {
			t.Errorf("seed %d, variant %s: the file is %q, want %q", seed, u.Variant, data, want)
		}
		if got := u.Steps[2].Solution; got != solution {
			t.Errorf("variant %s: the solution is %q, want %q", u.Variant, got, solution)
		}
		if want := "echo setup " + port + "\n" + setup; u.Setup != want {
			t.Errorf("variant %s: the setup is %q, want %q", u.Variant, u.Setup, want)
		}
		if want := "Port " + port + ".\n"; u.Steps[0].Text != want {
			t.Errorf("the text is %q, want %q", u.Steps[0].Text, want)
		}
		variants[u.Variant]++
		nodes[node]++
		if ports[port] {
			t.Errorf("seeds up to %d draw port %s twice", seed, port)
		}
		ports[port] = true
	}
	// Seeds that follow each other have one variant after the other.
	if variants["first"] != 20 || variants["second"] != 20 || variants["third"] != 20 || len(nodes) != 3 {
		t.Errorf("60 seeds draw the variants %v and the nodes %v", variants, nodes)
	}
}

// The numbers of a range include both ends.
func TestRange(t *testing.T) {
	files := edited(t, unitPath, "steps:\n", "variables: [{name: n, from: -1, to: 1}]\nsteps:\n")
	files["1-services/1-first/data.txt"] = &fstest.MapFile{Data: []byte("${n}")}
	var seen []string
	for seed := range uint64(50) {
		seen = append(seen, string(first(t, files, seed).File("data.txt")))
	}
	slices.Sort(seen)
	if seen = slices.Compact(seen); !slices.Equal(seen, []string{"-1", "0", "1"}) {
		t.Errorf("the numbers from -1 to 1 are %q", seen)
	}
}

// Two units of a student, and two students, have seeds that are not near each other; JSON has them exactly.
func TestUnitSeed(t *testing.T) {
	seen := make(map[uint64]string)
	for seed := range uint64(50) {
		for _, id := range []string{"1.1", "1.2", "1.11", "Ada", "Ada "} {
			s := UnitSeed(seed, id)
			if s != UnitSeed(seed, id) || s >= 1<<53 {
				t.Fatalf("seed %d of %s is %d", seed, id, s)
			}
			if other := seen[s]; other != "" {
				t.Errorf("%d %s and %s have one seed", seed, id, other)
			}
			seen[s] = fmt.Sprint(seed, " ", id)
		}
	}
}

// A unit without variables is the same for all, and ${...} in it stays as it is.
func TestNoVariables(t *testing.T) {
	files := edited(t, unitPath, "solution: curl web", "solution: echo ${port}")
	a, b := first(t, files, 1), first(t, files, 2)
	if a.Differs() || string(a.File(unitFile)) != string(b.File(unitFile)) || a.Steps[2].Solution != "echo ${port}" {
		t.Errorf("the units differ: %v, the solution is %q", a.Differs(), a.Steps[2].Solution)
	}
}

// A value that is no YAML makes a mistake of this draw, with its line.
func TestDrawnMistake(t *testing.T) {
	files := edited(t, unitPath, "minutes: 3\n", "minutes: ${minutes}\nvariables: [{name: minutes, oneOf: [3, many]}]\n")
	good, bad := 0, 0
	for seed := range uint64(20) {
		_, err := Load(files, seed)
		switch {
		case err == nil:
			good++
		case err.Error() == unitPath+`:4: minutes: want an integer, have the string "many"`:
			bad++
		default:
			t.Fatal(err)
		}
	}
	if good == 0 || bad == 0 {
		t.Errorf("%d of the draws are valid, and %d are not", good, bad)
	}
}
