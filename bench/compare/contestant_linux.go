package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
)

// contestant is one way for packets to reach an endpoint.
type contestant struct {
	name string
	// what it is, for the table's notes.
	what string
	// proxy: it follows the API server, so that starts and changes can be measured.
	proxy bool
	// direct: clients address endpoints, not services.
	direct bool
	// freshOnly: it ignores old connection entries, so it can only be measured without any.
	freshOnly bool
	// missing is the reason why it cannot run here; empty: it can.
	missing string
	// start starts its process in the node's namespace; nil: there is none.
	start func(t *topology, o *objects, options ...string) (*process.Process, error)
	// watched starts the service proxy that the process only observes; nil: there is none.
	watched func(t *topology, o *objects, options ...string) (*process.Process, error)
	// nfqproxy: it is a version of this program.
	nfqproxy bool
	// readers follow all flows through its flow API; stalled ones request them, and then read
	// nothing.
	readers, stalled int
	// rules is the command that lists its kernel rules; nil: not counted.
	rules []string
}

// As nfqproxy installs them.
const (
	firstQueue  = 100
	seenTimeout = 20 * time.Second
	seenSize    = 65536
)

// contestants lists all, those that cannot run here included.
func (p *plan) contestants() ([]contestant, error) {
	legacy, err := alternatives("xtables-legacy-multi")
	if err != nil {
		return nil, err
	}
	nft, err := alternatives("xtables-nft-multi")
	if err != nil {
		return nil, err
	}
	all := []contestant{
		{name: "direct", what: "clients address the endpoints; no rules, no connection tracking", direct: true},
		p.nfqproxyAs("nfqproxy", p.nfqproxy[0], "this program with its defaults: it records flows and their life cycles"),
		p.nfqproxyAs("nfqproxy-followed", p.nfqproxy[0], "nfqproxy, with two readers that follow all flows").readBy(2, 0),
		p.nfqproxyAs("nfqproxy-stalled", p.nfqproxy[0], "nfqproxy, with a reader that follows all flows and reads none").readBy(0, 1),
		p.nfqproxyAs("nfqproxy-unseen", p.nfqproxy[0], `nfqproxy with --flow-api "": without flow records, like the other contestants`, "--flow-api="),
		p.nfqproxyAs("nfqproxy-busy", p.nfqproxy[0], "nfqproxy with --busy-poll 100us", "--busy-poll=100us"),
		p.nfqproxyAs("nfqproxy-kernel", p.nfqproxy[0], "nfqproxy with --decide kernel", "--decide=kernel"),
		p.nfqproxyAs("nfqproxy-kernel-unseen", p.nfqproxy[0], `nfqproxy with --decide kernel and --flow-api "": without flow records, like the other contestants`, "--decide=kernel", "--flow-api="),
		p.nfqproxyAs("nfqproxy-scope", p.nfqproxy[0], "nfqproxy with --scope services", "--scope=services"),
		p.nfqproxyAs("nfqproxy-shadow", p.nfqproxy[0], "nfqproxy with --shadow p2c,maglev", "--shadow=p2c,maglev"),
		{name: "iptables-nft", what: "kube-proxy, iptables mode, iptables' nf_tables back end", proxy: true, start: kubeProxy("iptables", nft), missing: missing("xtables-nft-multi"), rules: []string{"xtables-nft-multi", "iptables-nft-save"}},
		{name: "iptables-legacy", what: "kube-proxy, iptables mode, iptables' legacy back end", proxy: true, start: kubeProxy("iptables", legacy), missing: missing("xtables-legacy-multi"), rules: []string{"xtables-legacy-multi", "iptables-legacy-save"}},
		{name: "nftables", what: "kube-proxy, nftables mode", proxy: true, start: kubeProxy("nftables", nft), missing: missing("nft"), rules: []string{"nft", "-a", "list", "ruleset"}},
	}
	metrics := ""
	if p.profile > 0 {
		metrics = observerAddress.String()
	}
	for _, watched := range all[len(all)-3:] {
		c := p.nfqproxyAs(watched.name+"-observed", p.nfqproxy[0], watched.what+", and nfqproxyd --observe beside it, whose CPU time and memory are given", "--observe", "--accounting", "--healthz-bind-address=", "--metrics-bind-address="+metrics)
		c.watched, c.proxy, c.nfqproxy, c.missing, c.rules = watched.start, false, false, cmp.Or(c.missing, watched.missing), nil
		all = append(all, c)
	}
	for _, program := range p.nfqproxy[1:] {
		all = append(all, p.nfqproxyAs(filepath.Base(program), program, program))
	}
	for _, queues := range []int{1, 2} {
		suffix := fmt.Sprintf("-%dq", queues)
		all = append(all,
			contestant{name: "accept" + suffix, what: "C: accept every packet; clients address the endpoints", direct: true, start: p.startFloor("accept", queues), missing: p.missingFloor("accept")},
			contestant{name: "translate" + suffix, what: "C: write the entry, read the answer, replace an old entry, give the verdict", start: p.startFloor("translate", queues, "checked"), missing: p.missingFloor("translate")},
			contestant{name: "translate-once" + suffix, what: "C: entry and verdict in one datagram", start: p.startFloor("translate", queues, "once"), missing: p.missingFloor("translate"), freshOnly: true},
		)
	}
	for _, name := range p.only {
		if !slices.ContainsFunc(all, func(c contestant) bool { return c.name == name }) {
			return nil, fmt.Errorf("-only: no contestant %q", name)
		}
	}
	return slices.DeleteFunc(all, func(c contestant) bool { return len(p.only) > 0 && !slices.Contains(p.only, c.name) }), nil
}

