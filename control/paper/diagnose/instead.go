package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// This file says what is there instead of what a Service lacks.

// templateOf is the template that a Pod was made up of; nil: the Pod is one of the objects.
func (c *Cluster) templateOf(p *corev1.Pod) *manifest.Template {
	if c.objects.Made == nil {
		return nil
	}
	return c.objects.Made.Pods[p]
}

// podText is "Pod web-1" or, for one that was made up, "the template of Deployment web".
func (c *Cluster) podText(p *corev1.Pod) string {
	if t := c.templateOf(p); t != nil {
		return fmt.Sprintf("the template of %s %s", t.Kind, t.Name)
	}
	return "Pod " + p.Name
}

// matching are the templates of a namespace that a selector matches.
func (c *Cluster) matching(namespace string, selector map[string]string) (all []*manifest.Template) {
	for _, t := range c.objects.Templates {
		if t.Namespace == namespace && !t.Owned && len(selector) > 0 && manifest.HasLabels(t.Pod.Labels, selector) {
			all = append(all, t)
		}
	}
	return all
}

// withoutPods is the finding of a Service whose selector matches a template that has no Pods. found: it is so.
func (c *Cluster) withoutPods(svc *corev1.Service) (f Finding, found bool) {
	templates := c.matching(svc.Namespace, svc.Spec.Selector)
	if len(templates) == 0 {
		return f, false
	}
	t := templates[0]
	f = Finding{
		Code: NoEndpoints, Object: t.String(), Field: "status",
		Text: fmt.Sprintf("no Pod of %s runs: the template of %s matches its selector, but the objects contain no Pods made from it", objectOf(svc), t),
		Do:   fmt.Sprintf("kubectl -n %s describe %s %s", t.Namespace, strings.ToLower(t.Kind), t.Name),
	}
	switch {
	case t.Suspended:
		f.Field, f.Do = "spec.suspend", fmt.Sprintf("kubectl -n %s patch %s %s -p '{\"spec\":{\"suspend\":false}}'", t.Namespace, strings.ToLower(t.Kind), t.Name)
		f.Text = fmt.Sprintf("%s has no endpoints: %s, with the template that its selector matches, is suspended", objectOf(svc), t)
	case t.Replicas == 0:
		f.Field, f.Do = "spec.replicas", fmt.Sprintf("kubectl -n %s scale %s %s --replicas 1", t.Namespace, strings.ToLower(t.Kind), t.Name)
		f.Text = fmt.Sprintf("%s has no endpoints: %s, with the template that its selector matches, has 0 replicas", objectOf(svc), t)
	}
	return f, true
}

// insteadOf is what there is instead of Pods that the selector of a Service matches: such Pods in another namespace, or
// the most similar Pod. similar: there is one.
func (c *Cluster) insteadOf(svc *corev1.Service, in *namespace) (text, do string, similar bool) {
	do = "set the selector to the labels of the Pods, or start Pods with the labels of the selector"
	if where := c.elsewhere(svc); len(where) > 0 {
		do = "move the Service to the namespace of its Pods: a selector only matches Pods in its own namespace"
		if c.objects.Assumed[objectOf(svc)] {
			do += " (the file gives none for the Service: kubectl uses that of its context, or --namespace)"
		}
		return fmt.Sprintf(" of namespace %s; it matches %s", svc.Namespace, nearest.Few(where)), do, true
	}
	if why, then, found := c.notCreated(svc, in); found {
		return why, then, true
	}
	text, similar = in.labelsNear(svc.Name, svc.Spec.Selector, c.podText)
	if !similar && !c.isUnsubmitted(svc) {
		do = fmt.Sprintf("look for what should run such Pods, and its replicas (kubectl -n %s get deployments,statefulsets,daemonsets -o wide); or set the selector to the labels of the Pods", svc.Namespace)
	}
	return text, do, similar
}

// notCreated is about a Pod of a StatefulSet that a Service selects by its name and that does not exist. found: it is so.
func (c *Cluster) notCreated(svc *corev1.Service, in *namespace) (text, do string, found bool) {
	pod := svc.Spec.Selector[appsv1.StatefulSetPodNameLabel]
	i := slices.IndexFunc(c.objects.Templates, func(t *manifest.Template) bool {
		return t.Kind == "StatefulSet" && t.Namespace == svc.Namespace && t.Name+"-" == stem(pod)
	})
	if i < 0 {
		return "", "", false
	}
	t := c.objects.Templates[i]
	var waits []string
	for _, p := range in.pods {
		if state := c.stateOf(p); state != "" && stem(p.Name) == stem(pod) && !t.Parallel {
			waits = append(waits, fmt.Sprintf("%s (%s)", p.Name, state))
		}
	}
	switch n, err := strconv.Atoi(pod[len(stem(pod)):]); {
	case err == nil && n >= t.Replicas:
		return fmt.Sprintf("; %s has %s", t, quantity.Count(t.Replicas, "replica")), fmt.Sprintf("kubectl -n %s scale statefulset %s --replicas %d", t.Namespace, t.Name, n+1), true
	case len(waits) > 0:
		return fmt.Sprintf("; %s creates it only when those before it are ready: %s", t, nearest.Few(waits)), fmt.Sprintf("kubectl -n %s describe pods", t.Namespace), true
	}
	return fmt.Sprintf("; %s has not created it", t), fmt.Sprintf("kubectl -n %s describe statefulset %s", t.Namespace, t.Name), true
}

