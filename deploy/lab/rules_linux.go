package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// kubeProxyRules keeps the rules of kube-proxy's iptables mode on the nodes that have them instead of a daemon.
type kubeProxyRules struct {
	loaded map[string]string // by node and family
}

// restoreProgram loads the rules of a family.
func restoreProgram(f decision.Family) string {
	if f == decision.IPv6 {
		return "ip6tables-restore"
	}
	return "iptables-restore"
}

// requireRules is an error if this machine cannot load rules that a node has.
func (s *Spec) requireRules() error {
	for i := range s.Nodes {
		n, program, pack := &s.Nodes[i], restoreProgram(decision.IPv4), "iptables"
		if n.Proxy != labfile.KubeProxyIPTables && n.Proxy != labfile.KubeProxy {
			continue
		}
		if n.KubeProxyMode == "nftables" {
			program, pack = "nft", "nftables"
		}
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("node %s has proxy: %s, which requires %s: install %s", n.Name, n.Proxy, program, pack)
		}
	}
	return nil
}

// write gives the nodes of a lab the rules for objects.
func (r *kubeProxyRules) write(t *topology, spec *Spec, o *manifest.Objects) (err error) {
	for i := range spec.Nodes {
		n := &spec.Nodes[i]
		if n.Proxy != labfile.KubeProxyIPTables {
			continue
		}
		config := proxyconfig.Default().Node
		config.Name = n.Name
		specOf(o).Configure(&config)
		table, _ := servicetable.Table(&o.Objects, config)
		for _, a := range n.Addresses {
			f := decision.FamilyOf(a)
			if e := r.load(t, n.Name, f, kubechains.Rules(table, f, kubechains.Kernel{})); e != nil {
				err = errors.Join(err, fmt.Errorf("rules of node %s: %w", n.Name, e))
			}
		}
	}
	return err
}

// load replaces the rules of a node, as kube-proxy does: others of the same tables stay.
func (r *kubeProxyRules) load(t *topology, node string, f decision.Family, rules []kubechains.Rule) error {
	var b bytes.Buffer
	if err := kubechains.Render(&b, rules); err != nil {
		return err
	}
	key, now := node+" "+f.String(), b.String()
	if r.loaded[key] == now {
		return nil
	}
	if _, err := t.find(node).Run(increment(r.loaded[key], now), restoreProgram(f), "--noflush"); err != nil {
		return err
	}
	if r.loaded == nil {
		r.loaded = make(map[string]string)
	}
	r.loaded[key] = now
	return nil
}

// increment is the input of iptables-restore --noflush that leads from rules to others, both in the format of iptables-save. Chains
// that are declared are emptied; those of the kernel are not, so their rules are added the first time only. Chains that
// are no longer there are removed.
func increment(from, to string) string {
	before := chains(from)
	var b strings.Builder
	table := ""
	for line := range strings.Lines(to) {
		switch {
		case line[0] == '*':
			table = strings.TrimSpace(line[1:])
		case line == "COMMIT\n":
			after := chains(to)[table]
			var gone []string
			for _, c := range before[table] {
				if !slices.Contains(after, c) {
					gone = append(gone, c)
				}
			}
			for _, c := range gone { // emptied first, as they may lead to each other
				fmt.Fprintf(&b, ":%s - [0:0]\n", c)
			}
			for _, c := range gone {
				fmt.Fprintf(&b, "-X %s\n", c)
			}
		case strings.HasPrefix(line, "-A ") && from != "" && !strings.HasPrefix(line, "-A KUBE-"):
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// chains are kube-proxy's own chains, by table.
func chains(rules string) map[string][]string {
	all := make(map[string][]string)
	table := ""
	for line := range strings.Lines(rules) {
		switch {
		case line[0] == '*':
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, ":KUBE-"):
			name, _, _ := strings.Cut(line[1:], " ")
			all[table] = append(all[table], name)
		}
	}
	return all
}
