package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/paper/conntracklist"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// nodeFiles are files about a node that doctor reads, besides its rules.
type nodeFiles struct {
	ipvs      string
	sets      string
	host      []string
	conntrack string
}

func (f *nodeFiles) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.ipvs, "ipvs", "", "check IPVS virtual servers: output of ipvsadm -Sn or ipvsadm -Ln")
	flags.StringVar(&f.sets, "sets", "", "with --rules or --ipvs: output of ipset save or ipset list on the node")
	flags.StringArrayVar(&f.host, "host", nil, "with --rules or --ipvs: file with the output of \"ip -j addr\" or \"ip -j route\" on the node; may be repeated")
	flags.StringVar(&f.conntrack, "conntrack", "", "compare connection entries with the Services: output of conntrack -L, or /proc/net/nf_conntrack")
}

// given reports whether there are files about the node besides its connection entries.
func (f *nodeFiles) given() bool { return f.ipvs != "" || f.sets != "" || len(f.host) > 0 }

// readIPVS reads the output of ipvsadm from a file; without a name there is none. What part of it is missing goes to stderr.
func readIPVS(stderr io.Writer, name string) (*ipvs.State, error) {
	if name == "" {
		return nil, nil
	}
	s, err := readPastedFile("--ipvs", name, ipvs.Read, ipvs.IsLine)
	if err == nil && len(s.Excerpt) > 0 {
		note(stderr, fmt.Sprintf("%s is part of a listing: real servers of %s may be missing, and other virtual servers", name, strings.Join(s.Excerpt, ", ")))
	}
	return s, err
}

// maxPasted is the size of the largest output of another program that is read, in bytes.
const maxPasted = 1 << 30

// readPasted reads the output of another program: as it is, or else as it is within a mail, a page or a log. content reports
// whether a line is one of that program.
func readPasted[T any](in io.Reader, read func(io.Reader) (T, error), content func(line string) bool) (T, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxPasted))
	if err != nil {
		var none T
		return none, withoutPath(err)
	}
	result, err := read(bytes.NewReader(text))
	if err == nil || errors.Is(err, conntracklist.ErrEvents) {
		return result, err
	}
	return read(strings.NewReader(pasted.Uncover(string(text), content)))
}

// readPastedFile is readPasted for the file of a flag. An error names the flag that the file is for, if it is another one.
func readPastedFile[T any](flag, name string, read func(io.Reader) (T, error), content func(line string) bool) (result T, err error) {
	file, err := openFile(name)
	if err != nil {
		return result, fmt.Errorf("%s: %w", flag, err)
	}
	defer file.Close()
	if result, err = readPasted(file, read, content); err != nil {
		err = fmt.Errorf("%s %w", flag, cmp.Or(foreignFile([]string{name}, flag), fmt.Errorf("%s: %w", name, err)))
	}
	return result, err
}

// ofEntries returns the findings about connection entries that contradict the objects.
func (f *doctorFlags) ofEntries(ctx context.Context, stdin io.Reader, stderr io.Writer) ([]diagnose.Finding, error) {
	if path := bundleIn(f.table.name); path != "" {
		return nil, fmt.Errorf("--conntrack cannot be used with --node %s, a bundle that has the connection entries itself; give the node's name, or only the bundle", path)
	}
	if len(f.rules) > 0 || f.node.given() || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, errors.New("--conntrack cannot be used with --rules, --ipvs, --server and --cluster: give the objects with --objects or --kubeconfig")
	}
	masked := 0
	var cut *conntracklist.Error
	entries, err := readPastedFile("--conntrack", f.node.conntrack, func(in io.Reader) ([]conntracklist.Entry, error) {
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		masked, cut = len(maskedEntry.FindAllIndex(text, -1)), nil
		entries, err := conntracklist.Read(bytes.NewReader(maskedEntry.ReplaceAll(text, nil)))
		if errors.As(err, &cut) && cut.Cut {
			err = nil
		}
		if err == nil && len(entries) == 0 {
			err = errors.New("no connection entries: give the output of conntrack -L, as root")
		}
		return entries, err
	}, conntracklist.IsLine)
	if err != nil {
		return nil, err
	}
	if masked > 0 {
		note(stderr, fmt.Sprintf("%s has %s with masked addresses, left out: what they show is not known", f.node.conntrack, quantity.Count(masked, "entry")))
	}
	if cut != nil {
		note(stderr, fmt.Sprintf("%s ends within an entry, line %d, which is left out: entries may be missing", f.node.conntrack, cut.Line))
	}
	objects, err := f.read(ctx, stdin, stderr)
	if err != nil {
		return nil, err
	}
	config, err := f.table.configure(objects)
	if err != nil {
		return nil, err
	}
	return diagnose.New(objects, config).ConnectionEntries(entries), nil
}

// maskedEntry is a connection entry of which somebody masked an address.
var maskedEntry = regexp.MustCompile(`(?m)^.*\b(src|dst)=[0-9a-f.:]*[xX*#].*$`)
