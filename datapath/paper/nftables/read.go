package nftables

import (
	"errors"
	"io"
	"io/fs"
	"strings"
)

// maxSize bounds a file; a listing of ten thousand services has 30 MB.
const maxSize = 1 << 30

// Read reads a ruleset: the output of nft list ruleset or nft -j list ruleset, or a file of commands, which are
// carried out on an empty ruleset. What deletes or flushes something that is not there does nothing.
//
// A statement that is not understood becomes [Unknown]; an error is always an [*Error], for a text whose structure is not that
// of a ruleset.
func Read(name string, r io.Reader) (*Ruleset, error) {
	src, err := readAll(r)
	if err != nil {
		return nil, &Error{Position: Position{File: name}, Err: err}
	}
	return read(name, src)
}

// ReadExcerpt is Read for the ruleset in a text: see [Excerpt]. Of a text that is none, it reads what mend makes of it.
func ReadExcerpt(name string, r io.Reader, mend func(text string) (string, bool)) (*Ruleset, error) {
	src, err := readAll(r)
	if err != nil {
		return nil, err
	}
	ruleset, err := read(name, Excerpt(src))
	if err != nil {
		if plain, ok := mend(src); ok {
			if mended, mendedErr := read(name, plain); mendedErr == nil || !Looks(src) {
				return mended, mendedErr
			}
		}
	}
	return ruleset, err
}

func read(name, src string) (*Ruleset, error) {
	b := newBuilder()
	var fault *Error
	if strings.HasPrefix(strings.TrimLeft(src, " \t\r\n"), "{") { // as a text never begins
		fault = readJSON(name, src, b)
	} else {
		fault = readText(name, unwrapped(src), b)
	}
	if fault != nil {
		return nil, fault
	}
	return b.ruleset, nil
}

// growing is a builder that doubles its space, so that a large file is not copied many times.
type growing struct{ strings.Builder }

func (g *growing) Write(p []byte) (int, error) {
	if g.Cap()-g.Len() < len(p) {
		g.Grow(g.Len() + len(p))
	}
	return g.Builder.Write(p)
}

func readAll(r io.Reader) (string, error) {
	var g growing
	switch r := r.(type) {
	case interface{ Len() int }:
		g.Grow(min(r.Len(), maxSize))
	case interface{ Stat() (fs.FileInfo, error) }:
		if info, err := r.Stat(); err == nil {
			g.Grow(int(min(max(info.Size(), 0), maxSize)))
		}
	}
	n, err := io.Copy(&g, io.LimitReader(r, maxSize))
	if err == nil && n == maxSize {
		err = errors.New("the file is too large")
	}
	return g.String(), err
}
