package manifest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/distinct"
)

const (
	// maxFileSize bounds what one file may make this process hold, in bytes: that is some
	// 1.2 million endpoints as kubectl prints them.
	maxFileSize = 512 << 20
	// pipeTimeout is how long a pipe may give nothing.
	pipeTimeout = 30 * time.Second
	// standardInput is the path that stands for it.
	standardInput = "-"
)

// file is a manifest file that was read, or that could not be.
type file struct {
	name string
	data []byte
	err  error // not nil: data is not valid
}

// digest identifies a set of files, their names, contents and errors.
type digest [sha256.Size]byte

// input is where manifests are read from.
type input struct {
	paths []string
	once  bool      // pipes can be read
	stdin io.Reader // for the path "-"; nil: it is an error
}

// each reads the files that the paths stand for, each once and one after the other. What
// take gives are paths of further ones.
func (in *input) each(take func(file) []string) {
	seen := make(map[string]bool)
	paths := slices.Clone(in.paths)
	read := func(f file) {
		paths = distinct.Append(paths, take(f)...)
	}
	add := func(name string, inDirectory bool) {
		if clean := filepath.Clean(name); !seen[clean] {
			seen[clean] = true
			data, err := in.read(name, inDirectory)
			if inDirectory && errors.Is(err, fs.ErrNotExist) && notExist(name) {
				return // removed since the directory was listed
			}
			read(file{nameOf(name), data, err})
		}
	}
	for i := 0; i < len(paths); i++ {
		p := paths[i]
		if p == standardInput {
			add(p, false)
			continue
		}
		info, err := os.Stat(p)
		switch {
		case p == "":
			read(file{name: `""`, err: errors.New("the path is empty: want a file or a directory")})
		case err != nil:
			read(file{name: p, err: plain(err)})
		case !info.IsDir():
			add(p, false)
		default:
			names, err := manifestsIn(p)
			for _, n := range names {
				add(n, true)
			}
			if err != nil {
				read(file{name: p, err: plain(err)})
			}
		}
	}
}

// notExist reports whether nothing has the name: a link that leads nowhere does.
func notExist(name string) bool {
	_, err := os.Lstat(name)
	return errors.Is(err, fs.ErrNotExist)
}

// nameOf is how messages call a file.
func nameOf(path string) string {
	if path == standardInput {
		return "standard input"
	}
	return path
}

// manifestsIn lists the manifest files of a directory, sorted by name. Symbolic
// links are followed, for this is how Kubernetes mounts a ConfigMap; its
// "..data" and other names that start with a dot are not manifests. Links that
// lead nowhere, pipes and devices are listed, so that reading them fails. Files below the directory
// are listed only if it is a dump of a cluster.
func manifestsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := dumpIn(dir)
	if names != nil {
		return names, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		name := filepath.Join(dir, e.Name())
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		if names = append(names, name); e.Name() == "nodes.json" {
			for _, p := range clusterInfo {
				names = append(names, filesLike(dir, p)...)
			}
		}
	}
	return names, nil
}

// read reads a file of at most maxFileSize bytes.
func (in *input) read(name string, inDirectory bool) ([]byte, error) {
	if name == standardInput {
		if in.stdin == nil {
			return nil, errors.New("can be read only once: want a file")
		}
		return readAll(in.stdin, maxFileSize, pipeTimeout)
	}
	pipes := in.once && !inDirectory
	return readFile(name, maxFileSize, pipes)
}

// readFile reads a file of at most limit bytes, or a pipe.
func readFile(name string, limit int64, pipes bool) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, plain(err)
	}
	if err := special(info.Mode(), pipes); err != nil {
		return nil, err // opening it may already wait, or do something
	}
	// Without O_NONBLOCK, opening a pipe waits for a writer.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close() // nothing was written
	if info, err = f.Stat(); err != nil {
		return nil, plain(err)
	}
	if err := special(info.Mode(), pipes); err != nil {
		return nil, err
	}
	if info.Mode().IsRegular() && info.Size() > limit {
		return nil, errTooLarge(limit)
	}
	data, err := readAll(f, limit, pipeTimeout)
	if err == nil && len(data) == 0 && info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, errors.New("is a pipe that nothing writes to: want a file, or - for standard input")
	}
	return data, err
}

// special is the error about what is no file, nil for a file.
func special(mode fs.FileMode, pipes bool) error {
	switch {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return errors.New("is a directory: want a file")
	case mode&fs.ModeNamedPipe != 0 && pipes:
		return nil
	case mode&fs.ModeNamedPipe != 0:
		return errors.New("is a pipe, which can be read only once: want a file")
	case mode&fs.ModeSocket != 0:
		return errors.New("is a socket: want a file")
	}
	return errors.New("is a device: want a file")
}

func errTooLarge(limit int64) error {
	return fmt.Errorf("larger than %s: split it into several files", size(limit))
}

// readAll reads at most limit bytes. If the reader is a pipe that can be waited for, it
// must not be silent for longer than the given time.
func readAll(r io.Reader, limit int64, silence time.Duration) ([]byte, error) {
	from := r
	if p, ok := r.(interface{ SetReadDeadline(time.Time) error }); ok {
		r = readerFunc(func(b []byte) (int, error) {
			// It fails on what is never waited for, such as a file.
			_ = p.SetReadDeadline(time.Now().Add(silence))
			return from.Read(b)
		})
	}
	// One byte more than allowed detects files that are too large; the size that
	// stat gives is no use for pipes or for files that grow.
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("no data for %s: check the program that writes to this pipe", silence)
	case err != nil:
		return nil, plain(err)
	case int64(len(data)) > limit:
		return nil, errTooLarge(limit)
	}
	return data, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

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

// sum adds a file to the digest of a set.
func (f *file) sum(h hash.Hash) {
	// Lengths keep ("a","bc") apart from ("ab","c").
	fmt.Fprintf(h, "%d %q %d %q\n", len(f.name), f.name, len(f.data), fmt.Sprint(f.err))
	h.Write(f.data)
}
