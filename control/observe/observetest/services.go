package observetest

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// services are four: one whose draws spread as they should, one whose do not, one whose
// only flow is unanswered, and one that refuses.
func services() observe.Services {
	since := time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)
	service := func(name, port string, number uint16, ip string) observe.Service {
		full := "default/" + name
		if port != "" {
			full += ":" + port
		}
		return observe.Service{
			Service: full, Namespace: "default", Name: name, PortName: port, Family: "IPv4", Protocol: "TCP",
			ClusterIP: ip, Port: number, InternalPolicy: "Cluster", ExternalPolicy: "Cluster",
		}
	}
	nobody := service("nobody-home", "", 80, "10.96.0.80")
	nobody.Flows = observe.Flows{Total: 7, Rejected: 7}
	nobody.Refused = map[string]uint64{"no-endpoints": 7}

	sticky := service("sticky", "", 80, "10.96.0.50")
	sticky.AffinitySeconds = 600
	sticky.Flows = observe.Flows{Total: 9, Drawn: 4, Affinity: 5, Unanswered: 2, Open: 1}
	sticky.Endpoints = []observe.Endpoint{
		{Endpoint: "10.244.1.2:8080", Pod: "default/web-1", Node: "node-a", Local: true, Flows: observe.Flows{Total: 3, Drawn: 1, Affinity: 2}, Expected: 0.5, Observed: 0.25},
		{Endpoint: "10.244.2.3:8080", Pod: "default/web-3", Node: "node-b", Flows: observe.Flows{Total: 6, Drawn: 3, Affinity: 3, Unanswered: 2, Open: 1}, Expected: 0.5, Observed: 0.75},
	}
	sticky.Fit = &observe.Fit{Since: since, Draws: 4, ChiSquare: 1, DegreesOfFreedom: 1, PValue: 0.317}

	web := service("web", "http", 80, "10.96.0.20")
	web.NodePort = 30080
	web.Flows = observe.Flows{Total: 1240, Drawn: 1240, Refused: 3, Reset: 1, Open: 32, BytesSent: 302144, BytesReceived: 10502634}
	web.Endpoints = []observe.Endpoint{
		{Endpoint: "10.244.1.2:8080", Pod: "default/web-1", Node: "node-a", Local: true, Flows: observe.Flows{Total: 633, Drawn: 633, Refused: 3, Open: 12}, Expected: 0.5, Observed: 0.5105},
		{Endpoint: "10.244.2.2:8080", Pod: "default/web-2", Node: "node-b", Flows: observe.Flows{Total: 607, Drawn: 607, Reset: 1, Open: 20}, Expected: 0.5, Observed: 0.4895},
		{Endpoint: "10.244.2.3:8080", Pod: "default/web-3", Node: "node-b", Excluded: "not-ready"},
	}
	web.Changes = changes()
	web.Fit = &observe.Fit{Since: since, Draws: 1240, ChiSquare: 0.5452, DegreesOfFreedom: 1, PValue: 0.4603}

	skewed := service("skewed", "", 8080, "10.96.0.60")
	skewed.Flows = observe.Flows{Total: 400, Drawn: 400, Dropped: 2, Open: 4}
	skewed.Refused = map[string]uint64{"source-not-allowed": 2}
	skewed.Endpoints = []observe.Endpoint{
		{Endpoint: "10.244.1.2:8080", Pod: "default/web-1", Node: "node-a", Local: true, Flows: observe.Flows{Total: 300, Drawn: 300}, Expected: 0.5, Observed: 0.75},
		{Endpoint: "10.244.2.2:8080", Pod: "default/web-2", Node: "node-b", Flows: observe.Flows{Total: 100, Drawn: 100}, Expected: 0.5, Observed: 0.25},
	}
	skewed.Fit = &observe.Fit{Since: since, Draws: 400, ChiSquare: 100, DegreesOfFreedom: 1, PValue: 1.5e-23}
	return observe.Services{Nodes: []string{"node-a"}, Services: []observe.Service{nobody, skewed, sticky, web}}
}

// changes are two of two nodes: an endpoint is added, and later not ready.
func changes() []observe.Change {
	began := time.Date(2026, time.January, 2, 12, 0, 30, 0, time.UTC)
	at := func(milliseconds float64) *time.Time {
		return new(began.Add(time.Duration(milliseconds * float64(time.Millisecond))))
	}
	of := func(id string, t *time.Time, endpoint string) *observe.ChangeFlow {
		return &observe.ChangeFlow{ID: id, Time: *t, Verdict: "dnat", Endpoint: endpoint}
	}
	added := func(first *observe.ChangeFlow) []observe.EndpointChange {
		return []observe.EndpointChange{{Endpoint: "10.244.2.3:8080", Pod: "default/web-3", Change: observe.EndpointAdded, FirstFlow: first}}
	}
	gone := func(last *observe.ChangeFlow, open uint64, closed *time.Time) []observe.EndpointChange {
		return []observe.EndpointChange{{Endpoint: "10.244.2.3:8080", Pod: "default/web-3", Change: observe.EndpointExcluded, Excluded: "not-ready", LastFlow: last, Open: &open, Closed: closed}}
	}
	return []observe.Change{
		{Node: "node-a", Generation: 2, Received: at(12), Time: *at(12.4), InForce: at(15.1), FirstFlow: of("abc-7", at(31.25), "10.244.2.3:8080"), Endpoints: added(of("abc-7", at(31.25), "10.244.2.3:8080"))},
		{Node: "node-b", Generation: 3, Received: at(14), Time: *at(14.2), InForce: at(18), Endpoints: added(nil)},
		{Node: "node-a", Generation: 3, Changed: at(60_000), Received: at(60_250), Time: *at(60_250.3), InForce: at(60_253), FirstFlow: of("abc-9", at(60_251.5), "10.244.1.2:8080"), Endpoints: gone(of("abc-8", at(60_249), "10.244.2.3:8080"), 2, nil)},
		{Node: "node-b", Generation: 4, Changed: at(60_000), Received: at(60_260), Time: *at(60_260.3), InForce: at(60_264), FirstFlow: of("def-4", at(60_300), "10.244.1.2:8080"), Endpoints: gone(of("def-3", at(60_255), "10.244.2.3:8080"), 0, at(60_900))},
	}
}

func stats() []observe.Stats {
	return []observe.Stats{{
		Node: "node-a", Version: "v1", Started: time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC),
		Packets: 1660, Verdicts: map[string]uint64{"dnat": 1649, "reject": 7, "drop": 2, "accept": 2},
		Reasons: map[string]uint64{"balanced": 1644, "affinity": 5, "no-endpoints": 7, "source-not-allowed": 2, "not-a-service": 2},
		Entries: map[string]uint64{"created": 1649}, Known: observe.Known{Flows: 1660, Capacity: 65536, Open: 37},
		Generations: observe.Generations{Kept: 4, Oldest: 1, Bytes: 40000},
		Readers:     1, Kernel: observe.Kernel{Following: true, Accounting: true, Timestamps: true},
	}}
}

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
