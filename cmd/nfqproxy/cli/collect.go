package cli

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/view/bundle"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// newCollectCommand is what watch-for runs on a node of a lab.
func newCollectCommand() *cobra.Command {
	var s bundle.Source
	var pairs []string
	var file string
	cmd := &cobra.Command{
		Use:    "collect --pair ADDRESS,ADDRESS --write FILE",
		Short:  "Collect packets, connection entries and rules into a bundle",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range pairs {
				a, b, _ := strings.Cut(text, ",")
				from, err := netip.ParseAddr(a)
				to, err2 := netip.ParseAddr(b)
				if err != nil || err2 != nil {
					return fmt.Errorf("--pair %s: want two addresses with a comma", text)
				}
				s.Pairs = append(s.Pairs, bundle.Pair{A: from, B: to})
			}
			if file == "" || len(s.Pairs) == 0 {
				return fmt.Errorf("--pair and --write are required")
			}
			return writeBundle(file, bundle.Collect(cmd.Context(), s))
		},
		Annotations: ending(),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&pairs, "pair", nil, "two addresses whose packets and connection entries are collected")
	flags.DurationVar(&s.Capture, "capture", 5*time.Second, "how long to capture packets")
	flags.StringVar(&file, "write", "", "file to write")
	return cmd
}

// collectInLab runs collect on a node of a running lab.
func collectInLab(name, node string, s bundle.Source) *bundle.Bundle {
	b, err := func() (*bundle.Bundle, error) {
		dir, err := os.MkdirTemp("", "nfqproxy-collect-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "bundle.tgz")
		command := []string{program, "collect", "--write", file, "--capture", s.Capture.String()}
		for _, p := range s.Pairs {
			command = append(command, "--pair", p.A.String()+","+p.B.String())
		}
		messages, err := os.Create(filepath.Join(dir, "messages"))
		if err != nil {
			return nil, err
		}
		defer messages.Close()
		code, err := lab.ExecQuietly(name, node, command, messages)
		if err != nil {
			return nil, err
		}
		if code != 0 {
			text, _ := os.ReadFile(messages.Name())
			return nil, fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(text))
		}
		r, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return bundle.Read(r)
	}()
	if err != nil {
		b = &bundle.Bundle{}
		b.Note("rules, connection entries and packets of node %s: %v", node, err)
	}
	return b
}
