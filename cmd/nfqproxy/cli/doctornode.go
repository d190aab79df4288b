package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/paper/conntracklist"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// nodeFiles are files about a node that doctor reads, besides its rules.
type nodeFiles struct {
	ipvs      string
	host      []string
	conntrack string
}

func (f *nodeFiles) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.ipvs, "ipvs", "", "look at virtual servers of IPVS: output of ipvsadm -Sn or ipvsadm -Ln")
	flags.StringArrayVar(&f.host, "host", nil, "with --ipvs: file with the output of \"ip -j addr\" on the node; may be repeated")
	flags.StringVar(&f.conntrack, "conntrack", "", "compare connection entries with the Services: output of conntrack -L, or /proc/net/nf_conntrack")
}

// given reports whether there are files about IPVS.
func (f *nodeFiles) given() bool { return f.ipvs != "" || len(f.host) > 0 }

// readIPVS reads the output of ipvsadm from a file; without a name there is none.
func readIPVS(name string) (*ipvs.State, error) {
	if name == "" {
		return nil, nil
	}
	file, err := openFile(name)
	if err != nil {
		return nil, fmt.Errorf("--ipvs: %w", err)
	}
	defer file.Close()
	s, err := ipvs.Read(file)
	if err != nil {
		return nil, fmt.Errorf("--ipvs %s: %w", name, err)
	}
	return s, nil
}

// ofIPVS returns the findings about virtual servers of a file, or of the node's bundle; in is where the rules of the node are,
// nil if they are not given, and dumps are the rules.
func (f *doctorFlags) ofIPVS(in *ruleInput, dumps []*iptables.Dump) ([]diagnose.Finding, error) {
	if f.node.ipvs == "" && len(f.node.host) > 0 {
		return nil, errors.New("--host requires --ipvs: give the output of ipvsadm -Sn, too")
	}
	if in == nil {
		in = new(ruleInput)
	}
	s, err := in.servers(f.node.ipvs)
	if s == nil {
		return nil, err
	}
	var host *netfilter.Host
	object := f.node.ipvs
	switch {
	case len(f.node.host) > 0:
		host, err = (&hostFlags{files: f.node.host}).load(new(netfilter.Host))
	case in.node != nil:
		object = in.node.Path
		host, _, err = in.node.Host(iptables.FamilyUnknown)
	}
	if err != nil {
		return nil, err
	}
	mode, _ := proxymode.ModeOf(dumps)
	found := diagnose.ExamineIPVS(s, mode, host)
	for i := range found {
		found[i].Object = object
	}
	return found, nil
}

// ofEntries returns the findings about connection entries that contradict the objects.
func (f *doctorFlags) ofEntries(ctx context.Context, stdin io.Reader, stderr io.Writer) ([]diagnose.Finding, error) {
	if len(f.rules) > 0 || f.node.given() || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, errors.New("--conntrack cannot be used with --rules, --ipvs, --server and --cluster: give the objects with --objects or --kubeconfig")
	}
	file, err := openFile(f.node.conntrack)
	if err != nil {
		return nil, fmt.Errorf("--conntrack: %w", err)
	}
	defer file.Close()
	entries, err := conntracklist.Read(file)
	if err != nil {
		return nil, fmt.Errorf("--conntrack %s: %w", f.node.conntrack, err)
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
