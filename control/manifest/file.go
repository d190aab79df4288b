package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxFileSize bounds what one file may make this process hold, in bytes. The
// objects of a cluster of some thousand pods are smaller.
const maxFileSize = 64 << 20

// file is a manifest file that was read, or that could not be.
type file struct {
	name string
	data []byte
	err  error // not nil: data is not valid
}

// digest identifies a set of files, their names, contents and errors.
type digest [sha256.Size]byte

// readFiles reads all files the paths stand for, each once.
func readFiles(paths []string) []file {
	var files []file
	seen := make(map[string]bool)
	add := func(name string) {
		if clean := filepath.Clean(name); !seen[clean] {
			seen[clean] = true
			data, err := readFile(name, maxFileSize)
			files = append(files, file{name, data, err})
		}
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
			files = append(files, file{name: p, err: plain(err)})
		case !info.IsDir():
			add(p)
		default:
			names, err := manifestsIn(p)
			for _, n := range names {
				add(n)
			}
			if err != nil {
				files = append(files, file{name: p, err: plain(err)})
			}
		}
	}
	return files
}

// manifestsIn lists the manifest files of a directory, sorted by name. Symbolic
// links are followed, for this is how Kubernetes mounts a ConfigMap; its
// "..data" and other names that start with a dot are not manifests. A link that
// leads nowhere is listed, so that reading it tells.
func manifestsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		name := filepath.Join(dir, e.Name())
		// Anything but a regular file (a subdirectory, a pipe that would block)
		// is none of ours.
		if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
			continue
		}
		names = append(names, name)
	}
	return names, nil
}

// readFile reads a file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	// One byte more than allowed tells too large from just right; the size that
	// stat gives is no use for pipes or for files that grow.
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, plain(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %s", size(limit))
	}
	return data, nil
}

// size writes a number of bytes for people.
func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// plain takes the path out of an error, because [Error] names the file already.
func plain(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// sum gives the digest of files.
func sum(files []file) digest {
	h := sha256.New()
	for _, f := range files {
		// Lengths keep ("a","bc") apart from ("ab","c").
		fmt.Fprintf(h, "%d %q %d %q\n", len(f.name), f.name, len(f.data), fmt.Sprint(f.err))
		h.Write(f.data)
	}
	return digest(h.Sum(nil))
}
