package learn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var notInFile = regexp.MustCompile(`[^\p{L}\p{M}\p{N}._-]+`)

// fileName is a student's name as that of a file.
func fileName(name string) string {
	return strings.ToLower(strings.Trim(notInFile.ReplaceAllString(name, "-"), "-."))
}

// WriteClass writes a record without events for each student, with a seed of his own that the seed of the class and his name
// make. It returns the files. None may exist: a class is not overwritten.
func WriteClass(dir string, students []Student, units []string, seed uint64) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, s := range students {
		file := filepath.Join(dir, fileName(s.Name)+".json")
		if _, err := os.Lstat(file); err == nil {
			return nil, fmt.Errorf("%s exists: give another directory", file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		files = append(files, file)
	}
	for i, s := range students {
		r := &Record{Version: RecordVersion, Student: s.Name, Seed: UnitSeed(seed, s.Name), Units: units, Events: []Event{}, path: files[i]}
		if err := r.Write(); err != nil {
			return nil, err
		}
	}
	return files, nil
}
