package iptables

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// Bounds of the input. Rules need a multiple of their text in memory, and a pipe may never end.
// The kernel takes tables of at most 512 MiB (XT_MAX_TABLE_SIZE, x_tables.c), in which a rule is
// at least twice as long as its text.
const (
	maxText  = 256 << 20 // bytes
	maxLines = 4_000_000
	// maxFaults is the number of faults after which reading stops.
	maxFaults = 1000
)

// readText reads a file up to its first NUL.
func readText(r io.Reader, limit int64) (string, error) {
	var b strings.Builder
	if f, ok := r.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			b.Grow(int(min(info.Size(), limit)))
		}
	}
	chunk := make([]byte, 1<<18)
	for {
		n, err := r.Read(chunk)
		b.Write(chunk[:n])
		switch {
		case int64(b.Len()) > limit:
			return "", fmt.Errorf("the file is larger than %d MiB, the most that is read", limit>>20)
		case err == io.EOF, err == nil && bytes.IndexByte(chunk[:n], 0) >= 0:
			return b.String(), nil
		case err != nil:
			return "", err
		}
	}
}

// forms are the beginnings of files that are not UTF-8 text.
var forms = []struct{ begin, problem, want string }{
	{"\xff\xfe", "the file is UTF-16", "UTF-8: PowerShell's > writes UTF-16"},
	{"\xfe\xff", "the file is UTF-16", "UTF-8"},
	{"\x1f\x8b", "the file is compressed", "what gunzip makes of it"},
	{"BZh", "the file is compressed", "what bunzip2 makes of it"},
	{"\xfd7zXZ", "the file is compressed", "what unxz makes of it"},
	{"\x28\xb5\x2f\xfd", "the file is compressed", "what unzstd makes of it"},
}

// utf8Text returns the text without a byte order mark, or the fault of a file that is not UTF-8.
func utf8Text(text string) (string, error) {
	for _, f := range forms {
		if strings.HasPrefix(text, f.begin) {
			return "", &Error{Line: 1, Column: 1, Problem: f.problem, Want: f.want}
		}
	}
	return strings.TrimPrefix(text, "\xef\xbb\xbf"), nil
}
