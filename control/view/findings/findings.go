// Package findings finds problems in what nodes observe: their flows, their service tables and their daemons.
package findings

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Bounds of what counts as a finding.
const (
	// falsePositiveRate is the accepted probability of a finding about distributions in a healthy cluster.
	falsePositiveRate = 1e-4
	// settled is how long nodes may have different service tables.
	settled = 10 * time.Second
	// cleanup is how long connection entries of UDP may stay when an endpoint is removed: one pass of package datapath/live/reconcile that
	// finds all of them, with time to spare.
	cleanup = 40 * time.Second
	// ports are those that a node has for masqueraded flows to one address and port (nf_nat: 1024 to 65535).
	ports = 65536 - 1024
	// repeats is the share of flows (one in this many) whose first packet may be sent again without a finding.
	repeats, fewRepeats = 20, 5
	// outdatedAfter is how long an observed proxy may send new flows to an endpoint that is out of use.
	outdatedAfter = 5 * time.Second
)

// Recent returns flows of the last five minutes, the oldest first, at most the newest 10,000.
func Recent(ctx context.Context, o observe.Observer) (records []*flow.Record, err error) {
	return until(ctx, o, time.Time{})
}

// until returns flows as Recent does, of five minutes until the minute that begins at a time; zero: until now.
func until(ctx context.Context, o observe.Observer, at time.Time) (records []*flow.Record, err error) {
	q := observe.FlowQuery{Verdict: "dnat", Since: "5m", Limit: "10000"}
	if !at.IsZero() {
		q.Since, q.Until = at.Add(-5*time.Minute).Format(time.RFC3339Nano), at.Add(time.Minute).Format(time.RFC3339Nano)
	}
	return recordsOf(ctx, o, q)
}

// recordsOf returns the records that a query lists.
func recordsOf(ctx context.Context, o observe.Observer, q observe.FlowQuery) (records []*flow.Record, err error) {
	err = o.Flows(ctx, q, func(item observe.Item) error {
		if item.Record != nil {
			records = append(records, item.Record)
		}
		return nil
	})
	return records, err
}

// Observed returns the findings, the worst first. The records are recent flows. Each error is that of the
// observer; the status of daemons is left out where it is not available.
func Observed(ctx context.Context, o observe.Observer, records []*flow.Record) ([]diagnose.Finding, error) {
	status, err := o.Status(ctx)
	if err != nil {
		status = nil // an earlier version's daemon
	}
	found, err := observed(ctx, o, records, status)
	if err != nil {
		return nil, err
	}
	found = append(found, ofStatus(status, records, nil)...)
	diagnose.Sort(found)
	return found, nil
}

// observed are the findings but those about daemons.
func observed(ctx context.Context, o observe.Observer, records []*flow.Record, status []observe.Status) ([]diagnose.Finding, error) {
	services, err := o.Services(ctx, observe.ServiceQuery{Active: true, Changes: true})
	if err != nil {
		return nil, err
	}
	tables, err := o.Tables(ctx)
	if err != nil {
		return nil, err
	}
	untranslated, err := notTranslated(ctx, o, services.Services)
	if err != nil {
		return nil, err
	}
	return slices.Concat(ofServices(services.Services, time.Now()), ofTables(tables, time.Now()), ofFlows(records), ofProxy(slices.Concat(records, untranslated)), ofLags(lags(services.Services, status))), nil
}

// notTranslated returns recent flows to services that were not translated, which [Recent] leaves out.
func notTranslated(ctx context.Context, o observe.Observer, services []observe.Service) (records []*flow.Record, err error) {
	if !slices.ContainsFunc(services, func(s observe.Service) bool { return s.Flows.NotTranslated > 0 }) {
		return nil, nil
	}
	return recordsOf(ctx, o, observe.FlowQuery{Reason: decision.NotTranslated.String(), Since: "5m", Limit: "1000"})
}

