package iptables

import (
	"encoding/binary"
	"strings"
	"testing"
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
		{"gzip", "\x1f\x8b\x08\x00", "line 1, column 1: the file is compressed: want what gunzip makes of it"},
	} {
		d, err := Read(strings.NewReader(c.text), Options{})
		switch {
		case c.fault != "" && (err == nil || err.Error() != c.fault):
			t.Errorf("%s: error %v, want %s", c.name, err, c.fault)
		case c.fault == "" && err != nil:
			t.Errorf("%s: error %v", c.name, err)
		case c.fault == "" && (len(d.Tables) != 1 || d.Tables[0].Chains[0].Policy != PolicyDrop):
			t.Errorf("%s: read as %v", c.name, d)
		}
	}
}

// wide is ASCII as UTF-16.
func wide(text string, order binary.AppendByteOrder) string {
	var b []byte
	for _, r := range text {
		b = order.AppendUint16(b, uint16(r))
	}
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
	if _, err := readText(lines, limit); err == nil || err.Error() != "the file is larger than 4 MiB, the most that is read" || lines.read > 2*limit {
		t.Errorf("lines: %v after %d bytes", err, lines.read)
	}
	zeros := &endless{text: "\x00"}
	if _, err := Read(zeros, Options{}); err == nil || !strings.Contains(err.Error(), "line 1, column 1: a NUL byte") || zeros.read > limit {
		t.Errorf("NUL: %v after %d bytes", err, zeros.read)
	}
}

// TestFaultsAreBounded: a large file of another kind is not read to its end.
func TestFaultsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"dump":    "*filter\n" + strings.Repeat("nonsense\n", 100*maxFaults),
		"listing": "Chain INPUT (policy ACCEPT)\ntarget prot opt source destination\n" + strings.Repeat("nonsense\n", 100*maxFaults),
	} {
		_, err := Read(strings.NewReader(text), Options{})
		if err == nil || !strings.HasSuffix(err.Error(), "and 989 more") && !strings.HasSuffix(err.Error(), "and 990 more") {
			t.Errorf("%s: %.80v ... %v", name, err, err.Error()[max(0, len(err.Error())-30):])
		}
	}
	if _, err := ParseSets(strings.NewReader(strings.Repeat("nonsense\n", 100*maxFaults))); err == nil || !strings.HasSuffix(err.Error(), "and 989 more") {
		t.Errorf("sets: %v", err)
	}
}
