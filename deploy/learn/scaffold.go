package learn

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

//go:embed scaffold
var scaffold embed.FS

// Schema is the JSON Schema of unit.yaml, for editors. It is made of the types of this package.
//
//go:embed unit.schema.json
var Schema []byte

// New writes the files of a unit to start from, and of its chapter if that is new. The path ends with the directories of
// chapter and unit, as 1-services/1-first. Nothing is overwritten. It returns the files.
func New(dir string) (files []string, _ error) {
	chapter := filepath.Dir(dir)
	for _, d := range []string{dir, chapter} {
		if !numberedName.MatchString(filepath.Base(d)) {
			return nil, fmt.Errorf("%s: want a path that ends with the directories of a chapter and of a unit, such as my-course/1-services/1-first", dir)
		}
	}
	if _, err := os.Lstat(dir); err == nil {
		return nil, fmt.Errorf("%s exists: give another directory", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"chapter.yaml", unitFile, textFile, "lab.yaml"} {
		to := filepath.Join(dir, name)
		if name == "chapter.yaml" {
			to = filepath.Join(chapter, name)
			if _, err := os.Lstat(to); err == nil {
				continue
			}
		}
		data, err := scaffold.ReadFile(path.Join("scaffold", name))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return nil, err
		}
		files = append(files, to)
	}
	return files, nil
}
