package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// The networks of Services, Pods and Nodes that objects do not show: those of kubeadm and kind.
var (
	defaultServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	defaultPodCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}
	defaultNodeCIDRs    = []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fc00:f853:ccd:e793::/64")}
)

// Made lists the objects and addresses that Complete has invented.
type Made struct {
	Services map[*corev1.Service]bool  // those with a made-up cluster IP
	Pods     map[*corev1.Pod]*Template // with the template of each; nil: a Pod that was written without a status
	Guessed  map[*corev1.Pod]bool      // those that may as well run on another Node
	Items    []MadeItem
}

// MadeItem is a part of what was made up.
type MadeItem struct {
	What string // such as "cluster IPs"
	Text string // the addresses or ports, and their object
	// Services are those that it concerns, as namespace/name, and Addresses those that were made up.
	Services  []string
	Addresses []string
}

// Note is a line about the items that concern a question; empty: none does, or m is nil.
func (m *Made) Note(concerns func(*MadeItem) bool) string {
	if m == nil {
		return ""
	}
	var whats []string
	texts := make(map[string][]string)
	for i := range m.Items {
		item := &m.Items[i]
		if !concerns(item) {
			continue
		}
		if texts[item.What] == nil {
			whats = append(whats, item.What)
		}
		texts[item.What] = append(texts[item.What], item.Text)
	}
	if len(whats) == 0 {
		return ""
	}
	for i, what := range whats {
		whats[i] = fmt.Sprintf("%s (%s)", what, nearest.Few(texts[what]))
	}
	return "made up, for the files lack what a control plane adds: " + strings.Join(whats, "; ")
}

// Complete does for manifests as people write them what a control plane would do: it gives Services cluster IPs and node
// ports, makes Pods of templates, gives Pods addresses, and makes EndpointSlices of Pods. What a control plane has done
// is left alone. podCIDRs are the networks of Pods; without any, those of Nodes or usual ones count. Complete changes the
// objects and lists in o.Made what it made up.
func (o *Objects) Complete(podCIDRs []netip.Prefix) error {
	if o.Lab != nil {
		return nil // it has what a control plane adds
	}
	c := completion{Objects: o, taken: make(map[netip.Addr]bool)}
	c.Made = &Made{Services: make(map[*corev1.Service]bool), Pods: make(map[*corev1.Pod]*Template), Guessed: make(map[*corev1.Pod]bool)}
	if err := c.services(podCIDRs); err != nil {
		return err
	}
	c.pods(podCIDRs)
	if err := c.slices(); err != nil {
		return err
	}
	o.sort()
	return nil
}

// completion is the work of Complete.
type completion struct {
	*Objects
	taken    map[netip.Addr]bool // addresses of Pods and endpoints
	families []corev1.IPFamily   // of Pods
}

func (c *completion) add(i MadeItem) { c.Made.Items = append(c.Made.Items, i) }

// services allocates what Services lack.
func (c *completion) services(podCIDRs []netip.Prefix) error {
	ports := make(map[*corev1.ServicePort]*corev1.Service) // without a node port
	for _, s := range c.Services {
		if s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.ClusterIPs) == 0 {
			c.Made.Services[s] = true
		}
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.NodePort == 0 {
				ports[p] = s
			}
		}
	}
	if err := controllers.Allocate(c.Services, c.servicePrefixes(podCIDRs)); err != nil {
		return err
	}
	for _, s := range c.Services {
		name := s.Namespace + "/" + s.Name
		if c.Made.Services[s] {
			c.add(MadeItem{
				What: "cluster IPs", Text: fmt.Sprintf("%s of Service %s", strings.Join(s.Spec.ClusterIPs, " and "), name),
				Services: []string{name}, Addresses: s.Spec.ClusterIPs,
			})
		}
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.NodePort != 0 && ports[p] != nil {
				c.add(MadeItem{What: "node ports", Text: fmt.Sprintf("%d of Service %s", p.NodePort, name), Services: []string{name}})
			}
		}
	}
	return nil
}

