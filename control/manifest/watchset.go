package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// watchSet is what to watch: in each directory, the entries whose change may
// change what the manifest paths lead to. Directories are physical: no part of
// their paths is a symbolic link.
type watchSet map[string]*entries

// entries are the interesting names in a directory.
type entries struct {
	all   bool // a directory of manifests: every name
	names map[string]bool
	// required: manifests are right here, so a change that cannot be seen
	// would be missed.
	required bool
}

// watchSetOf follows each path, and each link in a directory of manifests, as
// the kernel would, and notes every entry that is met on the way: a file may
// change because it, a link that leads to it or a directory above is replaced.
func watchSetOf(paths []string) watchSet {
	in := make(watchSet)
	for _, p := range paths {
		dir, ok := in.follow(p)
		if !ok {
			continue
		}
		e := in.at(dir)
		e.all, e.required = true, true
		// Errors show when the directory is read for its manifests.
		names, _ := manifestsIn(dir)
		for _, n := range names {
			in.follow(n)
		}
	}
	return in
}

// has reports whether a change of the entry with this path matters.
func (in watchSet) has(path string) bool {
	if e, ok := in[filepath.Dir(path)]; ok && (e.all || e.names[filepath.Base(path)]) {
		return true
	}
	// An event about a watched directory itself: it was removed or renamed.
	_, ok := in[path]
	return ok
}

func (in watchSet) at(dir string) *entries {
	e, ok := in[dir]
	if !ok {
		e = &entries{names: make(map[string]bool)}
		in[dir] = e
	}
	return e
}

// maxLinks is the kernel's limit to the links in one path (MAXSYMLINKS).
const maxLinks = 40

// follow notes all entries on the way that a path goes. If it leads to a
// directory, follow gives that directory's physical path.
func (in watchSet) follow(path string) (string, bool) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", false // no working directory; reading the path fails too
	}
	const root = string(filepath.Separator)
	dir, rest, links := root, split(absolute), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			dir = filepath.Dir(dir)
			continue
		}
		e := in.at(dir)
		e.names[name] = true
		entry := filepath.Join(dir, name)
		info, err := os.Lstat(entry)
		if err != nil {
			e.required = true // it will appear here, if at all
			return "", false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			if len(rest) == 0 && !info.IsDir() {
				e.required = true
				return "", false
			}
			dir = entry
			continue
		}
		target, err := os.Readlink(entry)
		if links++; err != nil || links > maxLinks {
			return "", false
		}
		if filepath.IsAbs(target) {
			dir = root
		}
		rest = slices.Concat(split(target), rest)
	}
	return dir, true
}

// split takes a path apart at its slashes, without cleaning it: ".." after a
// link is not the directory the link is in.
func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, string(filepath.Separator)), func(s string) bool {
		return s == "" || s == "."
	})
}