// ofServices looks at the distribution of flows.
func ofServices(list []observe.Service, now time.Time) (found []diagnose.Finding) {
	tests := 0
	for i := range list {
		if testable(&list[i]) {
			tests++
		}
	}
	for i := range list {
		s := &list[i]
		object := "Service " + s.Namespace + "/" + s.Name
		even := true
		if testable(s) && s.Fit.PValue < falsePositiveRate/float64(tests) {
			even = false
			most := slices.MaxFunc(s.Endpoints, func(a, b observe.Endpoint) int { return cmp.Compare(a.Observed-a.Expected, b.Observed-b.Expected) })
			found = append(found, diagnose.Finding{
				Code: diagnose.Uneven, Object: object,
				Text: fmt.Sprintf("new flows to %s are not spread evenly: %s gets %.0f %% of %d, and should get %.0f %%; by chance, this happens once in %.0g times", s.Service, most.Endpoint, 100*most.Observed, s.Fit.Draws, 100*most.Expected, 1/s.Fit.PValue),
				Do:   "check whether other programs change the rules of nfqproxy: nfqproxy status",
			})
		}
		if even {
			found = append(found, openFlows(s, object, tests)...)
		}
		for _, e := range s.Endpoints {
			if e.Removed && e.Flows.Open > 0 && s.Protocol == "UDP" && now.Sub(removedAt(s, e.Endpoint)) > cleanup {
				found = append(found, diagnose.Finding{
					Code: diagnose.StuckUDP, Object: object,
					Text: fmt.Sprintf("%d UDP flows to %s still go to %s, which is no longer an endpoint", e.Flows.Open, s.Service, e.Endpoint),
					Do:   "nfqproxy removes their connection entries within 30 seconds; look for errors in its log",
				})
			}
			if e.Flows.Open*5 >= ports*4 {
				found = append(found, diagnose.Finding{
					Code: diagnose.PortsNearlyUsed, Object: object,
					Text: fmt.Sprintf("%d flows are open to %s: a node has %d ports for masqueraded flows to one endpoint", e.Flows.Open, e.Endpoint, ports),
					Do:   "run more endpoints, have clients reuse connections, or avoid masquerading (externalTrafficPolicy: Local)",
				})
			}
		}
	}
	return found
}

// removedAt is when a service lost an endpoint last; zero: not known, so long ago.
func removedAt(s *observe.Service, endpoint string) (at time.Time) {
	for _, c := range s.Changes { // the oldest first
		if slices.ContainsFunc(c.Endpoints, func(e observe.EndpointChange) bool {
			return e.Endpoint == endpoint && e.Change == observe.EndpointRemoved
		}) {
			at = c.Time
		}
	}
	return at
}

// testable reports whether the distribution can be tested: 5 expected selections for each endpoint.
func testable(s *observe.Service) bool {
	if s.Fit == nil {
		return false
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Expected > 0 && e.Expected*float64(s.Fit.Draws) < 5 {
			return false
		}
	}
	return s.Fit.DegreesOfFreedom > 0
}

// openFlows tests whether the open flows of a service are spread as its new ones.
func openFlows(s *observe.Service, object string, tests int) []diagnose.Finding {
	var open, share float64
	endpoints := 0
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Expected > 0 && !e.Removed {
			open, share, endpoints = open+float64(e.Flows.Open), share+e.Expected, endpoints+1
		}
	}
	if endpoints < 2 || s.Protocol == "UDP" || s.AffinitySeconds > 0 {
		return nil
	}
	chiSquare := 0.0
	var least *observe.Endpoint
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Expected <= 0 || e.Removed {
			continue
		}
		want := open * e.Expected / share
		if want < 5 {
			return nil // too few to test
		}
		d := float64(e.Flows.Open) - want
		chiSquare += d * d / want
		if least == nil || float64(e.Flows.Open)/e.Expected < float64(least.Flows.Open)/least.Expected {
			least = e
		}
	}
	if observe.PValue(chiSquare, endpoints-1) >= falsePositiveRate/float64(max(tests, 1)) {
		return nil
	}
	return []diagnose.Finding{{
		Code: diagnose.OldConnections, Object: object,
		Text: fmt.Sprintf("new connections to %s are spread evenly, but open ones are not: %s has %d of %.0f. Connections stay with their endpoint: those opened before the last change of endpoints are with the older ones", s.Service, least.Endpoint, least.Flows.Open, open),
		Do:   "have clients or servers close connections after some time, or use a proxy that balances requests",
	}}
}

// ofTables looks for nodes with different service tables.
func ofTables(tables []observe.Table, now time.Time) []diagnose.Finding {
	with := make(map[string][]string) // nodes by digest
	latest := time.Time{}
	for i := range tables {
		t := &tables[i]
		if t.Digest == "" { // of a daemon of an older version
			continue
		}
		with[t.Digest] = append(with[t.Digest], t.Node)
		if t.Built.After(latest) {
			latest = t.Built
		}
	}
	if len(with) < 2 || now.Sub(latest) < settled {
		return nil
	}
	groups := slices.SortedFunc(maps.Values(with), func(a, b []string) int {
		return cmp.Or(len(b)-len(a), slices.Compare(a, b))
	})
	var texts []string
	for _, g := range groups {
		texts = append(texts, nearest.Few(g))
	}
	return []diagnose.Finding{{
		Code: diagnose.TablesDiffer, Object: "Node " + groups[len(groups)-1][0],
		Text: fmt.Sprintf("nodes have had different services or endpoints for %s: %s", now.Sub(latest).Truncate(time.Second), strings.Join(texts, " | ")),
		Do:   "compare what the nodes read: nfqproxy status shows where their objects come from, and since when",
	}}
}

