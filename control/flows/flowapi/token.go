package flowapi

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// shortestToken is how long a token has to be: one that can be guessed is none.
const shortestToken = 16

// longestToken bounds the file. Headers have less room.
const longestToken = 4 << 10

// ReadToken reads the token from a file that has nothing else, but for white space around it.
// Errors name the flag that has the file. The file may be a pipe.
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
		return "", fmt.Errorf("%s %s: the file is longer than %d bytes: want one token", flag, file, longestToken)
	case len(token) < shortestToken:
		return "", fmt.Errorf("%s %s: the token has %d characters: want at least %d, as openssl rand -hex 32 makes them", flag, file, len(token), shortestToken)
	}
	return token, nil
}