// servicePrefixes are the ServiceCIDRs or, without them, usual ones. The family of Pods comes first: it is that of Services
// that name none.
func (c *completion) servicePrefixes(podCIDRs []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, o := range c.Context.ServiceCIDRs {
		for _, text := range o.Spec.CIDRs {
			if p, err := kubeaddr.ParsePrefix(text); err == nil {
				all = append(all, p)
			}
		}
	}
	if len(all) == 0 {
		all = slices.Clone(defaultServiceCIDRs)
	}
	if len(podCIDRs) > 0 {
		first := podCIDRs[0].Addr().Is4()
		slices.SortStableFunc(all, func(a, b netip.Prefix) int {
			return order(a.Addr().Is4() == first) - order(b.Addr().Is4() == first)
		})
	}
	return all
}

// order is 0 for what comes first.
func order(first bool) int {
	if first {
		return 0
	}
	return 1
}

// slices makes the EndpointSlices of Services whose Pods are made up.
func (c *completion) slices() error {
	var services []*corev1.Service
	for _, s := range c.Services {
		if s.Spec.Type != corev1.ServiceTypeExternalName && c.selectsMade(s) && !c.sliced(s) {
			services = append(services, s)
			name := s.Namespace + "/" + s.Name
			c.add(MadeItem{What: "EndpointSlices of Services", Text: name, Services: []string{name}})
		}
	}
	if len(services) == 0 {
		return nil
	}
	pods := slices.DeleteFunc(slices.Clone(c.Pods), func(p *corev1.Pod) bool { return IsHook(p) })
	made, err := controllers.NewEndpointSlices().Sync(services, pods, c.nodesOfPods(), nil, time.Time{})
	if err != nil {
		return err
	}
	for _, s := range made {
		defaultEndpointSlice(s)
	}
	c.EndpointSlices = append(c.EndpointSlices, made...)
	return nil
}

// nodesOfPods are the Nodes, and one for each other name that Pods have: the controller asks for the node of each Pod.
func (c *completion) nodesOfPods() []*corev1.Node {
	all := slices.Clone(c.Nodes)
	for p := range c.Made.Pods {
		if !slices.ContainsFunc(all, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
			all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Spec.NodeName}})
		}
	}
	return all
}

// selectsMade reports whether a Service selects Pods that are made up, and no others.
func (c *completion) selectsMade(s *corev1.Service) bool {
	for p := range c.Made.Pods {
		if selects(s, p) {
			return !slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool {
				_, made := c.Made.Pods[p]
				return !made && selects(s, p)
			})
		}
	}
	return false
}

// sliced reports whether a Service has EndpointSlices.
func (o *Objects) sliced(svc *corev1.Service) bool {
	return slices.ContainsFunc(o.EndpointSlices, func(s *discoveryv1.EndpointSlice) bool {
		return s.Namespace == svc.Namespace && s.Labels[discoveryv1.LabelServiceName] == svc.Name
	})
}

// selects reports whether a Service selects a Pod.
func selects(s *corev1.Service, p *corev1.Pod) bool {
	return s.Namespace == p.Namespace && len(s.Spec.Selector) > 0 && HasLabels(p.Labels, s.Spec.Selector) && !IsHook(p)
}

// IsHook reports whether a Pod that was not read from a cluster runs only for a time, as the test of a Helm chart, which often has the
// labels that the chart's Service selects.
func IsHook(p *corev1.Pod) bool { return p.Annotations[annotationHook] != "" && !fromCluster(p) }

const annotationHook = "helm.sh/hook"

// HasLabels reports whether labels contain all of some.
func HasLabels(labels, some map[string]string) bool {
	for key, value := range some {
		if v, ok := labels[key]; !ok || v != value {
			return false
		}
	}
	return true
}
