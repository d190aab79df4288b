package localnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/otherproxy"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Daemon is the program that the node belongs to. It is safe for concurrent use.
type Daemon interface {
	// Describe fills in Observed, Source, Confinement, FlowLog, the faults of Rules and HostFirewall, and HostNAT
	// without its counters.
	Describe(*observe.Daemon)
	// CheckRules is [engine.Engine.CheckRules].
	CheckRules(context.Context) (engine.RuleCheck, error)
}

// checkTimeout is how long the kernel rules may take to be compared: longer than a large table needs.
const checkTimeout = 20 * time.Second

// Status describes the daemon.
func (n *Node) Status(ctx context.Context) ([]observe.Status, error) {
	if n.config.Daemon == nil {
		return nil, &observe.Error{Status: 404, Message: "the status of the daemon is not available here"}
	}
	d := observe.Daemon{
		Version: n.config.Version, ProcessID: os.Getpid(), Started: n.config.Journal.Started(), Time: time.Now(),
		DecidedBy: make(map[string]string), Queues: []observe.Queue{}, Connections: connections(),
	}
	n.config.Daemon.Describe(&d)
	if d.Confinement.Capabilities == nil {
		d.Confinement.Capabilities = []observe.Capability{}
	}
	if tables, err := n.Tables(ctx); err == nil {
		d.Table = &tables[0]
	}
	switch s := n.config.Stats(); {
	case d.Observed != "":
		d.Kernel = new(n.config.Journal.Kernel())
	case s != nil:
		count(&d, s)
		n.checkRules(ctx, &d)
	default:
		d.Rules.Error = "the datapath has not started"
	}
	return []observe.Status{{Node: n.config.Name, Problems: problems(&d), Daemon: &d}}, nil
}

// connections reads how full the connection table is.
func connections() *observe.Connections {
	var numbers [2]uint64
	for i, file := range []string{"nf_conntrack_count", "nf_conntrack_max"} {
		b, err := os.ReadFile("/proc/sys/net/netfilter/" + file)
		if err == nil {
			numbers[i], err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		}
		if err != nil {
			return nil
		}
	}
	return &observe.Connections{Entries: numbers[0], Limit: numbers[1]}
}

// count copies the datapath's counters.
func count(d *observe.Daemon, s *engine.Stats) {
	for _, q := range s.Queues {
		d.Queues = append(d.Queues, observe.Queue{
			Number: q.Number, NoService: q.NoService, PortID: q.PortID, Packets: q.Packets, Waiting: q.Waiting, Overrun: q.Overrun, Refused: q.Refused, Stuck: q.Stuck,
		})
	}
	d.DecidedByCopy = s.DecidedByCopy
	d.Losses = observe.Losses{
		Undecided: s.Undecided, TableFull: s.TableFull, NoRoute: s.NoRoute, OtherFailures: s.Failed - s.TableFull - s.NoRoute,
		Evicted: s.EvictedFull + s.EvictedCrowded, ForgottenClients: s.ForgottenClients, InvalidDropped: s.InvalidDropped, Records: s.LostRecords,
	}
	d.Rules.Reinstalled, d.Rules.Repaired = s.Reinstalled, s.Repaired
	d.HostNAT.Masqueraded, d.HostNAT.UnknownFlows = s.HostMasqueraded, s.HostUnknown
	d.HostFirewall.Repaired = s.FilterRepaired
}

// checkRules compares the kernel rules with the service table.
func (n *Node) checkRules(ctx context.Context, d *observe.Daemon) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c, err := n.config.Daemon.CheckRules(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no result within %s", checkTimeout)
	}
	r := &d.Rules
	if err = errors.Join(err, c.Err); err != nil {
		r.Error = err.Error()
	} else {
		r.Compared, r.InStep = &c.Compared, len(c.Comparison.Differences) == 0
		r.Chains, r.Rules, r.Elements, r.Differences = c.Comparison.Chains, c.Comparison.Rules, c.Comparison.Elements, c.Comparison.Differences
	}
	if !c.Audited.IsZero() {
		r.Audited = &c.Audited
	}
	for f, queued := range c.Queued {
		d.DecidedBy[f.String()] = observe.DecidedByCopy
		if queued {
			d.DecidedBy[f.String()] = observe.DecidedByDaemon
		}
	}
}

// problems are the conditions of a daemon that need an operator.
func problems(d *observe.Daemon) []observe.Problem {
	list := []observe.Problem{}
	add := func(code, format string, a ...any) {
		// Joined errors have several lines.
		list = append(list, observe.Problem{Code: code, Text: strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "; ")})
	}
	if d.Source.Saved != nil {
		add(observe.ProblemSavedObjects, "the API server does not answer: the daemon serves by the objects that were saved at %s", d.Source.Saved.Format(time.RFC3339))
	}
	if d.Source.Late {
		add(observe.ProblemChangesLate, "a change of Services or endpoints waits too long to come into force")
	}
	if f := d.HostFirewall.Fault; f != "" {
		add(observe.ProblemHostFirewall, "rules are missing in the host's firewall, which may drop flows to services: %s", f)
	}
	if d.FlowLog != "" {
		add(observe.ProblemFlowLog, "the flow log gets no more records, and they are lost: %s; make room, and restart the daemon", d.FlowLog)
	}
	if f := d.Rules.Fault; f != "" {
		add(observe.ProblemRulesDamaged, "the kernel rules are damaged, and the repair fails: %s", f)
	}
	if d.Table == nil {
		waiting := ""
		if d.Source.WaitingFor != "" {
			waiting = ": waiting for " + d.Source.WaitingFor
		}
		add(observe.ProblemNotServing, "the daemon does not serve yet%s", waiting)
		return list
	}
	switch r := &d.Rules; {
	case d.Observed != "":
		if !d.Kernel.Following {
			add(observe.ProblemNotObserving, "the kernel's connections are not followed, so flows have no records: %s", d.Kernel.Why)
		} else if d.Observed == otherproxy.Cilium {
			add(observe.ProblemNotObserving, "Cilium translates in eBPF, before connection tracking: flows to Services have records without the Service, or none")
		}
	case r.Error != "":
		add(observe.ProblemRulesUnknown, "cannot compare the kernel rules with the service table: %s", r.Error)
	case !r.InStep:
		add(observe.ProblemRulesDiffer, "the kernel rules differ from the service table: %s", quantity.Some(r.Differences, 3))
	}
	for _, q := range d.Queues {
		if q.Stuck {
			add(observe.ProblemWorkerStuck, "queue %d: its worker makes no progress", q.Number)
		}
	}
	for _, f := range []string{"IPv4", "IPv6"} {
		if d.DecidedBy[f] == observe.DecidedByCopy {
			add(observe.ProblemKernelDecides, "new %s flows are not queued: the kernel's copy of the service table decides them", f)
		}
	}
	return list
}
