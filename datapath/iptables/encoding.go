package iptables

import "bytes"

// forms are how files begin that are no text in UTF-8.
var forms = []struct{ begin, problem, want string }{
	{"\xff\xfe", "the file is UTF-16", "UTF-8: PowerShell's > writes UTF-16"},
	{"\xfe\xff", "the file is UTF-16", "UTF-8"},
	{"\x1f\x8b", "the file is compressed", "what gunzip makes of it"},
	{"BZh", "the file is compressed", "what bunzip2 makes of it"},
	{"\xfd7zXZ", "the file is compressed", "what unxz makes of it"},
	{"\x28\xb5\x2f\xfd", "the file is compressed", "what unzstd makes of it"},
}

// utf8Text is the text without the mark that editors put in front of UTF-8, or the fault of
// a file that is no such text.
func utf8Text(text []byte) ([]byte, error) {
	for _, f := range forms {
		if bytes.HasPrefix(text, []byte(f.begin)) {
			return nil, &Error{Line: 1, Column: 1, Problem: f.problem, Want: f.want}
		}
	}
	return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), nil
}
