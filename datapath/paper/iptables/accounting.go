package iptables

import "slices"

// Accounting is "-m nfacct": a counter outside of the rule, as in kube-proxy's rule for node ports
// on 127.0.0.1. It always matches, unless the counter has a quota, which rules do not show
// (xt_nfacct.c).
type Accounting struct{ Counter string }

const accountingName = "--nfacct-name"

var _ = addMatch(&module{
	name:    "nfacct",
	shapes:  map[string]shape{accountingName: one},
	phrases: map[string]phrase{"nfacct-name": valuePhrase("nfacct", accountingName)},
	build: func(s *section) Match {
		name, _ := sole(s, accountingName, keptText(31)) // NFACCT_NAME_MAX
		return Accounting{name}
	},
})

func (Accounting) module() string   { return "nfacct" }
func (m Accounting) write(w *words) { w.bare(accountingName, m.Counter) }

func (m Accounting) test(c *Context) Truth {
	if !slices.Contains(kubeProxyCounters, m.Counter) {
		c.assume("that the counter %s of -m nfacct has no quota", m.Counter)
	}
	return True
}

// kubeProxyCounters are those that kube-proxy makes, which have no quota
// (pkg/proxy/metrics/metrics.go).
var kubeProxyCounters = []string{"ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"}
