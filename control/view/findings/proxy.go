package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// misled are flows to a service that an observed proxy treated in the same wrong way.
type misled struct {
	code           diagnose.Code
	service, proxy string
	flows          int
	outdated       time.Duration // the longest
	nodes, to      []string
}

// ofProxy looks for recent flows that an observed proxy did not treat as the objects say, service by service. Flows whose
// beginning the node did not see are left out: the proxy may have had other objects then.
func ofProxy(records []*flow.Record) (found []diagnose.Finding) {
	var list []*misled
	for _, r := range records {
		code, outdated := misleading(r)
		if code == "" || r.Life == nil || r.Life.Incomplete {
			continue
		}
		i := slices.IndexFunc(list, func(m *misled) bool { return m.code == code && m.service == r.Service && m.proxy == r.Proxy })
		if i < 0 {
			i = len(list)
			list = append(list, &misled{code: code, service: r.Service, proxy: r.Proxy})
		}
		m := list[i]
		m.flows, m.outdated = m.flows+1, max(m.outdated, outdated)
		m.nodes, m.to = with(m.nodes, r.Node), with(m.to, cmp.Or(r.Pod, r.Endpoint))
	}
	for _, m := range list {
		service, _, _ := strings.Cut(m.service, ":")
		f := diagnose.Finding{Code: m.code, Object: "Service " + service}
		who, flows := m.proxy+" on "+nearest.Few(m.nodes), quantity.Count(m.flows, "recent flow")+" to "+m.service
		switch m.code {
		case diagnose.ProxyOutdated:
			f.Text = fmt.Sprintf("%s sent %s to endpoints that had been out of use for more than %s: %s; at most for %s", who, flows, outdatedAfter, nearest.Few(m.to), m.outdated.Truncate(100*time.Millisecond))
			f.Do = "look for errors in the proxy's log, and how long its last synchronisation took (kubeproxy_sync_proxy_rules_duration_seconds); nfqproxy timeline shows each change"
		case diagnose.ProxyUnknown:
			f.Text = fmt.Sprintf("%s sent %s to an address that is not its endpoint in any service table that the node keeps: %s", who, flows, nearest.Few(m.to))
			f.Do = "compare the rules of the node with the objects: nfqproxy doctor --rules, or nfqproxy diff"
		default:
			f.Text = fmt.Sprintf("%s did not translate %s", who, flows)
			f.Do = "check whether the proxy runs and has rules for the service: nfqproxy doctor --rules"
		}
		found = append(found, f)
	}
	return found
}

// misleading is what an observed proxy did wrong about a flow; empty: nothing.
func misleading(r *flow.Record) (diagnose.Code, time.Duration) {
	outdated := time.Duration(r.Outdated * float64(time.Second))
	switch {
	case outdated > outdatedAfter:
		return diagnose.ProxyOutdated, outdated
	case r.Reason == decision.UnknownEndpoint.String():
		return diagnose.ProxyUnknown, 0
	case r.Reason == decision.NotTranslated.String():
		return diagnose.ProxyTranslation, 0
	}
	return "", 0
}

func with(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
