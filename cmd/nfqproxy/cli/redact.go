package cli

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/bundle/redact"
)

// runRedact writes a bundle with pseudonyms.
func (f *collectFlags) runRedact(stderr io.Writer) error {
	if f.file == "" {
		return errors.New("--redact requires --write FILE")
	}
	if len(f.pairs) > 0 {
		return errors.New("--pair and --redact cannot be used together: give one of them")
	}
	b, err := bundle.Open(f.redact)
	if err != nil {
		return fmt.Errorf("--redact: %w", err)
	}
	key, err := f.key()
	if err != nil {
		return err
	}
	if err := writeBundle(f.file, b.Redact(key)); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "wrote", f.file)
	return nil
}

// key returns the key of the pseudonyms: that of the file, which it makes if it does not exist, or else a random one.
func (f *collectFlags) key() (key redact.Key, err error) {
	_, _ = rand.Read(key[:]) // it never fails
	if f.keyFile == "" {
		return key, nil
	}
	text, err := os.ReadFile(f.keyFile)
	if errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(f.keyFile, []byte(hex.EncodeToString(key[:])+"\n"), 0o600)
		if err != nil {
			err = fmt.Errorf("--key-file: %w", err)
		}
		return key, err
	}
	if err != nil {
		return key, fmt.Errorf("--key-file: %w", err)
	}
	read, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(read) != redact.KeySize {
		return key, fmt.Errorf("--key-file %s: want a key of %d hexadecimal digits, as nfqproxy collect makes it", f.keyFile, 2*redact.KeySize)
	}
	return redact.Key(read), nil
}
