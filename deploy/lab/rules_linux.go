package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/programs"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// kubeProxyRules keeps kube-proxy's rules on the nodes that have them instead of a daemon.
type kubeProxyRules struct {
	loaded map[string]string // by node and family
}

// ruleFormat is how the rules of one of kube-proxy's modes are written and loaded.
type ruleFormat interface {
	// command loads the output of change into the kernel.
	command(f decision.Family) []string
	// text is the rules of one family for a service table.
	text(s *Spec, t *decision.Table, f decision.Family) (string, error)
	// change leads from rules to others; empty: from none.
	change(f decision.Family, from, to string) (string, error)
}

// formats are the modes of kube-proxy.
var formats = map[string]ruleFormat{"iptables": iptablesRules{}, "nftables": nftablesRules{}}

// writtenMode is the mode of the rules that the lab itself writes on a node; empty: it writes none.
func writtenMode(n *Node) string {
	return map[string]string{labfile.KubeProxyIPTables: "iptables", labfile.KubeProxyNFTables: "nftables"}[n.Proxy]
}

// requireRules is an error if this machine cannot load rules that a node has.
func (s *Spec) requireRules() error {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		mode := writtenMode(n)
		if n.Proxy == labfile.KubeProxy {
			mode = cmp.Or(n.KubeProxyMode, "iptables")
		}
		var needs []string
		if mode != "" {
			needs = append(needs, formats[mode].command(decision.IPv4)[0])
		}
		if n.Firewall != "" {
			needs = append(needs, "nft")
		}
		for _, program := range needs {
			if _, err := exec.LookPath(program); err != nil {
				pack, _ := programs.Package(program)
				return fmt.Errorf("node %s requires %s for its rules: install %s", n.Name, program, pack)
			}
		}
	}
	return nil
}

// write gives the nodes of a lab the rules for objects.
func (r *kubeProxyRules) write(t *topology, spec *Spec, o *manifest.Objects) (err error) {
	for i := range spec.Nodes {
		n := &spec.Nodes[i]
		format := formats[writtenMode(n)]
		if format == nil {
			continue
		}
		config := proxyconfig.Default().Node
		config.Name = n.Name
		specOf(o).Configure(&config)
		table, _ := servicetable.Table(&o.Objects, config)
		for _, a := range n.Addresses {
			f := decision.FamilyOf(a)
			text, e := format.text(spec, table, f)
			if e == nil {
				e = r.load(t, n.Name, f, format, text)
			}
			if e != nil {
				err = errors.Join(err, fmt.Errorf("rules of node %s: %w", n.Name, e))
			}
		}
	}
	return err
}

// load replaces the rules of a node, as kube-proxy does: those of others stay.
func (r *kubeProxyRules) load(t *topology, node string, f decision.Family, format ruleFormat, now string) error {
	key := node + " " + f.String()
	if r.loaded[key] == now {
		return nil
	}
	change, err := format.change(f, r.loaded[key], now)
	if err != nil {
		return err
	}
	command := format.command(f)
	if _, err := t.find(node).Run(change, command[0], command[1:]...); err != nil {
		return err
	}
	if r.loaded == nil {
		r.loaded = make(map[string]string)
	}
	r.loaded[key] = now
	return nil
}

// Firewall reads the firewall rules of a node, and its routes to addresses, as a findings.Firewall.
func (l *Lab) Firewall(ctx context.Context, node string, to []netip.Addr) (rules *noderules.Rules, err error) {
	d, err := l.daemon(node)
	if err != nil {
		return nil, err
	}
	err = d.ns.Do(func() (err error) {
		rules, err = noderules.Read(ctx, to)
		return err
	})
	return rules, err
}

// loadFirewalls loads the rules that nodes have by the lab's file.
func (l *Lab) loadFirewalls() error {
	for _, n := range l.Spec().Nodes {
		if n.Firewall == "" {
			continue
		}
		if _, err := l.topology.find(n.Name).Run(n.Firewall, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("firewall of node %s: %w", n.Name, err)
		}
	}
	return nil
}