// withoutPod are names of kinds, by their ends, that have no Pods created.
var withoutPod = regexp.MustCompile(`(Monitor|Rules?|Routes?|Policy|Certificate|Issuer|Secret|SecretStore|Gateway|VirtualService|Middleware|Pool|Advertisement|Profile|ScaledObject|Application)$`)

// furtherKinds are the kinds of the objects that were not read, but for those of Kubernetes itself: some have Pods created.
func (c *Cluster) furtherKinds() (kinds []string) {
	for _, s := range c.objects.Skipped {
		if group, _, has := strings.Cut(s.APIVersion, "/"); has && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") && !withoutPod.MatchString(s.Kind) {
			kinds = append(kinds, s.Kind)
		}
	}
	return kinds
}

// elsewhere are the Pods and templates of other namespaces that a Service would select.
func (c *Cluster) elsewhere(svc *corev1.Service) (texts []string) {
	for ns, in := range c.podsIn {
		if ns == svc.Namespace {
			continue
		}
		for _, p := range in.selected(svc.Spec.Selector) {
			texts = append(texts, fmt.Sprintf("%s in namespace %s", c.podText(p), ns))
		}
	}
	return texts
}

// labelsNear is which labels the most similar Pod has instead, rather one with the name of the Service. similar: it has some of them.
func (n *namespace) labelsNear(service string, selector map[string]string, name func(*corev1.Pod) string) (text string, similar bool) {
	pods := n.similarPods(selector)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	keys := slices.Sorted(maps.Keys(selector))
	values := make(map[string][]string) // of the Pods, by key
	for _, p := range pods {
		for _, key := range keys {
			values[key] = append(values[key], p.Labels[key])
		}
	}
	best, most := "", 0
	var unlike []string // labels with a key of the selector and quite another value
	for _, p := range pods {
		similarity, keyed, others := 0, 0, []string(nil)
		for _, key := range keys {
			value, has := p.Labels[key]
			switch {
			case !has:
				others = append(others, "no "+key)
				for _, other := range slices.Sorted(maps.Keys(p.Labels)) {
					if p.Labels[other] == selector[key] {
						others[len(others)-1] = fmt.Sprintf("%s=%s, and no %s", other, selector[key], key)
						similarity++
						break
					}
				}
				continue
			case value == selector[key]:
				similarity += 3
				continue
			case value == nearest.Name(selector[key], values[key]):
				similarity++
			}
			keyed++
			if others = append(others, key+"="+value); !slices.Contains(unlike, key+"="+value) {
				unlike = append(unlike, key+"="+value)
			}
		}
		if similarity+keyed > 0 && strings.HasPrefix(p.Name, service) {
			similarity += 2
		}
		if similarity == 0 {
			continue
		}
		if similarity += keyed; similarity > most {
			best, most = fmt.Sprintf("; %s has %s", name(p), strings.Join(others, ", ")), similarity
		}
	}
	switch {
	case best != "":
		return best, true
	case len(n.pods) == 1 && len(n.pods[0].Labels) > 0:
		return fmt.Sprintf("; %s has %s", name(n.pods[0]), labelsText(n.pods[0].Labels)), false
	}
	text = fmt.Sprintf("; the namespace has %d Pods", len(n.pods))
	if len(unlike) > 0 {
		text += ", with " + nearest.Few(unlike)
	}
	return text, false
}

func labelsText(labels map[string]string) string {
	var texts []string
	for key, value := range labels {
		texts = append(texts, key+"="+value)
	}
	return nearest.Few(texts)
}

// notSliced is why objects that look like the endpoints of a Service are none; empty, if there are none.
func (c *Cluster) notSliced(svc *corev1.Service) string {
	for _, e := range c.objects.Endpoints {
		if e.Namespace != svc.Namespace || e.Name != svc.Name {
			continue
		}
		if why := controllers.NotMirrored(e, svc); why != "" {
			return fmt.Sprintf("; Endpoints %s are ignored: %s", e.Name, why)
		}
		if len(e.Subsets) == 0 {
			return fmt.Sprintf("; Endpoints %s have no addresses", e.Name)
		}
	}
	var texts, names []string
	for _, s := range c.objects.EndpointSlices {
		of, has := s.Labels[discoveryv1.LabelServiceName]
		switch {
		case of == svc.Name && s.Namespace != svc.Namespace && c.services[name{Namespace: s.Namespace, Name: of}] == nil:
			texts = append(texts, fmt.Sprintf("EndpointSlice %s is in namespace %s: one has to be in that of its Service", s.Name, s.Namespace))
		case s.Namespace != svc.Namespace || c.services[name{Namespace: s.Namespace, Name: of}] != nil:
		case has:
			texts = append(texts, fmt.Sprintf("EndpointSlice %s has %s=%s, but no Service has this name", s.Name, discoveryv1.LabelServiceName, of))
		default:
			texts = append(texts, fmt.Sprintf("EndpointSlice %s has no such label", s.Name))
		}
	}
	for _, e := range c.objects.Endpoints {
		switch {
		case c.services[nameOf(e)] != nil:
		case e.Namespace == svc.Namespace:
			names = append(names, e.Name)
		case e.Name == svc.Name:
			texts = append(texts, fmt.Sprintf("Endpoints %s are in namespace %s: they have to be in that of their Service", e.Name, e.Namespace))
		}
	}
	if near := nearest.Name(svc.Name, names); near != "" {
		texts = append(texts, fmt.Sprintf("Endpoints %s belong to a Service of the same name, which does not exist", near))
	}
	if len(texts) == 0 {
		return ""
	}
	return "; " + nearest.Few(texts)
}
