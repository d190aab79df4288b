package iptables

import (
	"strings"
	"testing"
)

// TestReadEncodings reads files as Windows and archives leave them.
func TestReadEncodings(t *testing.T) {
	const rules = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n"
	for _, c := range []struct{ name, text, fault string }{
		{"a mark in front", "\ufeff" + rules, ""},
		{"line ends of Windows", strings.ReplaceAll(rules, "\n", "\r\n"), ""},
		{"UTF-16 of PowerShell", "\xff\xfe*\x00f\x00", "line 1, column 1: the file is UTF-16: want UTF-8: PowerShell's > writes UTF-16"},
		{"UTF-16, big end first", "\xfe\xff\x00*\x00f", "line 1, column 1: the file is UTF-16: want UTF-8"},
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
