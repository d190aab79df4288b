package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// Problem is one mistake in a lab file.
type Problem struct {
	Field string // its path, "nodes[0].addresses[1]"; empty: the file as a whole
	Text  string
}

// Error is all mistakes in a lab file.
type Error struct {
	File     string
	Problems []Problem // at least one
}

// Error has one line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		field := ""
		if p.Field != "" {
			field = p.Field + ": "
		}
		lines[i] = fmt.Sprintf("%s: %s%s", e.File, field, p.Text)
	}
	return strings.Join(lines, "\n")
}

// maxFile bounds a lab file, in bytes.
const maxFile = 16 << 20

// File is a lab file.
type File struct {
	// Path is the absolute path; empty for a built-in lab, which has no file yet.
	Path string
	Data []byte
	Spec *Spec
	// Guesses are the guesses of a lab derived from objects: see [Derive].
	Guesses []string
}

// Load reads a lab: a file, or a built-in lab by its name.
func Load(nameOrPath string) (*File, error) {
	if slices.Contains(labs.Names(), nameOrPath) {
		data, err := labs.File(nameOrPath)
		if err != nil {
			return nil, err
		}
		spec, err := Parse("lab "+nameOrPath, data)
		if err != nil {
			return nil, err
		}
		return &File{Data: data, Spec: spec}, nil
	}
	if nameOrPath == "" { // an unset shell variable; as a path it would be the current directory
		return nil, fmt.Errorf("the lab's name is empty; built-in labs: %s", strings.Join(labs.Names(), ", "))
	}
	path, err := filepath.Abs(nameOrPath)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err) && !strings.ContainsAny(nameOrPath, "./"):
		return nil, fmt.Errorf("no file and no built-in lab %q%s; built-in labs: %s", nameOrPath, nearest.Hint(nameOrPath, labs.Names()), strings.Join(labs.Names(), ", "))
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", nameOrPath)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", nameOrPath, maxFile>>20)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec, err := Parse(nameOrPath, data)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Data: data, Spec: spec}, nil
}

// FromObjects derives a lab from the Kubernetes objects in files and directories. It has no
// file yet. Its name is o.Name or, if that is empty, that of the first path. It names the
// paths relative to dir, the directory of its future file; empty: absolutely.
func FromObjects(paths []string, dir string, o DeriveOptions) (*File, error) {
	objects, err := manifest.Load(paths)
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = nameFor(paths[0])
	}
	spec, guesses, err := Derive(objects, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(paths, ", "), err)
	}
	for _, p := range paths {
		absolute, err := filepath.Abs(p)
		if err == nil && dir != "" {
			var base string
			if base, err = filepath.Abs(dir); err == nil {
				absolute, err = filepath.Rel(base, absolute)
			}
		}
		if err != nil {
			return nil, err
		}
		spec.Objects = append(spec.Objects, absolute)
	}
	comment := append([]string{"A lab derived from Kubernetes objects. Guesses for what the objects lack:"}, guesses...)
	f := &File{Data: spec.Marshal(comment), Guesses: guesses}
	// Parse what was written, as from any other file.
	if f.Spec, err = Parse("lab of "+strings.Join(paths, ", "), f.Data); err != nil {
		return nil, err
	}
	return f, nil
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// nameFor makes a lab's name of that of a file or directory.
func nameFor(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	name := notInName.ReplaceAllString(strings.ToLower(base), "-")
	if name = strings.Trim(name[:min(len(name), 63)], "-"); name == "" {
		return "objects"
	}
	return name
}

// ObjectPaths are the files and directories with the lab's Kubernetes objects:
// the lab file itself and those it names. The file must have a path.
func (f *File) ObjectPaths() []string {
	paths := []string{f.Path}
	for _, o := range f.Spec.Objects {
		if !filepath.IsAbs(o) {
			o = filepath.Join(filepath.Dir(f.Path), o)
		}
		paths = append(paths, o)
	}
	return paths
}

// Parse reads the first document of a lab file and validates it. The error is an
// [*Error]; name is the file's name in it.
func Parse(name string, data []byte) (*Spec, error) {
	fail := func(format string, args ...any) (*Spec, error) {
		return nil, &Error{File: name, Problems: []Problem{{Text: fmt.Sprintf(format, args...)}}}
	}
	if len(data) > maxFile {
		return fail("larger than %d MiB", maxFile>>20)
	}
	var v any
	if err := yaml.UnmarshalStrict(firstDocument(data), &v); err != nil {
		return fail("%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: "))
	}
	m, ok := v.(map[string]any)
	if !ok || m["apiVersion"] != APIVersion || m["kind"] != Kind {
		return fail("the first document must have \"apiVersion: %s\" and \"kind: %s\"", APIVersion, Kind)
	}
	var d decoder
	s := d.spec(v)
	if len(d.problems) == 0 {
		// A field that did not decode would only be reported twice.
		d.problems = validate(s)
	}
	if len(d.problems) > 0 {
		return nil, &Error{File: name, Problems: d.problems}
	}
	return s, nil
}

// firstDocument cuts off the second YAML document and all after it. Documents
// without content, such as a comment before a separator, do not count.
func firstDocument(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark of some editors
	start, content := 0, false
	for at := 0; at < len(data); {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		line := bytes.TrimRight(data[at:end], " \t\r\n")
		switch {
		case isSeparator(line) && content:
			return data[start:at]
		case isSeparator(line):
			start = at
		case len(line) > 0 && !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")):
			content = true
		}
		at = end
	}
	return data[start:]
}

func isSeparator(line []byte) bool {
	return bytes.Equal(line, []byte("---")) || bytes.HasPrefix(line, []byte("--- "))
}
