package main

import (
	"fmt"
	"io"
	"os"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
)

// readRules reads a file of rules; - is standard input. family is what they are of if
// they do not tell.
func readRules(name string, family iptables.Family, stdin io.Reader) (*iptables.Dump, error) {
	in := stdin
	if name == "-" {
		name = "standard input"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	d, err := iptables.Parse(in, iptables.Options{Family: family})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
