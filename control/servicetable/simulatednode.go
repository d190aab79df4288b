package servicetable

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Table builds the table of a simulated node: its addresses are its configured ones
// and those of its Node object. It also returns the warnings of [Build],
// and of conflicts.
func Table(objects *kube.Objects, config NodeConfig) (*decision.Table, []string) {
	services, warnings := Build(objects, config)
	object := nodeObject(objects.Nodes, config.Name)
	addresses := slices.Clone(config.ips(object))
	if object != nil {
		for _, a := range object.Status.Addresses {
			if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			if ip, err := kubeaddr.Parse(a.Address); err == nil {
				addresses = append(addresses, ip)
			}
		}
	}
	table := decision.NewTable(1, time.Time{}, config.node(object, addresses), services)
	for _, c := range table.Conflicts() {
		warnings = append(warnings, c.Error())
	}
	return table, warnings
}
