package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// readRules reads a dump of iptables-save, or listings of iptables -L, from a file, or for "-" from standard input. The
// family is used if the text does not show it. Errors name the file.
func readRules(stdin io.Reader, path string, family iptables.Family) (*iptables.Dump, error) {
	in, name := stdin, rulesName(path)
	if path != "-" {
		file, err := openFile(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	dump, err := iptables.Read(in, iptables.Options{Family: family})
	faults := iptables.Errors(err)
	switch {
	case len(faults) > 1:
		return nil, fmt.Errorf("%s: %w (and %d more)", name, faults[0], len(faults)-1)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, withoutPath(err))
	case len(dump.Tables) == 0:
		return nil, fmt.Errorf("%s: no rules: want the output of iptables-save", name)
	}
	return dump, nil
}

// rulesByFlag refuses arguments, which are most likely files of rules.
func rulesByFlag(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument %q: give the rules with --rules FILE", cmd.CommandPath(), args[0])
	}
	return missingFlags(cmd)
}

// openFile opens a file to read from. An error names it.
func openFile(name string) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, withoutPath(err))
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		_ = file.Close()
		return nil, fmt.Errorf("%s: is a directory: want a file", name)
	}
	return file, nil
}

// rulesName is how messages call the file.
func rulesName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}

// withoutPath takes the name of the file out of an error that has it.
func withoutPath(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
