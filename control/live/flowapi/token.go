package flowapi

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// shortestToken is the minimum length of a token, so that it cannot be guessed.
const shortestToken = 16

// longestToken bounds the file. Headers have less room.
const longestToken = 4 << 10

// ReadToken reads the token from a file that contains only the token and white space around it.
// Errors name the flag of the file. The file may be a pipe.
func ReadToken(flag, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, longestToken+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	token := string(bytes.TrimSpace(b))
	wrong := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) // not fit for a header
	switch {
	case wrong >= 0:
		return "", fmt.Errorf("%s %s: want one token on one line, of printable ASCII characters without spaces", flag, file)
	case len(b) > longestToken:
		return "", fmt.Errorf("%s %s: the file exceeds %d bytes: want one token", flag, file, longestToken)
	case len(token) < shortestToken:
		return "", fmt.Errorf("%s %s: the token has %d characters: want at least %d; generate one with: openssl rand -hex 32", flag, file, len(token), shortestToken)
	}
	return token, nil
}
