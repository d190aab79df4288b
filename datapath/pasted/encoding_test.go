package pasted

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"
)

// TestReadEncodings reads files as Windows and archives leave them.
func TestReadEncodings(t *testing.T) {
	const rules = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n"
	for _, c := range []struct{ name, text, fault string }{
		{"a mark in front", "\ufeff" + rules, ""},
		{"line ends of Windows", strings.ReplaceAll(rules, "\n", "\r\n"), ""},
		{"UTF-16 of PowerShell", "\xff\xfe" + wide(rules, binary.LittleEndian), ""},
		{"UTF-16, big end first", "\xfe\xff" + wide(rules, binary.BigEndian), ""},
		{"UTF-16 without a mark", wide(rules, binary.LittleEndian), ""},
		{"UTF-16 without a mark, big end first", wide(rules, binary.BigEndian), ""},
		{"line ends of the old Mac", strings.ReplaceAll(rules, "\n", "\r"), ""},
		{"gzip", "\x1f\x8b\x08\x00", "the file is compressed: want what gunzip makes of it"},
	} {
		text, err := Read(strings.NewReader(c.text))
		if got := strings.ReplaceAll(text, "\r", ""); c.fault == "" && got != rules || (c.fault != "") != (err != nil) || err != nil && err.Error() != c.fault {
			t.Errorf("%s: %q, error %v", c.name, text, err)
		}
	}
}

func wide(text string, order binary.ByteOrder) string {
	b, _ := binary.Append(nil, order, utf16.Encode([]rune(text)))
	return string(b)
}

// endless gives the same text for ever, and counts what was taken.
type endless struct {
	text string
	read int
}

func (e *endless) Read(b []byte) (int, error) {
	for n := 0; ; {
		if n+len(e.text) > len(b) {
			e.read += n
			return n, nil
		}
		n += copy(b[n:], e.text)
	}
}

// TestReadBounds: a pipe that never ends is not read for ever.
func TestReadBounds(t *testing.T) {
	const limit = 4 << 20
	lines := &endless{text: "# a comment\n"}
	if _, err := readUpTo(lines, limit); err == nil || err.Error() != "the file is larger than 4 MiB, the most that is read" || lines.read > 2*limit {
		t.Errorf("lines: %v after %d bytes", err, lines.read)
	}
	many := strings.NewReader(strings.Repeat("\n", maxLines+1))
	if _, err := Read(many); err == nil || err.Error() != "the file has more than 4000000 lines, the most that is read" {
		t.Errorf("many lines: %v", err)
	}
	zeros := &endless{text: "\x00"}
	if text, err := Read(zeros); err != nil || strings.Trim(text, "\x00") != "" || zeros.read > limit {
		t.Errorf("NUL: %v after %d bytes", err, zeros.read)
	}
}
