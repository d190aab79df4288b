package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// labType is the first document of a lab file (package deploy/lab).
var labType = typeName{"nfqproxy.dev/v1alpha1", "Lab"}

// Lab is the configuration of the nodes' proxies in a lab file.
type Lab struct {
	ClusterCIDRs      []netip.Prefix
	NodePortAddresses []netip.Prefix
	MasqueradeAll     bool
	// NoHairpinMasquerade is "masqueradeHairpin: false" in the file.
	NoHairpinMasquerade bool
}

// labDocument has all fields of a lab, to find those that are misspelt. What the values
// have to be like, if they are not used here, is the business of package deploy/lab.
type labDocument struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	ClusterCIDRs []string `json:"clusterCIDRs"`
	Networks     []struct {
		CIDR    string `json:"cidr"`
		Gateway string `json:"gateway"`
	} `json:"networks"`
	Nodes   []labHost `json:"nodes"`
	Pods    []labHost `json:"pods"`
	Clients []labHost `json:"clients"`
	Proxy   struct {
		Seed              int64    `json:"seed"`
		Queues            int64    `json:"queues"`
		MasqueradeAll     bool     `json:"masqueradeAll"`
		MasqueradeHairpin *bool    `json:"masqueradeHairpin"`
		NodePortAddresses []string `json:"nodePortAddresses"`
	} `json:"proxy"`
	Objects []string `json:"objects"`
}

// labHost is a node, a pod or a client.
type labHost struct {
	Name         string   `json:"name"`
	Namespace    string   `json:"namespace"`
	Node         string   `json:"node"`
	Addresses    []string `json:"addresses"`
	PodCIDRs     []string `json:"podCIDRs"`
	RoutesToPods bool     `json:"routesToPods"`
	Ports        []struct {
		Port     int32  `json:"port"`
		Protocol string `json:"protocol"`
	} `json:"ports"`
}

// lab takes the nodes and pods of a lab for Nodes and Pods, and notes the files that it
// names.
func (l *loader) lab(at place, m map[string]any, duplicates []string) {
	before := len(l.errs)
	for _, path := range duplicates {
		l.fail(at, path, errTwice)
	}
	if l.labAt != nil {
		l.fail(at, "", fmt.Errorf("a second Lab: the first is in %s", *l.labAt))
		return
	}
	l.labAt = &at
	var d labDocument
	for _, e := range l.decoder.decode(m, &d) {
		l.fail(at, e.path, e.err)
	}
	var v validation
	lab := &Lab{MasqueradeAll: d.Proxy.MasqueradeAll, NoHairpinMasquerade: d.Proxy.MasqueradeHairpin != nil && !*d.Proxy.MasqueradeHairpin}
	lab.ClusterCIDRs = v.prefixes("clusterCIDRs", d.ClusterCIDRs)
	lab.NodePortAddresses = v.prefixes("proxy.nodePortAddresses", d.Proxy.NodePortAddresses)
	for _, hosts := range []struct {
		field string
		list  []labHost
	}{{"nodes", d.Nodes}, {"pods", d.Pods}} {
		for i, h := range hosts.list {
			path := fmt.Sprintf("%s[%d]", hosts.field, i)
			if h.Name == "" {
				v.errs = append(v.errs, fieldError{path + ".name", errors.New("missing")})
			}
			for j, a := range h.Addresses {
				v.address(fmt.Sprintf("%s.addresses[%d]", path, j), a)
			}
			v.prefixes(path+".podCIDRs", h.PodCIDRs)
		}
	}
	for _, e := range v.errs {
		l.fail(at, e.path, e.err)
	}
	if len(l.errs) > before {
		return
	}
	l.objects.Lab = lab
	l.labNodes, l.labPods = d.Nodes, d.Pods
	for _, o := range d.Objects {
		if !filepath.IsAbs(o) {
			o = filepath.Join(filepath.Dir(at.file), o)
		}
		l.further = append(l.further, o)
	}
}

// prefixes reads a list of prefixes.
func (v *validation) prefixes(path string, texts []string) (all []netip.Prefix) {
	for i, s := range texts {
		p, err := kubeaddr.ParsePrefix(s)
		if err != nil {
			v.fail(fmt.Sprintf("%s[%d]", path, i), "%w", err)
		}
		all = append(all, p)
	}
	return all
}

// addLab adds the nodes and pods of the lab to the objects. An object of the same kind and
// name goes before, but for addresses that it lacks: a lab that was made of objects makes
// up what these lack.
func (l *loader) addLab() {
	nodes := make(map[string]*corev1.Node)
	for _, n := range l.objects.Nodes {
		nodes[n.Name] = n
	}
	for _, h := range l.labNodes {
		n, ok := nodes[h.Name]
		if !ok {
			n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name}}
			l.objects.Nodes = append(l.objects.Nodes, n)
		}
		if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0 {
			n.Spec.PodCIDRs = h.PodCIDRs
		}
		for _, a := range h.Addresses {
			if !hasNodeAddress(n, a) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
			}
		}
	}
	type name struct{ namespace, name string }
	pods := make(map[name]*corev1.Pod)
	for _, p := range l.objects.Pods {
		pods[name{p.Namespace, p.Name}] = p
	}
	for _, h := range l.labPods {
		key := name{cmp.Or(h.Namespace, "default"), h.Name}
		p, ok := pods[key]
		if !ok {
			p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.name}}
			p.Spec.NodeName, p.Status.Phase = h.Node, corev1.PodRunning
			l.objects.Pods = append(l.objects.Pods, p)
		}
		if p.Status.PodIP == "" && len(p.Status.PodIPs) == 0 && len(h.Addresses) > 0 {
			p.Status.PodIP = h.Addresses[0]
			for _, a := range h.Addresses {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
			}
		}
	}
}

// hasNodeAddress reports whether a node has an address of the family of one.
func hasNodeAddress(n *corev1.Node, text string) bool {
	a, err := kubeaddr.Parse(text)
	for _, b := range n.Status.Addresses {
		if b.Type != corev1.NodeInternalIP && b.Type != corev1.NodeExternalIP {
			continue
		}
		if b, other := kubeaddr.Parse(b.Address); other == nil && err == nil && familyOf(a) == familyOf(b) {
			return true
		}
	}
	return false
}
