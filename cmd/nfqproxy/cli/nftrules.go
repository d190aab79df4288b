package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// nftFile is a file with the output of nft.
type nftFile struct {
	name    string
	ruleset *nftables.Ruleset
}

// readNFT reads those of the files that are the output of nft. The others are to be read as rules of iptables, with rest in
// place of standard input.
func readNFT(stdin io.Reader, paths []string) (files []nftFile, others []string, rest io.Reader, err error) {
	rest = stdin
	for _, path := range paths {
		in := stdin
		if path != "-" {
			file, err := openFile(path)
			if err != nil {
				return nil, nil, nil, err
			}
			defer file.Close()
			in = file
		}
		ruleset, buffered, err := readIfNFT(rulesName(path), in)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case ruleset != nil:
			files = append(files, nftFile{rulesName(path), ruleset})
			continue
		case path == "-":
			rest = buffered
		}
		others = append(others, path)
	}
	return files, others, rest, nil
}

// peeked is how much of a text shows whether it is the output of nft.
const peeked = 64 << 10

// readIfNFT reads a ruleset of nftables. If the text is something else, the ruleset is nil, and all of the text can be read
// from the reader that it returns.
func readIfNFT(name string, in io.Reader) (*nftables.Ruleset, io.Reader, error) {
	buffered := bufio.NewReaderSize(in, peeked)
	begin, err := buffered.Peek(peeked)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%s: %w", name, withoutPath(err))
	}
	if !nftables.Looks(string(begin)) {
		return nil, buffered, nil
	}
	ruleset, err := readRuleset(name, buffered)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return ruleset, nil, nil
}

// readRuleset reads a ruleset of nftables. An error has the line and the column, and not the file.
func readRuleset(name string, in io.Reader) (*nftables.Ruleset, error) {
	ruleset, err := nftables.ReadExcerpt(name, in)
	if fault := (*nftables.Error)(nil); errors.As(err, &fault) {
		return nil, fmt.Errorf("line %d, column %d: %s", fault.Line, fault.Column, fault.Problem())
	}
	return ruleset, err
}
