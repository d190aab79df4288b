package cli

import (
	"bufio"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// bundleOfIPVS reports whether the node is a bundle of one in IPVS mode, or has only virtual servers. It becomes the view.
func (f *servicesFlags) bundleOfIPVS() (bool, error) {
	if len(f.rules) > 0 {
		return false, nil
	}
	in, err := newRuleInput(nil, nil, bundleIn(f.nodeName))
	if err != nil {
		return false, err
	}
	servers, err := in.servers(io.Discard, "")
	if servers == nil || err != nil {
		return false, err
	}
	v := &nodeView{in: in, files: new(nodeFiles), servers: servers, name: in.node.Name}
	if v.sets, err = in.sets(""); err != nil {
		return false, err
	}
	if len(in.files) > 0 {
		if v.dumps, err = in.dumps(io.Discard, iptables.FamilyUnknown); err != nil {
			return false, err
		}
	}
	if mode, _ := proxymode.ModeOf(v.dumps); !mode.IPVS() && mode != proxymode.ModeUnknown {
		return false, nil
	}
	f.view = v
	return true, nil
}

// readIPVS is the view of the files of --ipvs, --sets and --rules.
func (f *servicesFlags) readIPVS(stdin io.Reader, stderr io.Writer) (err error) {
	in := new(ruleInput)
	if len(f.rules) > 0 {
		if in, err = newRuleInput(stdin, f.rules, ""); err != nil {
			return err
		}
	}
	f.view, err = in.view(stderr, &nodeFiles{ipvs: f.ipvs, sets: f.sets}, nil, f.nodeName)
	return err
}

// runIPVS lists the virtual servers of --ipvs, or of a bundle.
func (f *servicesFlags) runIPVS(stdin io.Reader, stdout, stderr io.Writer) error {
	flag := "--ipvs"
	if f.view != nil {
		flag = "--node " + f.nodeName + ", whose service proxy uses IPVS,"
	}
	if f.output == "yaml" || f.output == "json" {
		return fmt.Errorf("%s cannot be used with -o %s: IPVS has no names of Services; -o report is JSON, too", flag, f.output)
	}
	if f.namespaces.selected() != "" {
		return fmt.Errorf("%s cannot be used with --namespace: IPVS has no namespaces", flag)
	}
	if f.view == nil {
		if err := f.readIPVS(stdin, stderr); err != nil {
			return err
		}
	}
	compared, err := f.compare(stdin, stderr)
	if err != nil {
		return err
	}
	f.compared = compared
	servers := audit.VirtualServers(f.view.servers, f.view.sets)
	if f.output == "report" {
		return writeValue(stdout, "json", struct {
			Version        int                   `json:"version"`
			VirtualServers []audit.VirtualServer `json:"virtualServers"`
			Objects        []servicesOfObjects   `json:"objects,omitempty"`
		}{1, servers, compared})
	}
	out := bufio.NewWriter(stdout)
	if err := audit.WriteVirtualServers(out, f.output == "wide", servers); err != nil {
		return err
	}
	if mode, proof := proxymode.ModeOf(f.view.dumps); mode != proxymode.ModeUnknown {
		fmt.Fprintf(out, "\nThe rules are those of %s (%s)\n", mode, proof)
		if !mode.IPVS() && len(servers) > 0 {
			fmt.Fprintln(out, "These virtual servers are left over from another mode")
		}
	}
	if err := f.writeCompared(out); err != nil {
		return err
	}
	return out.Flush()
}
