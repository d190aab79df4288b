package results

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// PageFile is the page in the directory of documentation, and publishedDir that of its results: a
// file for each proxy.
const (
	PageFile     = "conformance.md"
	publishedDir = "conformance"
)

// Publish writes a run into the directory of documentation, as that of a proxy.
func Publish(docs string, run Named) error {
	dir := filepath.Join(docs, publishedDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return run.Write(filepath.Join(dir, run.Name+".tsv"))
}

// ReadPublished reads the results in the directory of documentation: nfqproxy's first.
func ReadPublished(docs string) ([]Named, error) {
	files, err := filepath.Glob(filepath.Join(docs, publishedDir, "*.tsv"))
	if err != nil {
		return nil, err
	}
	var runs []Named
	for _, file := range files {
		run, err := Read(file)
		if err != nil {
			return nil, err
		}
		runs = append(runs, Named{strings.TrimSuffix(filepath.Base(file), ".tsv"), run})
	}
	i := slices.IndexFunc(runs, func(r Named) bool { return r.Name == "nfqproxy" })
	if i < 0 {
		return nil, fmt.Errorf("%s has no results of nfqproxy", filepath.Join(docs, publishedDir))
	}
	own := runs[i]
	return slices.Insert(slices.Delete(runs, i, i+1), 0, own), nil
}

// WritePage writes the page about the results in the directory of documentation.
func WritePage(docs string) error {
	runs, err := ReadPublished(docs)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, PageFile), []byte(Page(runs)), 0o644)
}
