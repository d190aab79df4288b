package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// word is the value of a flag that takes one of several words.
type word[T ~string] struct {
	to *T
	of []string
}

func (v word[T]) String() string { return string(*v.to) }
func (v word[T]) Type() string   { return "string" }
func (v word[T]) Set(given string) error {
	if !slices.Contains(v.of, given) {
		return errors.New(nearest.Either(v.of))
	}
	*v.to = T(given)
	return nil
}

// oneOf adds a flag that takes one of several words, the first one by default. The help begins with them.
func oneOf[T ~string](cmd *cobra.Command, to *T, name, short, help string, words ...string) {
	*to = T(words[0])
	cmd.Flags().VarP(word[T]{to, words}, name, short, nearest.Either(words)+help)
	complete(cmd, name, words)
}

// outputFlag adds -o of a command that prints one value.
func outputFlag(cmd *cobra.Command, to *string) {
	oneOf(cmd, to, "output", "o", "", "text", "json", "yaml")
}

// walkFlag adds --walk, which is the same in all commands that show what a packet meets on its way.
func walkFlag(cmd *cobra.Command, to *text.Walk, help string, first text.Walk) {
	words := []string{"none", "words", "rules", "all"}
	oneOf(cmd, to, "walk", "", ": how to print the packet's way through the chains: in words, with the rules as iptables-save prints them, or with rules that do not match as well"+help, words...)
	*to = first
	cmd.Flags().Lookup("walk").DefValue = string(first)
}

// writeValue writes a value in the format json or yaml.
func writeValue(w io.Writer, format string, value any) error {
	if format == "yaml" {
		data, err := yaml.Marshal(value)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // "->" is to stay readable
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// writeItem writes one value of several: a line of JSON, or a document of YAML.
func writeItem(w io.Writer, format string, value any) error {
	if format == "yaml" {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		return writeValue(w, format, value)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// listener is a standard output whose reader may close it.
type listener struct{ io.Writer }

// Unwrap is the output itself.
func (l listener) Unwrap() io.Writer { return l.Writer }

// errUnread: the reader has closed the output.
var errUnread = errors.New("standard output is closed")

func (l listener) Write(b []byte) (int, error) {
	n, err := l.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = errUnread
	}
	return n, err
}

// unlessClosed drops errors that do not concern the user: the reader closed the output, or the
// command was interrupted.
func unlessClosed(ctx context.Context, err error) error {
	if errors.Is(err, errUnread) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// zoneFlags select the time zone of the output.
type zoneFlags struct {
	utc  bool
	name string
}

func (f *zoneFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.utc, "utc", false, "show times in UTC instead of the local time zone")
	flags.StringVar(&f.name, "time-zone", "", "show times in this zone, for example Europe/Vienna")
}

// location is the zone; nil: the local one.
func (f *zoneFlags) location() (*time.Location, error) {
	switch {
	case f.utc && f.name != "":
		return nil, errors.New("--utc and --time-zone cannot be used together: give one of them")
	case f.utc:
		return time.UTC, nil
	case f.name == "":
		return nil, nil
	}
	zone, err := time.LoadLocation(f.name)
	if err != nil {
		return nil, fmt.Errorf("--time-zone %q: want the name of a zone, for example Europe/Vienna, Local or UTC: %w", f.name, err)
	}
	return zone, nil
}
