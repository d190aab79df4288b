//go:build linux

package diagnose_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

var (
	firstNode = flag.Uint64("kernel.seed", 0, "the first node of TestKernelAgreesWithExamineRules")
	nodes     = flag.Uint64("kernel.nodes", 60, "how many nodes TestKernelAgreesWithExamineRules makes")
	keepGoing = flag.Int64("kernel.keep-going", 3, "after how many disagreements more TestKernelAgreesWithExamineRules ends")
	verbose   = flag.Bool("kernel.verbose", false, "print rules and findings of every node")
)

// TestKernelAgreesWithExamineRules has real clients in a kernel connect to services of generated nodes, half of them with a
// fault, and compares what fails with what ExamineNode finds:
//
//   - a fault that cuts off a service has a finding that names the service or the fault's rule;
//   - a node on which all is as the Services say has none, besides notes about the Services themselves.
//
// A disagreement is found again by -kernel.seed with its number and -kernel.nodes 1.
func TestKernelAgreesWithExamineRules(t *testing.T) {
	t.Parallel()
	requireBackends(t)
	seen := newTally()
	var failures atomic.Int64
	var group sync.WaitGroup
	// Two at once: while packets of one node are sent, the rules of another are read.
	const workers = 2
	for worker := range uint64(workers) {
		group.Go(func() {
			l := &laboratory{TB: t, networks: make(map[networkKey]*network)}
			for seed := *firstNode + worker; seed < *firstNode+*nodes && failures.Load() <= *keepGoing; seed += workers {
				x, err := l.examine(seed, seen)
				if err != nil {
					failures.Add(1)
					t.Errorf("node %d: %v\n%s", seed, err, x)
				} else if *verbose {
					t.Logf("node %d:\n%s", seed, x)
				}
			}
		})
	}
	group.Wait()
	seen.log(t)
	if !t.Failed() {
		seen.require(t, *nodes)
	}
}

// laboratory keeps the networks, which take longer to make than rules take to load.
type laboratory struct {
	testing.TB
	networks map[networkKey]*network
}

type networkKey struct {
	plan *plan
	backend
	both bool
}

func (l *laboratory) network(k networkKey) *network {
	n := l.networks[k]
	if n == nil {
		n = newNetwork(l, k.plan)
		l.networks[k] = n
	}
	return n
}

// examination is a node with its rules, what became of the flows, and what was found.
type examination struct {
	backend
	cluster  *cluster
	firewall string
	fault    *fault // nil: the node is healthy
	injury   injury
	saved    []string
	flows    []*flow
	found    []diagnose.Finding
}

// mostTries is how many faults a node has, one after the other, until one cuts off a service.
const mostTries = 6

// examine makes a node by its number, which determines everything, and judges it.
func (l *laboratory) examine(seed uint64, seen *tally) (x *examination, err error) {
	for try := range uint64(mostTries) {
		if x, err = l.node(seed, 35+try); err == nil {
			err = x.judge()
		}
		if err != nil || x.fault == nil || len(x.cut()) > 0 {
			break
		}
	}
	if err == nil {
		seen.add(x)
	}
	return x, err
}

// node makes a node, and has packets sent and its rules examined.
func (l *laboratory) node(seed, try uint64) (*examination, error) {
	r := rand.New(rand.NewPCG(seed, try))
	x := &examination{backend: backends[seed/2%2], cluster: newCluster(r, plans[r.IntN(len(plans))])}
	if seed%2 == 1 {
		x.fault = &faults[seed/4%uint64(len(faults))]
	}
	rules := x.rules()
	n := l.network(networkKey{x.cluster.plan, x.backend, x.injury.other != nil})
	if err := x.load(n, rules); err != nil {
		return x, err
	}
	x.flows = x.cluster.flows()
	if err := errors.Join(n.entries.Flush(), n.try(x.flows)); err != nil {
		return x, err
	}
	return x, x.diagnose()
}

// rules makes the rules of the node, with its fault.
func (x *examination) rules() *ruleset {
	c := x.cluster
	if x.fault != nil && x.fault.services != nil {
		x.fault.services(c)
	}
	rules := kubeProxy(c.table)
	if x.fault != nil && x.fault.firewall != nil {
		x.firewall = "the fault's"
		x.injury = x.fault.firewall(c, rules)
	} else {
		possible := slices.DeleteFunc(slices.Clone(firewalls), func(f firewall) bool { return f.on != nil && !f.on(c.plan) })
		f := pick(c.Rand, possible...)
		x.firewall = f.name
		f.add(c, rules)
	}
	c.addNoise(rules)
	if x.fault != nil && x.fault.rules != nil {
		x.injury = x.fault.rules(c, rules)
	}
	return rules
}

