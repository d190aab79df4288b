package observetest

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Status is the status of node-a, which is all right.
func Status() observe.Status {
	at := func(age time.Duration) *time.Time { t := Now.Add(-age); return &t }
	return observe.Status{
		Node: "node-a", Problems: []observe.Problem{},
		Daemon: &observe.Daemon{
			Version: "v1.2.3", ProcessID: 4711, Started: *at(2*time.Hour + 5*time.Minute), Time: Now,
			Table:       &observe.Table{Node: "node-a", Generation: 12, Built: *at(3 * time.Minute), Services: 10, ServicePorts: 14, Endpoints: 1},
			Connections: &observe.Connections{Entries: 312, Limit: 262144},
			DecidedBy:   map[string]string{"IPv4": observe.DecidedByDaemon, "IPv6": observe.DecidedByDaemon},
			Queues: []observe.Queue{
				{Number: 100, PortID: 4711, Packets: 123456},
				{Number: 101, PortID: 3894012345, NoService: true, Packets: 98, Waiting: 3, Refused: 1},
			},
			Rules:   observe.KernelRules{InStep: true, Compared: at(0), Chains: 53, Rules: 111, Elements: 1234, Audited: at(12 * time.Second), Repaired: 1},
			HostNAT: observe.HostNAT{Applied: true, Masqueraded: 5},
			Confinement: observe.Confinement{
				Capabilities: []observe.Capability{{Name: "CAP_NET_ADMIN", Use: "nftables"}}, NoNewPrivs: true, SystemCalls: 98, LandlockABI: 6,
				Changes: []string{"writing /proc/sys/net", "locks in /run"},
			},
		},
	}
}

// Problems lists the problems.
func Problems() []string {
	return []string{
		observe.ProblemUnreachable, observe.ProblemNotServing, observe.ProblemSavedObjects, observe.ProblemChangesLate, observe.ProblemRulesDamaged, observe.ProblemRulesDiffer, observe.ProblemRulesUnknown,
		observe.ProblemKernelDecides, observe.ProblemWorkerStuck, observe.ProblemHostFirewall, observe.ProblemFlowLog, observe.ProblemNotObserving,
	}
}
