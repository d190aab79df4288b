package pasted

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf16"
)

// Bounds of the input. Rules need a multiple of their text in memory, and a pipe may never end.
// The kernel takes tables of at most 512 MiB (XT_MAX_TABLE_SIZE, x_tables.c), in which a rule is
// at least twice as long as its text.
const (
	maxText  = 256 << 20 // bytes
	maxLines = 4_000_000
)

// Read reads and decodes a file up to its first NUL. Line ends of a lone CR are those of the old Mac, and of terminals. The error
// is that of r or of Decode, or that the file is too large.
func Read(r io.Reader) (string, error) { return readUpTo(r, maxText) }

func readUpTo(r io.Reader, limit int64) (string, error) {
	text, err := readAll(r, limit)
	if err != nil {
		return "", err
	}
	if text, err = Decode(text); err != nil {
		return "", err
	}
	switch lines := strings.Count(text, "\n"); {
	case lines > maxLines:
		return "", fmt.Errorf("the file has more than %d lines, the most that is read", maxLines)
	case lines == 0:
		text = strings.ReplaceAll(text, "\r", "\n")
	}
	return text, nil
}

func readAll(r io.Reader, limit int64) (string, error) {
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
		case err == io.EOF, err == nil && bytes.IndexByte(chunk[:n], 0) >= 0 && utf16Order(b.String()) == nil:
			return b.String(), nil
		case err != nil:
			return "", err
		}
	}
}

// utf16Order is the order of bytes of a text in UTF-16, as PowerShell's > writes it; nil: it is none.
func utf16Order(text string) binary.ByteOrder {
	switch {
	case strings.HasPrefix(text, "\xff\xfe"):
		return binary.LittleEndian
	case strings.HasPrefix(text, "\xfe\xff"):
		return binary.BigEndian
	case len(text) < 4:
	case text[0] != 0 && text[1] == 0 && text[2] != 0 && text[3] == 0:
		return binary.LittleEndian
	case text[0] == 0 && text[1] != 0 && text[2] == 0 && text[3] != 0:
		return binary.BigEndian
	}
	return nil
}

// compressed are the beginnings of compressed files, with the program for each.
var compressed = []struct{ begin, program string }{
	{"\x1f\x8b", "gunzip"}, {"BZh", "bunzip2"}, {"\xfd7zXZ", "unxz"}, {"\x28\xb5\x2f\xfd", "unzstd"},
}

// Decode is a file in UTF-8, without a byte order mark. The error is that it is compressed.
func Decode(file string) (string, error) {
	for _, c := range compressed {
		if strings.HasPrefix(file, c.begin) {
			return "", fmt.Errorf("the file is compressed: want what %s makes of it", c.program)
		}
	}
	return decoded(file), nil
}

func decoded(text string) string {
	if order := utf16Order(text); order != nil {
		units := make([]uint16, len(text)/2)
		for i := range units {
			units[i] = order.Uint16([]byte(text[2*i : 2*i+2]))
		}
		text = string(utf16.Decode(units))
	}
	return strings.TrimPrefix(text, "\ufeff")
}
