package nftables

import (
	"io"
	"io/fs"
	"strings"
)

// Options say how to read.
type Options struct {
	// FS has the files that the text includes, and the file read itself: relative names are relative to its folder.
	// Absolute names are those of FS without the slash in front. nil: an include is an error.
	FS fs.FS
	// IncludeDirs are searched next, as with nft -I.
	IncludeDirs []string
	// Define are values of variables, as with nft -D.
	Define map[string]string
}

// maxSize bounds a file; a listing of ten thousand services has 30 MB.
const maxSize = 1 << 30

// Read reads a ruleset: the output of nft list ruleset or nft -j list ruleset, or a file of commands, which are
// carried out on an empty ruleset. What deletes or flushes something that is not there does nothing.
//
// A statement that is not understood becomes [Unknown]; an error is always an [*Error], for a text whose structure is not that
// of a ruleset.
func Read(name string, r io.Reader, o Options) (*Ruleset, error) {
	var text strings.Builder
	if n, err := io.Copy(&text, io.LimitReader(r, maxSize)); err != nil || n == maxSize {
		if err == nil {
			return nil, &Error{Position: Position{File: name}, Want: "the file is too large"}
		}
		return nil, &Error{Position: Position{File: name}, Err: err}
	}
	b := newBuilder()
	var err *Error
	if src := text.String(); isJSON(src) {
		err = readJSON(name, src, b)
	} else {
		err = readText(name, src, o, b)
	}
	if err != nil {
		return nil, err
	}
	return b.ruleset, nil
}

func isJSON(src string) bool {
	src = strings.TrimLeft(src, " \t\r\n")
	if !strings.HasPrefix(src, "{") {
		return false
	}
	// A text never begins with a brace; yet "{" alone is worth an error that speaks of JSON.
	return true
}
