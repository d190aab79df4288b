package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Layer is a file system, whose files all belong to root. Its directories follow from the
// files. The zero Layer is empty.
type Layer struct {
	files map[string]file // by path, without the leading slash
}

// file is a file of a layer: a copy of the source, a symbolic link to the target, or the
// text. A path that ends with a slash is a directory.
type file struct {
	source, target, text string
	mode                 fs.FileMode
}

func (l *Layer) put(at string, f file) {
	if l.files == nil {
		l.files = make(map[string]file)
	}
	l.files[strings.TrimPrefix(at, "/")] = f
}

// Copy adds a copy of a file, with its permissions. A symbolic link is followed.
func (l *Layer) Copy(at, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", source)
	}
	l.put(at, file{source: source, mode: info.Mode().Perm()})
	return nil
}

// Text adds a file with the text.
func (l *Layer) Text(at, text string, mode fs.FileMode) { l.put(at, file{text: text, mode: mode}) }

// Link adds a symbolic link.
func (l *Layer) Link(at, target string) { l.put(at, file{target: target, mode: 0o777}) }

// Dir adds a directory.
func (l *Layer) Dir(at string, mode fs.FileMode) {
	l.put(strings.TrimSuffix(at, "/")+"/", file{mode: mode})
}

// Programs adds programs of this machine, found in PATH, to /bin, and the libraries that they
// are linked with to where they are here.
func (l *Layer) Programs(names ...string) error {
	for _, name := range names {
		program, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("program %s is missing on this machine: %w", name, err)
		}
		if err := l.Copy("/bin/"+name, program); err != nil {
			return err
		}
		// ldd fails for scripts and static programs, which need no library.
		out, _ := exec.Command("ldd", program).Output()
		for _, library := range libraries(string(out)) {
			if err := l.Copy(library, library); err != nil {
				return fmt.Errorf("library of %s: %w", name, err)
			}
		}
	}
	return nil
}

// inLdd is a path in the output of ldd(1): "libc.so.6 => /lib/libc.so.6 (0x...)", or
// "/lib64/ld-linux-x86-64.so.2 (0x...)".
var inLdd = regexp.MustCompile(`(?m)(?:^|\s)(/\S+) \(0x`)

func libraries(ldd string) (paths []string) {
	for _, m := range inLdd.FindAllStringSubmatch(ldd, -1) {
		paths = append(paths, m[1])
	}
	return paths
}

// Glob adds the files that match a pattern (see [filepath.Glob]), to where they are here.
func (l *Layer) Glob(pattern string) error {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, m := range matches {
		if err := l.Copy(m, m); err != nil {
			return err
		}
	}
	return nil
}

// write writes the layer as a tar archive: directories before what they contain, without
// times.
func (l *Layer) write(to io.Writer) error {
	all := maps.Clone(l.files)
	for name := range l.files {
		for dir := path.Dir(strings.TrimSuffix(name, "/")); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir+"/"]; !ok {
				all[dir+"/"] = file{mode: 0o755}
			}
		}
	}
	out := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := all[name].write(out, name); err != nil {
			return err
		}
	}
	return out.Close()
}

func (f file) write(out *tar.Writer, name string) error {
	header := &tar.Header{Name: name, Mode: int64(f.mode.Perm()), Typeflag: tar.TypeReg, Size: int64(len(f.text))}
	if f.mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	var content io.Reader = strings.NewReader(f.text)
	switch {
	case strings.HasSuffix(name, "/"):
		header.Typeflag = tar.TypeDir
	case f.target != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.target
	case f.source != "":
		source, err := os.Open(f.source)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), source
	}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(out, content)
	return err
}

// Move moves a file within the layer.
func (l *Layer) Move(from, to string) {
	f := l.files[strings.TrimPrefix(from, "/")]
	delete(l.files, strings.TrimPrefix(from, "/"))
	l.put(to, f)
}