func missing(program string) string {
	if _, err := exec.LookPath(program); err != nil {
		return err.Error()
	}
	return ""
}

func (p *plan) missingFloor(program string) string {
	if why := missing(filepath.Join(p.floor, program)); why != "" {
		return why + ": make bench builds it where gcc and libnetfilter-queue-dev are installed"
	}
	return ""
}

func (p *plan) nfqproxyAs(name, program, what string, options ...string) contestant {
	return contestant{
		name: name, what: what, proxy: true, nfqproxy: true, missing: missing(program), rules: []string{"nft", "-a", "list", "ruleset"},
		start: func(t *topology, o *objects, more ...string) (*process.Process, error) {
			return p.startNfqproxy(program, t, o, append(slices.Clone(options), more...)...)
		},
	}
}

// readBy adds readers of the flow API.
func (c contestant) readBy(readers, stalled int) contestant {
	c.readers, c.stalled = readers, stalled
	return c
}

func (p *plan) startNfqproxy(program string, t *topology, o *objects, options ...string) (*process.Process, error) {
	config := filepath.Join(filepath.Dir(o.kubeconfig), "nfqproxy.conf")
	if err := apiserver.WriteConfig(config); err != nil {
		return nil, err
	}
	args := []string{"--kubeconfig=" + o.kubeconfig, "--config=" + config, "--hostname-override=" + nodeName, "--cluster-cidr=" + clusterRange.String()}
	if p.profile > 0 {
		args = append(args, "--profiling")
	}
	return process.Start(t.node, exec.Command(program, append(args, options...)...))
}

// kubeProxy is kube-proxy with the tools in a directory before all others.
func kubeProxy(mode, tools string) func(*topology, *objects, ...string) (*process.Process, error) {
	return func(t *topology, o *objects, _ ...string) (*process.Process, error) {
		cmd, err := cluster.KubeProxyCommand(o.kubeconfig, nodeName, mode, "--cluster-cidr="+clusterRange.String())
		if err != nil {
			return nil, err
		}
		cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
		return process.Start(t.node, cmd)
	}
}

// alternatives makes a directory in which iptables is the given one. It is under
// /run, which is this program's own and goes with it.
func alternatives(multi string) (string, error) {
	path, err := exec.LookPath(multi)
	if err != nil {
		return "", nil // reported for the contestants that need it
	}
	dir := filepath.Join("/run", multi)
	err = os.MkdirAll(dir, 0o755)
	for name := range strings.FieldsSeq("iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore") {
		err = errors.Join(err, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir, err
}

// startFloor installs the rules that nfqproxy installs and starts a C program on its
// queues.
func (p *plan) startFloor(program string, queues int, variant ...string) func(*topology, *objects, ...string) (*process.Process, error) {
	return func(t *topology, _ *objects, _ ...string) (*process.Process, error) {
		args := append([]string{fmt.Sprint(firstQueue), fmt.Sprint(queues)}, variant...)
		if len(variant) > 0 {
			args = append(args, firstService.String(), firstEndpoint.String(), fmt.Sprint(maxEndpoints), fmt.Sprint(echoPort))
		}
		c, err := process.Start(t.node, exec.Command(filepath.Join(p.floor, program), args...))
		if err != nil {
			return nil, err
		}
		if err := c.Await("ready"); err != nil {
			return nil, err
		}
		return c, t.node.Do(func() error {
			native, err := ruleset.Probe()
			if err != nil {
				return err
			}
			conn, err := ruleset.OpenConnection(false)
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // the rules are installed
			rules, err := conn.Install(ruleset.Spec{
				// All packets go to the queues of those to no service, which follow.
				FirstQueue: firstQueue - uint16(queues), Queues: uint16(queues), RejectMark: 0x6e667172, MasqueradeMark: 0x4000, ConnMark: 0x2000,
				LocalhostNodePorts: true, SeenTimeout: seenTimeout, SeenSize: seenSize, Native: native,
			}, new(decision.Table), false)
			if err != nil {
				return err
			}
			return rules.Close()
		})
	}
}
