package licenses

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/github/go-spdx/v2/spdxexp"
	"github.com/google/licensecheck"
)

// File is a file with terms or notices.
type File struct{ Name, Text string } // the name within its module, with slashes

var (
	// licence files grant rights.
	licence = regexp.MustCompile(`(?i)^((un)?licen[sc]e|copying)([-._].*)?$`)
	// notice files go with them: the Apache License requires NOTICE, and PATENTS adds to Go's licence.
	notice = regexp.MustCompile(`(?i)^(notice|patents|copyright)([-._].*)?$`)
	// code has such names, too.
	code = regexp.MustCompile(`(?i)\.(go|sh|py|js|ya?ml|json|toml|tmpl|svg|png)$`)
)

// grants reports whether the file is a licence of the whole module.
func (f File) grants() bool { return licence.MatchString(f.Name) }

// filesOf are the licences and notices of a module: in its root directory, and those of copied code in others.
// Which packages are linked is not recorded in a program; a text too many does no harm. The remedy is for a module without licence.
func filesOf(dir, remedy string) ([]File, error) {
	var below []File
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir() || p == dir:
			return nil
		case d.Name() == "testdata" || strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		}
		files, err := read(dir, p)
		below = append(below, files...)
		return err
	})
	if err != nil {
		return nil, err
	}
	files, err := filesIn(dir, remedy)
	return append(files, below...), err
}

// filesIn are those of the root directory alone. There has to be a licence.
func filesIn(dir, remedy string) ([]File, error) {
	files, err := read(dir, dir)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(files, File.grants) {
		return nil, fmt.Errorf("%s has no file LICENSE or COPYING: %s", dir, remedy)
	}
	return files, nil
}

// read returns the files of one directory of a module: licences, then notices, each by name.
func read(root, dir string) (files []File, err error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return nil, err
	}
	for _, kind := range []*regexp.Regexp{licence, notice} {
		for _, e := range entries {
			if !e.Type().IsRegular() || code.MatchString(e.Name()) || !kind.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			files = append(files, File{Name: path.Join(filepath.ToSlash(below), e.Name()), Text: string(text)})
		}
	}
	return files, nil
}

// enough is the share of a text, in percent, that has to be that of known licences; the rest is names and years.
const enough = 75

// stated is the licence in the form that SPDX recommends for files.
var stated = regexp.MustCompile(`(?m)SPDX-License-Identifier: *([A-Za-z0-9.+() -]*[A-Za-z0-9.+)])`)

// Identifier is the licence of a module as SPDX writes it. It is empty unless the module has one known licence, or
// states how several apply: texts alone leave open whether all apply or the user has the choice.
func (m Module) Identifier() string {
	found := m.found()
	if len(found) != 1 {
		return ""
	}
	// The library has names that SPDX has not.
	if known, _ := spdxexp.ValidateLicenses(found); !known {
		return ""
	}
	return found[0]
}

// found are the module's licences: what its files state, or the texts that are in them. There are none if a text is unknown.
func (m Module) found() (ids []string) {
	for _, f := range m.Files {
		if !f.grants() {
			continue
		}
		if s := stated.FindStringSubmatch(f.Text); s != nil {
			ids = append(ids, s[1])
			continue
		}
		text := licensecheck.Scan([]byte(f.Text))
		if text.Percent < enough {
			return nil
		}
		for _, match := range text.Match {
			if !match.IsURL {
				ids = append(ids, match.ID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
