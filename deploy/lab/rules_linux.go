package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/netns/programs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
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
func requireRules(s *Spec) error {
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
		labfile.Of(o).Configure(&config)
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

// iptablesRules are those of kube-proxy's iptables mode, in the format of iptables-save.
type iptablesRules struct{}

func (iptablesRules) command(f decision.Family) []string {
	if f == decision.IPv6 {
		return []string{"ip6tables-restore", "--noflush"}
	}
	return []string{"iptables-restore", "--noflush"}
}

func (iptablesRules) text(_ *Spec, t *decision.Table, f decision.Family) (string, error) {
	var b bytes.Buffer
	err := kubesave.Render(&b, kubechains.Rules(t, f, kubechains.Kernel{}))
	return b.String(), err
}

// change is the input of iptables-restore --noflush that leads from rules to others. Chains
// that are declared are emptied; those of the kernel are not, so their rules are added the first time only. Chains that
// are no longer there are removed.
func (iptablesRules) change(_ decision.Family, from, to string) (string, error) {
	before := chains(from)
	var b strings.Builder
	table := ""
	for line := range strings.Lines(to) {
		switch {
		case line[0] == '*':
			table = strings.TrimSpace(line[1:])
		case line == "COMMIT\n":
			after := chains(to)[table]
			gone := slices.DeleteFunc(slices.Clone(before[table]), func(c string) bool { return slices.Contains(after, c) })
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
	return b.String(), nil
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

// nftablesRules are the table of kube-proxy's nftables mode, as nft prints it.
type nftablesRules struct{}

func (nftablesRules) command(decision.Family) []string { return []string{"nft", "-f", "-"} }

func (nftablesRules) text(s *Spec, t *decision.Table, f decision.Family) (string, error) {
	var b strings.Builder
	_, err := nftproxy.Tables(t, nftproxy.Options{ServiceCIDRs: s.ServicePrefixes()}, f).WriteTo(&b)
	return b.String(), err
}

// change is the input of nft -f, one transaction, that leads from a table to another one. Base chains stay, as does session
// affinity: what rules have put into sets. What goes is declared first, in case somebody has deleted it.
func (nftablesRules) change(f decision.Family, from, to string) (string, error) {
	family := nftables.FamilyIP
	if f == decision.IPv6 {
		family = nftables.FamilyIP6
	}
	var b strings.Builder
	line := func(command, kind, name string) {
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("%s %s %s %s %s", command, kind, family, nftproxy.Table, name), " "))
	}
	if from == "" {
		line("add", "table", "")
		line("delete", "table", "")
		return b.String() + to, nil
	}
	before, err := tableOf(from)
	if err != nil {
		return "", err
	}
	after, err := tableOf(to)
	if err != nil {
		return "", err
	}
	gone := slices.DeleteFunc(slices.Clone(before.Chains), func(c *nftables.Chain) bool {
		return slices.ContainsFunc(after.Chains, func(other *nftables.Chain) bool { return other.Name == c.Name })
	})
	known := &nftables.Table{Family: family, Name: nftproxy.Table, Sets: before.Sets}
	for _, c := range gone {
		known.Chains = append(known.Chains, &nftables.Chain{Name: c.Name})
	}
	if _, err := (&nftables.Ruleset{Tables: []*nftables.Table{known}}).Print(&b, nftables.Format{Terse: true}); err != nil {
		return "", err
	}
	line("flush", "table", "")
	for _, s := range before.Sets {
		kind := "set"
		if s.Map {
			kind = "map"
		}
		switch stays := slices.ContainsFunc(after.Sets, func(other *nftables.Set) bool { return other.Name == s.Name && other.Timeout == s.Timeout }); {
		case !stays:
			line("delete", kind, s.Name)
		case s.Timeout == 0:
			line("flush", kind, s.Name)
		}
	}
	for _, c := range gone { // after the maps that lead to them
		line("delete", "chain", c.Name)
	}
	return b.String() + to, nil
}

// tableOf reads one table.
func tableOf(text string) (*nftables.Table, error) {
	r, err := nftables.Read(nftproxy.Table, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return r.Tables[0], nil
}

// KubeProxyVariable is the environment variable with the path of kube-proxy.
const KubeProxyVariable = "NFQPROXY_KUBE_PROXY"

// FindKubeProxy is where the kube-proxy of labs is.
func FindKubeProxy() (string, error) { return kubeProxyPath("") }

// kubeProxyPath is where kube-proxy is: at the given path, at that of the environment, where "make peers" builds it in this
// repository, or in PATH.
func kubeProxyPath(given string) (string, error) {
	if given = cmp.Or(given, os.Getenv(KubeProxyVariable)); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("kube-proxy not found: %w", err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("./bench/peers/bin/kube-proxy"); err == nil {
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("kube-proxy"); err == nil {
		return path, nil
	}
	return "", errors.New("kube-proxy not found: give its path with --kube-proxy or " + KubeProxyVariable + ", or build it with \"make peers\"")
}

// runKubeProxy has a node's daemon be kube-proxy.
func (l *Lab) runKubeProxy(d *daemon, n *Node) error {
	program, err := kubeProxyPath(l.options.KubeProxy)
	if err != nil {
		return fmt.Errorf("node %s has proxy: %s: %w", n.Name, n.Proxy, err)
	}
	mode := cmp.Or(n.KubeProxyMode, "iptables")
	d.what = labfile.KubeProxy
	d.start = func() *exec.Cmd {
		return exec.Command(program, kubeProxyArguments(l.Spec(), n.Name, mode, d.kubeconfig())...)
	}
	d.probe = func(ctx context.Context) error { return synced(ctx, d) }
	return nil
}

func kubeProxyArguments(s *Spec, node, mode, config string) []string {
	args := []string{"--kubeconfig=" + config, "--kube-api-content-type=application/json", "--hostname-override=" + node, "--proxy-mode=" + mode,
		// The limits of connection tracking are the machine's.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"}
	return append(args, proxyArguments(s)...)
}

// metricsPort is the default of kube-proxy's --metrics-bind-address, which is on the loopback address.
const metricsPort = 10249

// synced is an error until kube-proxy has written its rules.
func synced(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort), nil)
	if err != nil {
		return err
	}
	r, err := transport(d.ns).RoundTrip(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		// Of one family or of each; it is 0 before the first time.
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && strings.HasPrefix(name, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") {
			if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 {
				return nil
			}
		}
	}
	return errors.Join(lines.Err(), errors.New("kube-proxy has not written its rules"))
}
