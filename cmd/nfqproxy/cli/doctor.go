package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/paper/conntracklist"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// doctorFlags are the flags of nfqproxy doctor.
type doctorFlags struct {
	clusterFlags
	rules   []string
	bundles []string // of --node, besides the first
	node    nodeFiles
	ignore  []string
	notes   bool
	hidden  []diagnose.Finding // notes that are not listed
	walk    text.Walk
	output  string

	namespaces namespaceFlags
}

func newDoctorCommand(connect connector) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [--objects PATH | --kubeconfig FILE | --rules FILE | --node BUNDLE] [--server ADDRESS]",
		Short: "Check all services, and show what is wrong with them",
		Long: `Check all services, and show what is wrong with their selectors, target ports, endpoints,
traffic policies and addresses. The worst findings come first, and each says what to do.
The objects come from files (--objects), from an API server (--kubeconfig, --context), or
else from your running lab, or else from the API server of $KUBECONFIG. As a kubectl
plugin, it checks kubectl's cluster; nothing has to be installed there. In a lab, what its
nodes observe counts too: flows, service tables, daemons, and firewall rules that drop
flows. On a node, --server unix:/run/nfqproxy/flows.sock (as root) adds the same for that
node, with or without objects.

With --rules, it checks a node's iptables rules instead. It simulates a connection to
every service through all rules, from pods, from the node and from outside, and names
rules that drop it or prevent its translation. It also checks whether kube-proxy's own
rules are consistent. The last lines say what was checked, what was not, and what was
assumed.

With --ipvs, it checks a node's IPVS virtual servers, alone or together with its rules,
and follows connections to them as IPVS is documented to work. --host and --sets give the
node's addresses, routes and ipsets. With --conntrack, it compares a node's connection
entries with the Services, and names entries that contradict them: give --objects or
--kubeconfig, and the node's name with --node.

With --node, it does the same for a bundle from nfqproxy collect, with the node's
addresses, routes, sysctls, virtual servers and connection entries. For a directory with
the bundles of several nodes, it lists each cause once, with the nodes that have it. With
--objects or --kubeconfig in addition to --rules or --node, it checks the objects, too, and
compares the node's rules or virtual servers with them.

The exit code is 0 if there are no errors or warnings, 1 if there are, and 2 if the command
fails.`,
		Example: `  nfqproxy doctor
  nfqproxy doctor --kubeconfig ~/.kube/config --ignore NFQ034
  kubectl get svc,endpointslices,nodes,pods,networkpolicies,namespaces -A -o yaml | nfqproxy doctor --objects -
  iptables-save | nfqproxy doctor --rules -
  ipvsadm -Sn > ipvs.txt; ip -j addr > addr.json; nfqproxy doctor --ipvs ipvs.txt --host addr.json
  conntrack -L > entries.txt; nfqproxy doctor --conntrack entries.txt --objects cluster.yaml --node node-a
  nfqproxy doctor --node node-a.tar.gz`,
		Annotations: ending(),
		Args:        noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, examined, err := f.findings(cmd, connect)
			if err != nil {
				return err
			}
			wrong := len(found) > 0 && found[0].Wrong()
			if err := f.write(cmd.OutOrStdout(), found, examined); err != nil {
				return err
			}
			if wrong {
				return answerNo
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.clusterFlags.add(cmd)
	flags.Lookup("node").Usage += orBundle + ", or a directory with the bundles of several nodes; bundles may be repeated"
	flags.Lookup("node").Value = nodeValue{name: &f.table.name, more: &f.bundles}
	flags.StringArrayVar(&f.rules, "rules", nil, "check a node's rules instead: output of iptables-save, ip6tables-save or nft list ruleset, - for standard input; may be repeated")
	f.node.add(flags)
	flags.StringSliceVar(&f.ignore, "ignore", nil, "do not count findings with these codes, such as NFQ034: they are intended")
	flags.BoolVar(&f.notes, "notes", false, "also list notes (worth knowing, but not wrong) and ignored findings")
	walkFlag(cmd, &f.walk, "; prints the decision about each example as nfqproxy explain does", text.WalkNone)
	outputFlag(cmd, &f.output)
	f.namespaces.add(cmd, "the objects with findings", "all")
	return cmd
}

// findings returns the findings that the flags ask for, the worst first, and the scope of the examination of rules.
func (f *doctorFlags) findings(cmd *cobra.Command, connect connector) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	for _, code := range f.ignore {
		if !slices.Contains(diagnose.Codes(), diagnose.Code(code)) {
			return nil, nil, fmt.Errorf("--ignore %s: no such code; docs/reference/findings.md lists all", code)
		}
	}
	switch {
	case f.node.conntrack != "":
		found, err = f.ofEntries(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
	case bundleIn(f.table.name) != "" || len(f.rules) > 0 || f.node.given():
		found, examined, err = f.ofRules(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
	default:
		found, err = f.ofCluster(cmd.Context(), connect, cmd.InOrStdin(), cmd.ErrOrStderr())
	}
	if err != nil {
		return nil, nil, err
	}
	for i := range found {
		if slices.Contains(f.ignore, string(found[i].Code)) {
			found[i].Ignored = "--ignore " + string(found[i].Code)
		}
	}
	diagnose.Sort(found)
	found = slices.Compact(found) // a ruleset is read for each family
	namespace := f.namespaces.selected()
	f.hidden = nil
	return slices.DeleteFunc(found, func(d diagnose.Finding) bool {
		if namespace != "" && !strings.Contains(d.Object, " "+namespace+"/") {
			return true
		}
		// What is not known is said: "nothing is wrong" would be about less than it seems.
		hide := !f.notes && d.Code.Severity() == diagnose.Note && d.Code != diagnose.NotShown
		if hide {
			f.hidden = append(f.hidden, d)
		}
		return hide
	}), examined, nil
}

func (f *doctorFlags) ofCluster(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) ([]diagnose.Finding, error) {
	d, err := f.doctor(ctx, connect, stdin, stderr)
	if err != nil {
		return nil, err
	}
	list, err := d.Findings(ctx)
	if err != nil {
		return nil, err
	}
	return list.Findings, nil
}

func (f *doctorFlags) write(w io.Writer, found []diagnose.Finding, examined []*diagnose.Examined) error {
	if f.output != "text" {
		found = slices.DeleteFunc(slices.Clone(found), func(d diagnose.Finding) bool { return d.Ignored != "" && !f.notes })
		return writeValue(w, f.output, struct {
			Version  int                  `json:"version"`
			Findings []diagnose.Finding   `json:"findings"`
			Examined []*diagnose.Examined `json:"examined,omitempty"`
		}{diagnose.Version, append([]diagnose.Finding{}, found...), examined})
	}
	_, err := io.WriteString(w, text.StyleFor(w).Findings(found, examined, text.FindingOptions{Walk: f.walk, Ignored: f.notes, Hidden: f.hidden}))
	return err
}

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
	own := false
	if result, err = readPasted(file, read, func(line string) bool {
		is := content(line)
		own = own || is
		return is
	}); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
		if !own {
			err = cmp.Or(foreignFile([]string{name}, flag), err)
		}
		err = fmt.Errorf("%s %w", flag, err)
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
