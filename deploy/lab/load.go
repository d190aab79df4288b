package lab

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab/derivation"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// maxFile bounds a lab file, in bytes.
const maxFile = 16 << 20

// File is a lab file.
type File struct {
	// Path is the absolute path; empty for a built-in lab, which has no file yet.
	Path string
	Data []byte
	Spec *Spec
	// Guesses are the guesses of a lab derived from objects: see [derivation.Derive].
	Guesses []string
}

// Load reads a lab: a file, or a built-in lab by its name. It reads the Lab only, which says what hosts to make. Objects come later,
// from the file as it is when the lab starts, and once: the reading that starts the lab is the first of those that follow the file.
func Load(nameOrPath string) (*File, error) {
	if slices.Contains(labs.Names(), nameOrPath) {
		data, err := labs.File(nameOrPath)
		if err != nil {
			return nil, err
		}
		spec, err := labfile.Parse("lab "+nameOrPath, data)
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
		return nil, fmt.Errorf("%q is neither a file nor a built-in lab%s; built-in labs: %s", nameOrPath, nearest.Hint(nameOrPath, labs.Names()), strings.Join(labs.Names(), ", "))
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
	spec, err := labfile.Parse(nameOrPath, data)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Data: data, Spec: spec}, nil
}

// FromObjects derives a lab from the Kubernetes objects in files and directories. It has no
// file yet. Its name is o.Name or, if that is empty, that of the first path. It names the
// paths relative to dir, the directory of its future file; empty: absolutely.
func FromObjects(paths []string, dir string, o derivation.Options) (*File, error) {
	objects, err := labfile.Load(paths)
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = nameFor(paths[0])
	}
	spec, guesses, err := derivation.Derive(objects, o)
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
	if f.Spec, err = labfile.Parse("lab of "+strings.Join(paths, ", "), f.Data); err != nil {
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

// DefaultPage is the default address of a lab's page.
const DefaultPage = viewapi.DefaultPage

// RunOptions are the options of [RunUp] and [RunDemo].
type RunOptions struct {
	Lab string // a file, or the name of a built-in lab; ignored with Objects
	// Objects are files and directories with Kubernetes objects to derive the lab from, with
	// the options Derive.
	Objects []string
	Derive  derivation.Options
	// Page is the address of the web page and of the flow API of all nodes: a loopback address
	// and a port; empty: [DefaultPage] or, if that is in use, any port.
	Page   string
	Stdout io.Writer
	Stderr io.Writer
	All    bool      // up: include flows for no service
	Walk   text.Walk // up: below each decision
	Logs   bool      // up: show the daemons' logs
	// KubeProxy is the program to run on nodes with proxy: kube-proxy; see [Options].
	KubeProxy string
	// Observe has kube-proxy serve all nodes that have nfqproxy in the file, and nfqproxyd only observe on every node.
	Observe bool
	// NoHairpinMasquerade overrides the lab's own setting: see [Proxy].
	NoHairpinMasquerade bool
}

// name is the lab as on the command line.
func (o *RunOptions) name() string {
	if len(o.Objects) > 0 {
		return "--objects " + strings.Join(o.Objects, " --objects ")
	}
	return o.Lab
}

// program is the name that this program was started by, for commands to copy.
func program() string {
	if strings.Contains(os.Args[0], "/") {
		return os.Args[0]
	}
	return "nfqproxy"
}

// load finds the lab or makes it.
func (o *RunOptions) load() (*File, error) {
	if len(o.Objects) > 0 {
		return FromObjects(o.Objects, "", o.Derive)
	}
	return Load(o.Lab)
}

// writeGuesses prints the guesses of a lab derived from objects.
func writeGuesses(w io.Writer, f *File) {
	if len(f.Guesses) == 0 {
		return
	}
	fmt.Fprintf(w, "Lab %s is derived from objects. Guesses for what the objects lack:\n", f.Spec.Name)
	for _, g := range f.Guesses {
		fmt.Fprintln(w, "  "+g)
	}
	fmt.Fprintln(w)
}
