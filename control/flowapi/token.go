package flowapi

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// shortestToken is how long a token has to be: one that can be guessed is none.
const shortestToken = 16

// ReadToken reads the token from a file that has nothing else, but for white space around it.
func ReadToken(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--flow-api-token-file: %w", err)
	}
	token := string(bytes.TrimSpace(b))
	wrong := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) // not fit for a header
	switch {
	case wrong >= 0:
		return "", fmt.Errorf("--flow-api-token-file %s: want one token on one line, of printable ASCII characters without spaces", file)
	case len(token) < shortestToken:
		return "", fmt.Errorf("--flow-api-token-file %s: the token has %d characters: want at least %d, as openssl rand -hex 32 makes them", file, len(token), shortestToken)
	}
	return token, nil
}
