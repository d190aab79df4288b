package diagnose

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
)

// namespace is the Pods of a namespace. Those that have ended are no endpoints.
type namespace struct {
	pods []*corev1.Pod // by name
	by   map[label][]*corev1.Pod
	// ended are the others.
	ended []*corev1.Pod
}

type label struct{ key, value string }

// add adds a Pod. Pods are added in the order of their names.
func (n *namespace) add(p *corev1.Pod) {
	n.pods = append(n.pods, p)
	for key, value := range p.Labels {
		n.by[label{key, value}] = append(n.by[label{key, value}], p)
	}
}

// stem is a name up to its last hyphen, which the Pods of a ReplicaSet have in common; empty: it has no hyphen.
func stem(pod string) string { return pod[:strings.LastIndexByte(pod, '-')+1] }

// selected are the Pods that a selector selects, by name. An empty selector selects none, as that of a
// Service.
func (n *namespace) selected(selector map[string]string) (pods []*corev1.Pod) {
	if n == nil || len(selector) == 0 {
		return nil
	}
	first := true
	for key, value := range selector {
		if with := n.by[label{key, value}]; first || len(with) < len(pods) {
			pods, first = with, false
		}
	}
	if len(selector) == 1 {
		return pods
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !manifest.HasLabels(p.Labels, selector) })
}

// selectedEnded are the Pods that have ended and have the labels of a selector.
func (n *namespace) selectedEnded(selector map[string]string) (pods []*corev1.Pod) {
	return slices.DeleteFunc(slices.Clone(n.ended), func(p *corev1.Pod) bool { return !manifest.HasLabels(p.Labels, selector) })
}

// similarPods are Pods whose labels come close to the selector: those with one of its labels, or else any; at most
// some hundred, for a message.
func (n *namespace) similarPods(selector map[string]string) (pods []*corev1.Pod) {
	const enough = 100
	for key, value := range selector {
		with := n.by[label{key, value}]
		pods = append(pods, with[:min(len(with), enough)]...)
	}
	if len(pods) == 0 {
		pods = n.pods[:min(len(n.pods), enough)]
	}
	return pods
}