// load loads the rules, of the other back end, too, and has them printed.
func (x *examination) load(n *network, rules *ruleset) error {
	localnet := "0"
	if x.cluster.node.LocalhostNodePorts {
		localnet = "1" // as kube-proxy sets it
	}
	if err := n.node.SetSysctl("net.ipv4.conf.all.route_localnet", localnet); err != nil {
		return err
	}
	order := []backend{x.backend}
	if other := x.injury.other; other != nil {
		// Of both, the one comes first whose chains were made first.
		order = append(order, x.backend.other())
		if err := errors.Join(x.backend.load(n.node, newRuleset()), x.backend.other().load(n.node, other)); err != nil {
			return err
		}
	}
	if err := x.backend.load(n.node, rules); err != nil {
		return fmt.Errorf("%w\n%s", err, rules)
	}
	for _, b := range order {
		text, err := b.save(n.node)
		if err != nil {
			return err
		}
		x.saved = append(x.saved, text)
	}
	return nil
}

// diagnose has the rules examined that iptables-save printed.
func (x *examination) diagnose() error {
	var dumps []*iptables.Dump
	for i, text := range x.saved {
		file := ""
		if len(x.saved) > 1 {
			file = fmt.Sprintf("rules-%d", i+1)
		}
		d, err := read(text, file)
		if err != nil {
			return fmt.Errorf("reading the rules: %w", err)
		}
		dumps = append(dumps, d...)
	}
	found, _, err := diagnose.ExamineNode(dumps, survey.Known{})
	x.found = found
	return err
}

// judge compares what was found with what became of the flows.
func (x *examination) judge() error {
	serious := x.serious()
	if x.fault == nil {
		for _, f := range x.flows {
			if f.answered != f.want {
				return fmt.Errorf("the generated node is not healthy: %s: answered %v, want %v (%v)", f, f.answered, f.want, f.err)
			}
		}
		if len(serious) > 0 {
			return fmt.Errorf("a finding on a healthy node: %s", serious[0].Text)
		}
		return nil
	}
	if x.injury.rule != "" {
		if err := x.identify(); err != nil {
			return err
		}
	}
	for name, f := range x.cut() {
		if !slices.ContainsFunc(serious, func(d diagnose.Finding) bool { return x.mentions(d, name) }) {
			return fmt.Errorf("missed (%s): %s: not answered (%v)", x.fault.name, f, f.err)
		}
	}
	return nil
}

// serious are the findings about connections that fail, or may.
func (x *examination) serious() []diagnose.Finding {
	return slices.DeleteFunc(slices.Clone(x.found), func(f diagnose.Finding) bool {
		return f.Code.Severity() == diagnose.Note && f.Code != diagnose.HostRuleUnclear
	})
}

// cut are the services that are cut off, each with a flow: one that should be answered, and was not.
func (x *examination) cut() map[string]*flow {
	cut := make(map[string]*flow)
	for _, f := range x.flows {
		if name := f.service.Name.Service().String(); cut[name] == nil && f.due() && !f.answered && !x.injury.portReused(f) {
			cut[name] = f
		}
	}
	return cut
}

// portReused reports whether a rule about node ports may have met the answer of another flow: the kernel has given it a port
// of that range.
func (i injury) portReused(f *flow) bool {
	return strings.Contains(i.rule, " 30000:32767") && !strings.Contains(i.rule, "--ctorigdstport") && f.to.Port() != f.service.NodePort
}

// identify adds the place of an added rule to the injury's words: its line, as iptables-save has printed it.
func (x *examination) identify() error {
	line := fmt.Sprintf("-A %s %s", x.injury.chain, x.injury.rule)
	for i, text := range strings.Split(x.saved[0], "\n") {
		if text == line {
			x.injury.words = append(x.injury.words, []string{line}, []string{fmt.Sprintf("line %d:", i+1)})
			return nil
		}
	}
	return fmt.Errorf("iptables-save does not print the rule that was added: %s", line)
}

// mentions reports whether a finding names the service, or the place of the fault.
func (x *examination) mentions(f diagnose.Finding, service string) bool {
	text := strings.Join([]string{f.Object, f.Text, f.Do}, " ")
	return strings.Contains(text, service) || slices.ContainsFunc(x.injury.words, func(parts []string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// String is the whole story.
func (x *examination) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s, %s\n", x.cluster.plan.name, x.firewall, x.backend)
	if x.fault != nil {
		fmt.Fprintf(&b, "fault: %s: %s\n", x.fault.name, x.injury)
	}
	for _, s := range x.cluster.services {
		fmt.Fprintf(&b, "service %+v\n", *s)
	}
	for _, f := range x.found {
		fmt.Fprintf(&b, "finding %s %s: %s\n", f.Code, f.Code.Severity(), f.Text)
	}
	last := ""
	for _, f := range x.flows {
		if text := fmt.Sprintf("flow %s: answered %v, want %v", f, f.answered, f.want); text != last && f.answered != f.want {
			fmt.Fprintf(&b, "%s (%v)\n", text, f.err)
			last = text
		}
	}
	for _, text := range x.saved {
		for i, line := range strings.Split(text, "\n") {
			fmt.Fprintf(&b, "%4d %s\n", i+1, line)
		}
	}
	return b.String()
}

func (i injury) String() string {
	if i.rule != "" {
		return fmt.Sprintf("table %s: -A %s %s", i.table, i.chain, i.rule)
	}
	return i.text
}
