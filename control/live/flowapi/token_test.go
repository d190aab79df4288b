package flowapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const one = ": want one token on one line, of printable ASCII characters without spaces"
	const long = " characters: want at least 16; generate one with: openssl rand -hex 32"
	for content, want := range map[string]string{ // the token, or the error behind the file's name
		"0123456789abcdef":                   "0123456789abcdef",
		" 0123456789ab+/==\r\n":              "0123456789ab+/==",
		"0123456789abcde\n":                  ": the token has 15" + long,
		"":                                   ": the token has 0" + long,
		"0123456789abcdef 0123456789abcdef":  one,
		"0123456789abcdef\n0123456789abcdef": one,
		"0123456789abcdefé":                  one,
		strings.Repeat("x", 5000):            ": the file exceeds 4096 bytes: want one token",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadToken("--token-file", file)
		if err != nil {
			want, got = "--token-file "+file+want, err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", content, got, want)
		}
	}
	missing := file + ".none"
	if _, err := ReadToken("--flow-api-token-file", missing); err == nil || err.Error() != "--flow-api-token-file: open "+missing+": no such file or directory" {
		t.Errorf("error %v", err)
	}
}
