package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/bundle/redact"
	"github.com/nfqproxy/nfqproxy/control/view/collect"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// collectFlags are the flags of nfqproxy collect.
type collectFlags struct {
	file    string
	script  bool
	redact  string
	keyFile string
	// Of watch-for, which runs the command on a node of a lab.
	pairs   []string
	capture time.Duration
}

func newCollectCommand() *cobra.Command {
	var f collectFlags
	cmd := &cobra.Command{
		Use:   "collect [--script | --redact BUNDLE]",
		Short: "Collect a node's rules, routes and connections into a bundle",
		Long: `Collect a node's state in a bundle, one file: its rules (both back ends of iptables,
nftables, IPVS, ipsets), addresses, routes, neighbours, sysctls, connection entries,
versions, and kube-proxy's configuration. Run it as root. Other commands read the bundle
with --node, on any machine.

--script prints a shell script that makes the same bundle on machines without nfqproxy.

--redact replaces addresses, MAC addresses and host names in a bundle with pseudonyms,
each with the same one everywhere. Addresses that share a prefix still share a prefix of
the same length. It keeps the kind of each address (loopback, link-local, private, shared,
multicast), its last byte, and the names of Services, Pods and devices. With the same
--key-file, several bundles get the same pseudonyms.`,
		Example: `  sudo nfqproxy collect
  nfqproxy collect --script > collect.sh
  nfqproxy collect --redact node-a.tar.gz --write redacted.tar.gz`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.file, "write", "", "file to write (default: NODE.tar.gz)")
	flags.BoolVar(&f.script, "script", false, "print the script for machines without nfqproxy")
	flags.StringVar(&f.redact, "redact", "", "replace the addresses and host names in this bundle, a file or directory, with pseudonyms; requires --write")
	flags.StringVar(&f.keyFile, "key-file", "", "with --redact: file with the key for the pseudonyms, created if it does not exist (default: a random key, not saved)")
	flags.StringArrayVar(&f.pairs, "pair", nil, "two addresses whose packets and connection entries are collected")
	flags.DurationVar(&f.capture, "capture", 5*time.Second, "with --pair: how long to capture packets")
	for _, internal := range []string{"pair", "capture"} {
		flags.Lookup(internal).Hidden = true
	}
	return cmd
}

func (f *collectFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case f.script && (f.redact != "" || f.file != ""):
		return errors.New("--script cannot be used with --redact and --write: give one of them")
	case f.keyFile != "" && f.redact == "":
		return errors.New("--key-file requires --redact")
	case f.script:
		_, err := io.WriteString(stdout, collect.Script)
		return err
	case f.redact != "":
		return f.runRedact(stderr)
	}
	s := collect.Source{Capture: f.capture}
	for _, text := range f.pairs {
		a, b, _ := strings.Cut(text, ",")
		from, err := netip.ParseAddr(a)
		to, err2 := netip.ParseAddr(b)
		if err != nil || err2 != nil {
			return fmt.Errorf("--pair %s: want two addresses, separated by a comma", text)
		}
		s.Pairs = append(s.Pairs, collect.Pair{A: from, B: to})
	}
	b := collect.Collect(ctx, s)
	b.Created, b.Program = time.Now(), version
	if len(b.Files) == 0 {
		return fmt.Errorf("nothing could be collected: %s", strings.Join(b.Notes, "; "))
	}
	file := cmp.Or(f.file, fileNameOf(cmp.Or(b.Node, "node"))+".tar.gz")
	if err := writeBundle(file, b); err != nil {
		return err
	}
	if len(f.pairs) == 0 {
		for _, n := range b.Notes {
			fmt.Fprintln(stderr, "nfqproxy: missing:", n)
		}
		if len(b.Notes) > 0 && os.Geteuid() != 0 {
			fmt.Fprintln(stderr, "nfqproxy: warning: only root can read rules and connection entries: run it again as root")
		}
		fmt.Fprintln(stderr, "wrote", file)
	}
	return nil
}

// collectInLab runs collect on a node of a running lab.
func collectInLab(name, node string, s collect.Source) *bundle.Bundle {
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
