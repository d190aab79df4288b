package findings

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// lagAfter is how long the rules of an observed proxy may lack a change. kube-proxy waits up to a second for more changes, and
// with 10,000 Services it has taken up to 9 s to write its rules (docs/explanation/performance.md).
const lagAfter = 15 * time.Second

// lag is a service port of which the rules of an observed proxy on a node lack changes.
type lag struct {
	node, proxy, service, family string
	lasts                        time.Duration // since the oldest of these changes
	pending                      []lacking
}

// lacking is the change of an endpoint that the rules lack: its last one.
type lacking struct {
	observe.EndpointChange
	at time.Time
}

// begins reports whether the endpoint gets new flows since the change. If not, the rules still lead to it.
func (l *lacking) begins() bool {
	return l.Change == observe.EndpointAdded || l.Change == observe.EndpointUsable
}

// lags returns the service ports of which rules lack changes, of those with the largest delay first.
func lags(services []observe.Service, status []observe.Status) (list []*lag) {
	followed := make(map[string]time.Time) // by node, the newest change that the rules have: the proxy writes all that it knows at once
	for i := range services {
		for _, c := range services[i].Changes {
			if c.Time.After(followed[c.Node]) && slices.ContainsFunc(c.Endpoints, func(e observe.EndpointChange) bool { return e.Rules != nil }) {
				followed[c.Node] = c.Time
			}
		}
	}
	for i := range status {
		n := &status[i]
		if n.Daemon == nil {
			continue
		}
		for k := range services {
			l := &lag{node: n.Node, proxy: n.Daemon.Observed, service: services[k].Service, family: services[k].Family}
			for _, c := range services[k].Changes { // the oldest first
				if c.Node == n.Node && c.Time.After(followed[n.Node]) {
					l.add(&c)
				}
			}
			l.pending = slices.DeleteFunc(l.pending, func(p lacking) bool { return n.Daemon.Time.Sub(p.at) < lagAfter })
			if len(l.pending) > 0 {
				l.lasts = n.Daemon.Time.Sub(l.pending[0].at).Truncate(time.Second)
				list = append(list, l)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *lag) int { return int(b.lasts - a.lasts) })
	return list
}

// add adds a change. One that takes back another which the rules lack leaves none.
func (l *lag) add(c *observe.Change) {
	for _, e := range c.Endpoints {
		if !e.RulesAwaited {
			continue
		}
		before := len(l.pending)
		l.pending = slices.DeleteFunc(l.pending, func(p lacking) bool { return p.Endpoint == e.Endpoint })
		if len(l.pending) == before && e.FirstFlow == nil { // with a flow, they have it
			l.pending = append(l.pending, lacking{e, c.Time})
		}
	}
}

// text is what the rules are, as of these changes.
func (l *lag) text() string {
	var old, missing []string
	for i := range l.pending {
		p := &l.pending[i]
		name := p.Endpoint
		if p.Pod != "" {
			name += " (" + p.Pod + ")"
		}
		if p.begins() {
			missing = append(missing, name)
		} else {
			old = append(old, name)
		}
	}
	var parts []string
	if len(old) > 0 {
		parts = append(parts, "still lead to "+nearest.Few(old))
	}
	if len(missing) > 0 {
		parts = append(parts, "do not lead to "+nearest.Few(missing)+" yet")
	}
	return fmt.Sprintf("the rules of %s on %s have missed changes of %s for %s: they %s", l.proxy, l.node, l.service, l.lasts, strings.Join(parts, ", and "))
}

func (l *lag) finding(object, text string) diagnose.Finding {
	return diagnose.Finding{
		Code: diagnose.ProxyLags, Object: object, Text: text,
		Do: fmt.Sprintf("check on %s whether kube-proxy runs, and what it logged last: it hangs, gets no changes from the API server, or cannot write its rules. nfqproxy timeline %s shows each change", l.node, strings.Split(l.service, ":")[0]),
	}
}

// ofLags is one finding for each node and address family.
func ofLags(list []*lag) (found []diagnose.Finding) {
	for i, l := range list {
		same := func(o *lag) bool { return o.node == l.node && o.family == l.family }
		if slices.ContainsFunc(list[:i], same) {
			continue
		}
		text, others := l.text(), len(slices.DeleteFunc(slices.Clone(list[i+1:]), func(o *lag) bool { return !same(o) }))
		if others > 0 {
			text += "; and those of " + quantity.Count(others, "more service port")
		}
		found = append(found, l.finding("Node "+l.node, text))
	}
	return found
}

// addLag adds to an answer that the rules of the node that decides lack changes of the service. It is the cause if they lead
// to endpoints only that are gone.
func (d *Doctor) addLag(ctx context.Context, status []observe.Status, answer *diagnose.Answer) error {
	r := answer.Record
	if r == nil || r.Service == "" || !d.At.IsZero() {
		return nil
	}
	services, err := d.Observer.Services(ctx, observe.ServiceQuery{Service: r.Service, Changes: true})
	if err != nil || len(lags(services.Services, status)) == 0 {
		return err
	}
	// A later change of another Service may show that the proxy has written all.
	others, err := d.Observer.Services(ctx, observe.ServiceQuery{Active: true, Changes: true})
	if err != nil {
		return err
	}
	services.Services = append(services.Services, slices.DeleteFunc(others.Services, func(s observe.Service) bool { return s.Service == r.Service })...)
	for _, l := range lags(services.Services, status) {
		if l.node != answer.Node || l.service != r.Service || (l.family == "IPv6") != strings.HasPrefix(r.Destination, "[") {
			continue
		}
		f := l.finding("Service "+strings.Split(l.service, ":")[0], l.text())
		if answer.Works && l.onlyGone(answer.Endpoints) {
			answer.Cause = &f
		} else {
			answer.Notes = append(answer.Notes, f)
		}
	}
	return nil
}

// onlyGone reports whether the rules lead to none of the endpoints, and to some that were removed.
func (l *lag) onlyGone(endpoints []diagnose.Endpoint) bool {
	has := func(is func(*lacking) bool) bool {
		return slices.ContainsFunc(l.pending, func(p lacking) bool { return is(&p) })
	}
	for i := range endpoints {
		if !has(func(p *lacking) bool { return p.begins() && p.Endpoint == endpoints[i].Address }) {
			return false
		}
	}
	return len(endpoints) > 0 && !has(func(p *lacking) bool { return p.Change == observe.EndpointExcluded })
}
