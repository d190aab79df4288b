package derivation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// parseAddr reads an address of an object, which is valid: see package manifest. It returns
// the zero Addr for one that cannot be a host's.
func parseAddr(s string) netip.Addr {
	a, err := kubeaddr.Parse(s)
	if err != nil || !kubeaddr.CanBeHost(a) {
		return netip.Addr{}
	}
	return a
}

// node finds a node by its name, or makes it; why is the object that names it, for errors.
func (d *derivation) node(name, why string) (*derivedNode, error) {
	if n, ok := d.byName[name]; ok {
		return n, nil
	}
	if !labfile.IsHostName(name) || name == labfile.Router || slices.ContainsFunc(d.machines, func(m *derivedMachine) bool { return m.Name == name }) {
		return nil, fmt.Errorf("%s: %q cannot be the name of a node of a lab", why, name)
	}
	n := &derivedNode{Node: labfile.Node{Name: name}}
	d.names[name], d.byName[name] = true, n
	d.nodes = append(d.nodes, n)
	return n, nil
}

// addAddress gives a node an address, unless it has one of that family.
func (d *derivation) addAddress(n *derivedNode, a netip.Addr) {
	if !a.IsValid() || d.at[a] != nil {
		return
	}
	if _, ok := decision.AddressOf(n.Addresses, decision.FamilyOf(a)); !ok {
		n.Addresses = append(n.Addresses, a)
	}
	d.at[a] = n // a further address, too: it serves like the first
}

func (d *derivation) takeNodes(objects []*corev1.Node) error {
	for _, o := range objects {
		what := "Node " + o.Name
		n, err := d.node(o.Name, what)
		if err != nil {
			return err
		}
		for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
			for _, a := range o.Status.Addresses {
				ip := parseAddr(a.Address)
				if other, ok := d.at[ip].(*derivedNode); ok && other != n && a.Type == kind {
					return fmt.Errorf("%s: its address %s is also that of Node %s", what, ip, other.Name)
				}
				if a.Type == kind {
					d.addAddress(n, ip)
				}
			}
		}
		n.declared = append(n.declared, servicetable.PodCIDRs(o)...)
	}
	return nil
}

func (d *derivation) takePods(objects []*corev1.Pod) error {
	for _, o := range objects {
		ips := addressesOf(o.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP }, o.Status.PodIP)
		if servicetable.PodEnded(o) || len(ips) == 0 {
			continue // its address may belong to another pod by now
		}
		what := fmt.Sprintf("Pod %s/%s", o.Namespace, o.Name)
		var n *derivedNode
		if o.Spec.NodeName != "" {
			var err error
			if n, err = d.node(o.Spec.NodeName, what); err != nil {
				return err
			}
			for _, a := range addressesOf(o.Status.HostIPs, func(ip corev1.HostIP) string { return ip.IP }, o.Status.HostIP) {
				d.addAddress(n, a)
			}
		}
		var h host
		if o.Spec.HostNetwork {
			if n == nil {
				continue
			}
			for _, a := range ips {
				d.addAddress(n, a)
			}
			h = n
		} else {
			p := &derivedPod{known: true, Pod: labapi.Pod{Name: o.Name, Namespace: cmp.Or(o.Namespace, "default"), Node: o.Spec.NodeName}}
			if !labfile.IsHostName(p.Name) || !labfile.IsLabel(p.Namespace) {
				return fmt.Errorf("%s: that cannot be the name of a pod of a lab", what)
			}
			for _, a := range ips {
				if err := d.addPodAddress(p, a, what); err != nil {
					return err
				}
			}
			d.addPod(p)
			h = p
		}
		if d.options.wants(cmp.Or(o.Namespace, "default")) {
			h.choose()
		}
		for i := range o.Spec.Containers {
			for _, c := range o.Spec.Containers[i].Ports {
				if protocol, err := decision.ParseProtocol(cmp.Or(string(c.Protocol), "TCP")); err == nil && c.ContainerPort > 0 && c.ContainerPort < 1<<16 {
					h.serve(labapi.Port{Port: uint16(c.ContainerPort), Protocol: protocol})
					if p, ok := h.(*derivedPod); ok {
						p.declared = true
					}
				}
			}
		}
	}
	return nil
}

// addressesOf are the addresses of a list, or the single one that older objects have instead.
func addressesOf[T any](list []T, text func(T) string, single string) []netip.Addr {
	var all []netip.Addr
	for _, item := range list {
		if a := parseAddr(text(item)); a.IsValid() {
			all = append(all, a)
		}
	}
	if a := parseAddr(single); len(all) == 0 && a.IsValid() {
		all = append(all, a)
	}
	return all
}

func (d *derivation) addPod(p *derivedPod) {
	d.names[p.Name], d.byPod[p.FullName()] = true, p
	d.pods = append(d.pods, p)
}

// addPodAddress gives a pod an address; what names the object in errors.
func (d *derivation) addPodAddress(p *derivedPod, a netip.Addr, what string) error {
	switch other := d.at[a].(type) {
	case *derivedNode:
		return fmt.Errorf("%s: its address %s is that of node %s, but hostNetwork is not set", what, a, other.Name)
	case *derivedPod:
		return fmt.Errorf("%s: its address %s is also that of pod %s", what, a, other.FullName())
	}
	if _, ok := decision.AddressOf(p.Addresses, decision.FamilyOf(a)); ok {
		return fmt.Errorf("%s: %s is a second %s address; a pod has one", what, a, decision.FamilyOf(a))
	}
	if c, ok := decision.PrefixOf(d.options.ClusterCIDRs, decision.FamilyOf(a)); ok && !c.Contains(a) {
		return fmt.Errorf("%s: its address %s is not within --cluster-cidr %s", what, a, c)
	}
	p.Addresses = append(p.Addresses, a)
	d.at[a] = p
	return nil
}