// ofFlows looks at recent flows, service by service.
func ofFlows(records []*flow.Record) (found []diagnose.Finding) {
	type counts struct{ all, repeated int }
	services := make(map[string]*counts)
	for _, r := range records {
		if r.Service == "" || r.Life == nil || r.Protocol != "TCP" {
			continue
		}
		c := services[r.Service]
		if c == nil {
			c = new(counts)
			services[r.Service] = c
		}
		c.all++
		if r.Life.Repeated > 0 && r.Life.Answered {
			c.repeated++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		c := services[name]
		if c.repeated < fewRepeats || c.repeated*repeats < c.all {
			continue
		}
		service, _, _ := strings.Cut(name, ":")
		found = append(found, diagnose.Finding{
			Code: diagnose.Repeats, Object: "Service " + service,
			Text: fmt.Sprintf("clients retransmitted the first packet of %d of %d recent flows to %s after a second or more: packets are lost, or its Pods are slow to accept", c.repeated, c.all, name),
			Do:   "look for losses with nfqproxy status, and for full listen backlogs in the Pods (ss -lnt, nstat ListenOverflows)",
		})
	}
	return found
}

// ofStatus looks at the daemons. read are the nodes that were read.
func ofStatus(nodes []observe.Status, records []*flow.Record, read map[string]*reading) (found []diagnose.Finding) {
	for i := range nodes {
		n := &nodes[i]
		for _, p := range n.Problems {
			found = append(found, diagnose.Finding{Code: diagnose.NodeProblem, Object: "Node " + n.Node, Text: fmt.Sprintf("%s: %s (%s)", n.Node, p.Text, p.Code), Do: remedy(n.Node, p, read[n.Node])})
		}
		if n.Daemon == nil || n.Daemon.Connections == nil || !n.Daemon.Connections.NearlyFull() {
			continue
		}
		c := n.Daemon.Connections
		text := fmt.Sprintf("the connection table of %s has %d entries of %d: new connections fail when it is full", n.Node, c.Entries, c.Limit)
		if by := sources(n.Node, records); by != "" {
			text += "; most recent flows are from " + by
		}
		found = append(found, diagnose.Finding{
			Code: diagnose.TableNearlyFull, Object: "Node " + n.Node, Text: text,
			Do: "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore in the configuration file), or have the clients open fewer connections",
		})
	}
	return found
}

// remedy is what to do about a problem of a daemon.
func remedy(node string, p observe.Problem, r *reading) string {
	if p.Code == observe.ProblemUnreachable {
		if r != nil && len(r.State.Stopped) > 0 {
			return fmt.Sprintf("its process is stopped (state T); on node %s: kill -CONT %d. Until it answers, new connections to services may hang there; open ones go on", node, r.State.Stopped[0])
		}
		if r != nil && r.State.Daemons == 0 {
			return fmt.Sprintf("no process nfqproxyd is in the network namespace of the node; on node %s: systemctl restart nfqproxy, or delete its Pod; in a lab: nfqproxy lab fault rm. Until it runs, the kernel's copy of the service table decides", node)
		}
		return "look on the node whether its process runs and is not stopped (ps -o stat,wchan), and what it logged last. Until it answers, new connections to services may hang there; open ones go on"
	}
	return "nfqproxy status shows the state of the daemon"
}

// sources are the sources with the most open flows on a node.
func sources(node string, records []*flow.Record) string {
	open := make(map[string]int)
	for _, r := range records {
		if r.Node != node || r.Life == nil || r.Life.Over {
			continue
		}
		name := cmp.Or(r.SourcePod, r.SourceHost, r.SourceNode)
		if a, err := netip.ParseAddrPort(r.Source); name == "" && err == nil {
			name = a.Addr().String()
		}
		open[name]++
	}
	most := slices.SortedFunc(maps.Keys(open), func(a, b string) int { return cmp.Or(open[b]-open[a], strings.Compare(a, b)) })
	var texts []string
	for _, name := range most[:min(3, len(most))] {
		texts = append(texts, fmt.Sprintf("%s (%d)", name, open[name]))
	}
	return strings.Join(texts, ", ")
}
