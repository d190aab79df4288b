package history

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of files. "_" is in no node's name.
//
//	2026-01-02T15Z_node-a.parquet         an hour
//	2026-01-02T15Z_node-a_000012.parquet  a part of an hour that is not over, or was not merged yet
const (
	hourFormat = "2006-01-02T15Z"
	extension  = ".parquet"
	// unfinished is the end of the name of a file that is being written, and corrupt that of one that cannot be read.
	unfinished = ".unfinished"
	corrupt    = ".corrupt"
)

// file is a file of a directory.
type file struct {
	path     string
	hour     time.Time // its beginning
	recorder string
	part     int // from 1; 0: the whole hour
	corrupt  bool
	size     int64
}

// nameOf is the name of a file.
func nameOf(hour time.Time, recorder string, part int) string {
	name := hour.UTC().Format(hourFormat) + "_" + recorder
	if part > 0 {
		name += fmt.Sprintf("_%06d", part)
	}
	return name + extension
}

// parseName is the inverse of nameOf; ok is false for other files.
func parseName(name string) (f file, ok bool) {
	name, bad := strings.CutSuffix(name, corrupt)
	rest, is := strings.CutSuffix(name, extension)
	parts := strings.Split(rest, "_")
	if !is || len(parts) < 2 || len(parts) > 3 || parts[1] == "" {
		return file{}, false
	}
	hour, err := time.Parse(hourFormat, parts[0])
	if err != nil {
		return file{}, false
	}
	f = file{hour: hour, recorder: parts[1], corrupt: bad}
	if len(parts) == 3 {
		if f.part, err = strconv.Atoi(parts[2]); err != nil || f.part < 1 {
			return file{}, false
		}
	}
	return f, true
}

// list returns the files of a directory, the oldest first, and with them those that were set aside.
func list(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range entries {
		f, ok := parseName(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		f.path, f.size = filepath.Join(dir, e.Name()), info.Size()
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(a.hour.Compare(b.hour), cmp.Compare(a.part, b.part), cmp.Compare(a.recorder, b.recorder))
	})
	return files, nil
}

// syncDirectory makes renamed files durable.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
