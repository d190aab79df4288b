package learn

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What New writes is a valid course, with variables; a second unit leaves the chapter as it is.
func TestNew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my-course")
	unit := filepath.Join(dir, "3-services", "1-first")
	files, err := New(unit)
	chapter := filepath.Join(dir, "3-services", "chapter.yaml")
	if want := []string{chapter, filepath.Join(unit, "unit.yaml"), filepath.Join(unit, "text.md"), filepath.Join(unit, "lab.yaml")}; err != nil || !slices.Equal(files, want) {
		t.Fatalf("the files are %q, %v, want %q", files, err, want)
	}
	if err := os.WriteFile(chapter, []byte(strings.Replace(small["1-services/chapter.yaml"], "Services", "Mine", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(dir, "3-services", "2-second")
	if files, err := New(second); err != nil || len(files) != 3 {
		t.Fatalf("the files of a second unit are %q, %v", files, err)
	}
	for seed := range uint64(20) {
		c := loaded(t, os.DirFS(dir), seed)
		if c.Chapters[0].Title != "Mine" || len(c.Units()) != 2 || !c.Units()[0].Differs() {
			t.Fatalf("the course is %+v", c.Chapters[0])
		}
	}
	before, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(unit); err == nil || err.Error() != unit+" exists: give another directory" {
		t.Errorf("a unit is written again: %v", err)
	}
	if after, err := os.ReadFile(files[1]); err != nil || string(after) != string(before) {
		t.Errorf("the unit has changed: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"first", "1-first", "services/1-first", "1-services/first", "1-services/1-First", "0-services/1-first", ""} {
		path = filepath.Join(dir, path)
		if _, err := New(path); err == nil || !strings.HasPrefix(err.Error(), path+": want a path that ends with the directories of a chapter and of a unit") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := New(filepath.Join(file, "1-services", "1-first")); err == nil || strings.Contains(err.Error(), "exists") {
		t.Errorf("in a file: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}
