package visible

import "testing"

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"default/web => 10.0.0.1:80 ✓ ä\n": "default/web => 10.0.0.1:80 ✓ ä\n",
		"a\tb":                             "a\tb",
		"\x1b[31mred\x1b[0m":               `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\a":                   `\x1b]0;title\x07`,
		"over\rwritten\b\x00":              `over\rwritten\x08\x00`,
		"\x7f \u009b31m \x9b31m":           `\u007f \u009b31m \x9b31m`,
		"a\u202eb\u2066c\u2069\u200f":      `a\u202eb\u2066c\u2069\u200f`,
		"half \xe2\x9c":                    `half \xe2\x9c`,
		"\ufffd is a character":            "\ufffd is a character",
	} {
		if got := Quote(text); got != want {
			t.Errorf("Quote(%q) = %q, want %q", text, got, want)
		}
	}
}
