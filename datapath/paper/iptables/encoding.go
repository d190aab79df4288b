package iptables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
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

// readText reads a file up to its first NUL. UTF-16 becomes UTF-8.
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
		wide := utf16Order(b.String())
		switch {
		case int64(b.Len()) > limit:
			return "", fmt.Errorf("the file is larger than %d MiB, the most that is read", limit>>20)
		case err == io.EOF && wide != nil:
			return fromUTF16(b.String(), wide), nil
		case err == io.EOF, err == nil && wide == nil && bytes.IndexByte(chunk[:n], 0) >= 0:
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

func fromUTF16(text string, order binary.ByteOrder) string {
	units := make([]uint16, len(text)/2)
	for i := range units {
		units[i] = order.Uint16([]byte(text[2*i : 2*i+2]))
	}
	return strings.TrimPrefix(string(utf16.Decode(units)), "\ufeff")
}

// forms are the beginnings of files that are not text.
var forms = []struct{ begin, problem, want string }{
	{"\x1f\x8b", "the file is compressed", "what gunzip makes of it"},
	{"BZh", "the file is compressed", "what bunzip2 makes of it"},
	{"\xfd7zXZ", "the file is compressed", "what unxz makes of it"},
	{"\x28\xb5\x2f\xfd", "the file is compressed", "what unzstd makes of it"},
}

// utf8Text returns the text without a byte order mark, or the fault of a file that is no text. Line ends of a lone CR are those
// of the old Mac, and of terminals.
func utf8Text(text string) (string, error) {
	for _, f := range forms {
		if strings.HasPrefix(text, f.begin) {
			return "", &Error{Line: 1, Column: 1, Problem: f.problem, Want: f.want}
		}
	}
	if strings.IndexByte(text, '\n') < 0 {
		text = strings.ReplaceAll(text, "\r", "\n")
	}
	return strings.TrimPrefix(text, "\xef\xbb\xbf"), nil
}

// windows1252 are the characters of the bytes 0x80 to 0x9f.
var windows1252 = []rune("€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ")

// fromWindows1252 returns a line with the bytes that are not UTF-8 read as Windows wrote them.
func fromWindows1252(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); {
		r, n := utf8.DecodeRuneInString(line[i:])
		if r == utf8.RuneError && n == 1 {
			if r = rune(line[i]); r < 0xa0 {
				r = windows1252[r-0x80]
			}
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}
