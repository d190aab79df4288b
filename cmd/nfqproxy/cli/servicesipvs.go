package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// runIPVS lists the virtual servers of --ipvs.
func (f *servicesFlags) runIPVS(stdin io.Reader, stdout, stderr io.Writer) error {
	if f.output == "yaml" || f.output == "json" {
		return fmt.Errorf("--ipvs cannot be used with -o %s: IPVS has no names of Services; -o report is JSON, too", f.output)
	}
	if f.namespaces.selected() != "" {
		return errors.New("--ipvs cannot be used with --namespace: IPVS has no namespaces")
	}
	state, err := readIPVS(f.ipvs)
	if err != nil {
		return err
	}
	sets, err := readSets(f.sets)
	if err != nil {
		return err
	}
	var dumps []*iptables.Dump
	if len(f.rules) > 0 {
		in, err := newRuleInput(stdin, f.rules, "")
		if err != nil {
			return err
		}
		if dumps, err = in.dumps(stderr, iptables.FamilyUnknown); err != nil {
			return err
		}
	}
	servers := audit.VirtualServers(state, sets)
	if f.output == "report" {
		return writeValue(stdout, "json", struct {
			Version        int                   `json:"version"`
			VirtualServers []audit.VirtualServer `json:"virtualServers"`
		}{1, servers})
	}
	out := bufio.NewWriter(stdout)
	if err := audit.WriteVirtualServers(out, f.output == "wide", servers); err != nil {
		return err
	}
	if mode, proof := proxymode.ModeOf(dumps); mode != proxymode.ModeUnknown {
		fmt.Fprintf(out, "\nThe rules are those of %s (%s)\n", mode, proof)
		if !mode.IPVS() && len(servers) > 0 {
			fmt.Fprintln(out, "These virtual servers are left over from another mode")
		}
	}
	return out.Flush()
}
