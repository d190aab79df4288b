package observetest

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
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

func stats() []observe.Stats {
	return []observe.Stats{{
		Node: "node-a", Version: "v1", Started: time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC),
		Packets: 1660, Verdicts: map[string]uint64{"dnat": 1649, "reject": 7, "drop": 2, "accept": 2},
		Reasons: map[string]uint64{"balanced": 1644, "affinity": 5, "no-endpoints": 7, "source-not-allowed": 2, "not-a-service": 2},
		Entries: map[string]uint64{"created": 1649}, Known: observe.Known{Flows: 1660, Capacity: 65536, Open: 37},
		Readers: 1, Kernel: observe.Kernel{Following: true, Accounting: true, Timestamps: true},
	}}
}
