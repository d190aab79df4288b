package learn

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var notInFile = regexp.MustCompile(`[^\p{L}\p{M}\p{N}._-]+`)

// fileName makes a file name of a student's name.
func fileName(name string) string {
	return strings.ToLower(strings.Trim(notInFile.ReplaceAllString(name, "-"), "-."))
}

// CourseFile is the name of a course that is handed to students: a ZIP archive.
const CourseFile = "course.zip"

// Class is what [WriteClass] writes.
type Class struct {
	Students []Student
	Units    []string // IDs; empty: all
	Seed     uint64
	// Own is the course, if it is not the built-in one, and Files are its files.
	Own   *Course
	Files fs.FS
}

// WriteClass writes a record without events for each student, with a seed of his own that the seed of the class and his name
// make, and a course that is not built in. It returns the files. None may exist: a class is not overwritten.
func WriteClass(dir string, c Class) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range c.Students {
		names = append(names, fileName(s.Name)+".json")
	}
	if c.Own != nil {
		names = append(names, CourseFile)
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		if _, err := os.Lstat(file); err == nil {
			return nil, fmt.Errorf("%s exists: give another directory", file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		files = append(files, file)
	}
	if c.Own != nil {
		text, err := c.Own.archive(c.Files)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, CourseFile), text, 0o644); err != nil {
			return nil, err
		}
	}
	for i, s := range c.Students {
		r := &Record{Version: RecordVersion, Student: s.Name, Seed: UnitSeed(c.Seed, s.Name), Units: c.Units, OwnCourse: c.Own != nil, Events: []Event{}, path: files[i]}
		if err := r.Write(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// archive packs the course into a ZIP archive, without files that belong to no unit.
func (c *Course) archive(files fs.FS) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	add := func(name string, text []byte) error {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write(text)
		}
		return err
	}
	for _, chapter := range c.Chapters {
		name := path.Join(path.Dir(chapter.Units[0].dir), chapterFile)
		text, err := fs.ReadFile(files, name)
		if err == nil {
			err = add(name, text)
		}
		if err != nil {
			return nil, err
		}
		for _, u := range chapter.Units {
			for _, name := range slices.Sorted(maps.Keys(u.templates)) {
				if err := add(path.Join(u.dir, name), u.templates[name]); err != nil {
					return nil, err
				}
			}
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
