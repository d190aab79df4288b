package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

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
		return errors.New(eitherOf(v.of))
	}
	*v.to = T(given)
	return nil
}

// eitherOf joins words: "a, b or c".
func eitherOf(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// oneOf adds a flag that takes one of several words, the first one by default. The help begins with them.
func oneOf[T ~string](cmd *cobra.Command, to *T, name, short, help string, words ...string) {
	*to = T(words[0])
	cmd.Flags().VarP(word[T]{to, words}, name, short, eitherOf(words)+help)
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
