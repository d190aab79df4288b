package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// backends finds out why a port of a Service has no endpoints, along the way on which they are made: selector,
// Pods, target port, readiness, EndpointSlices. family is that of the addresses, as in an EndpointSlice; "":
// any. ready: the objects show no reason.
func (c *Cluster) backends(svc *corev1.Service, port *corev1.ServicePort, family string) (ready bool, cause Finding) {
	found := c.slices[nameOf(svc)]
	object := objectOf(svc)
	if why := svc.Annotations[manifest.NotShown]; why != "" && len(found) == 0 {
		what, do, _ := strings.Cut(why, ": give ")
		return false, Finding{
			Code: NotShown, Object: object, Text: fmt.Sprintf("the endpoints of %s are not known: %s", object, what),
			Do: "give " + cmp.Or(do, "the output of kubectl get svc,endpointslices -o yaml"),
		}
	}
	if len(svc.Spec.Selector) == 0 {
		if len(found) == 0 && c.lacksSlices(svc) && (isAPIServer(svc) || !c.isUnsubmitted(svc)) {
			return false, notShown(svc, "")
		}
		if len(found) == 0 {
			f := Finding{
				Code: NoSelector, Object: object, Field: "spec.selector",
				Text: fmt.Sprintf("%s has no selector, and no EndpointSlice has the label %s=%s%s", object, discoveryv1.LabelServiceName, svc.Name, c.notSliced(svc)),
				Do:   "give the Service a selector, or create an EndpointSlice for it",
			}
			if svc.Spec.ExternalName != "" {
				f.Field, f.Text = "spec.type", fmt.Sprintf("the externalName %s of %s is ignored: its type is not ExternalName; it has no selector and no EndpointSlice either", svc.Spec.ExternalName, object)
				f.Do = "set spec.type to ExternalName"
			}
			return false, f
		}
	} else if cause, bad := c.selected(svc, port); bad {
		return false, cause
	}
	if len(found) == 0 {
		return false, c.noSlices(svc)
	}
	return c.sliced(svc, port, family, found)
}

// noSlices is the finding of a Service with a selector and without EndpointSlices.
func (c *Cluster) noSlices(svc *corev1.Service) Finding {
	object, instead := objectOf(svc), c.notSliced(svc)
	switch {
	case c.isUnsubmitted(svc) && instead == "":
		return Finding{
			Code: NotShown, Object: object, Field: "spec.selector",
			Text: fmt.Sprintf("whether %s has endpoints is not known: the files contain no Pods of its namespace, and no Deployments or other objects that create some", object),
			Do:   "add the files that contain them",
		}
	case c.objects.Made != nil && instead != "" && c.readyPods(svc) == "":
		return Finding{
			Code: NoSlices, Object: object, Field: "spec.selector",
			Text: fmt.Sprintf("%s has no EndpointSlice, and the files have no Pods for its selector%s", object, instead),
			Do:   "remove the selector from the Service if its endpoints are managed by hand",
		}
	case c.lacksSlices(svc):
		return notShown(svc, c.readyPods(svc))
	}
	return Finding{
		Code: NoSlices, Object: object,
		Text: fmt.Sprintf("%s has no EndpointSlice (by the label %s)%s", object, discoveryv1.LabelServiceName, instead),
		Do:   "check that the endpoint slice controller of kube-controller-manager is running, and that the objects contain EndpointSlices",
	}
}

// readyPods names the Pods of a Service that are ready, for a message; "": none is.
func (c *Cluster) readyPods(svc *corev1.Service) string {
	var names []string
	for _, p := range c.podsIn[svc.Namespace].selected(svc.Spec.Selector) {
		if c.stateOf(p) == "" {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; its selector matches Pods that are ready: " + nearest.Few(names)
}

// lacksSlices reports whether the objects are of files that have neither EndpointSlices nor Endpoints of the namespace of a
// Service: most likely nobody asked for them.
func (c *Cluster) lacksSlices(svc *corev1.Service) bool {
	return c.objects.Made != nil && c.notSliced(svc) == "" &&
		!slices.ContainsFunc(c.objects.EndpointSlices, func(s *discoveryv1.EndpointSlice) bool { return s.Namespace == svc.Namespace })
}

// isAPIServer reports whether the Service is that of the API server, which itself writes the EndpointSlice.
func isAPIServer(svc *corev1.Service) bool {
	return svc.Namespace == corev1.NamespaceDefault && svc.Name == "kubernetes"
}

// notShown is the finding of a Service whose EndpointSlices are not in the files. more is what else they show.
func notShown(svc *corev1.Service, more string) Finding {
	return Finding{
		Code: NotShown, Object: objectOf(svc),
		Text: fmt.Sprintf("whether %s has endpoints is not known: the files contain no EndpointSlices of its namespace%s", objectOf(svc), more),
		Do:   fmt.Sprintf("add the output of kubectl -n %s get endpointslices -o yaml; if the cluster has none, check that the endpoint slice controller of kube-controller-manager is running", svc.Namespace),
	}
}

// selected checks the Pods of the Service's selector. bad: they are the cause.
func (c *Cluster) selected(svc *corev1.Service, port *corev1.ServicePort) (cause Finding, bad bool) {
	object := objectOf(svc)
	in := c.podsIn[svc.Namespace]
	if in == nil {
		named, _ := c.podsOf(svc)
		switch cause, bad = c.withoutPods(svc); {
		case named > 0: // Pods of other namespaces only: a user may not read those of all
			return Finding{}, false
		case bad:
			return cause, true
		case (c.isUnsubmitted(svc) || c.lacksSlices(svc)) && len(c.elsewhere(svc)) == 0:
			return Finding{}, false // a Service whose Pods are in other files
		}
		in = new(namespace)
	}
	match := in.selected(svc.Spec.Selector)
	// Objects without Pods, and the Pods of a lab, which have no labels, show nothing.
	if len(c.objects.Pods) == 0 || len(match) == 0 && len(in.by) == 0 && (len(in.pods) > 0 || c.objects.Lab != nil) {
		return cause, false
	}
	if len(match) == 0 && c.podsLeftOut(svc) {
		return cause, false
	}
	if len(match) == 0 {
		if ended := in.selectedEnded(svc.Spec.Selector); len(ended) > 0 {
			return podsEnded(svc, ended), true
		}
		if cause, bad = c.withoutPods(svc); bad {
			return cause, true
		}
		text, do, similar := c.insteadOf(svc, in)
		if arePrinted(in.pods) { // kubectl describe of some Pods
			if !similar {
				return cause, false
			}
			text = " that is described" + text
		}
		switch kinds := c.furtherKinds(); {
		case len(kinds) == 0 || !c.isUnsubmitted(svc):
		case similar:
			text += ". Objects of other kinds may create such Pods: " + nearest.Few(kinds)
		default:
			return Finding{
				Code: NotShown, Object: object, Field: "spec.selector",
				Text: fmt.Sprintf("whether %s has endpoints is not known: the files contain no Pod with the labels of its selector (%s), but objects of kinds that may create some: %s", object, labels.SelectorFromSet(svc.Spec.Selector), nearest.Few(kinds)),
				Do:   fmt.Sprintf("check whether such Pods run: kubectl -n %s get pods -l %s", svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector)),
			}, true
		}
		return Finding{
			Code: SelectorMatchesNothing, Object: object, Field: "spec.selector",
			Text: fmt.Sprintf("the selector of %s (%s) matches no Pod%s", object, labels.SelectorFromSet(svc.Spec.Selector), text), Do: do,
		}, true
	}
	if port.TargetPort.Type == intstr.String && !arePrinted(match) {
		if names, has := portNames(match, port); !has {
			f := Finding{
				Code: NoNamedPort, Object: object, Field: "spec.ports.targetPort",
				Text: fmt.Sprintf("no container of the Pods of %s has a port named %q%s", object, port.TargetPort.StrVal, names),
				Do:   "set targetPort to the name or number of a container port, and protocol to the protocol of that port",
			}
			if _, err := strconv.ParseUint(port.TargetPort.StrVal, 10, 16); err == nil {
				f.Do = fmt.Sprintf("write targetPort: %s without quotes: with them it is a name, and the API server rejects one without a letter", port.TargetPort.StrVal)
			}
			return f, true
		}
	}
	var states []string
	for _, p := range match {
		state := c.stateOf(p)
		if state == "" {
			return cause, false
		}
		states = append(states, fmt.Sprintf("%s (%s)", p.Name, state))
	}
	if svc.Spec.PublishNotReadyAddresses {
		return cause, false
	}
	cause = Finding{
		Code: PodsNotReady, Object: object,
		Text: fmt.Sprintf("no Pod of %s is ready: %s", object, nearest.Few(states)),
		Do:   fmt.Sprintf("kubectl -n %s describe pod %s", svc.Namespace, match[0].Name),
	}
	if t := c.templateOf(match[0]); t != nil {
		cause.Do = fmt.Sprintf("see the template of %s, and kubectl -n %s get pods", t, svc.Namespace)
	}
	return cause, true
}

// podsEnded is the finding of a Service all of whose Pods have ended: they get no packets, and are no endpoints.
func podsEnded(svc *corev1.Service, ended []*corev1.Pod) Finding {
	var states []string
	for _, p := range ended {
		states = append(states, fmt.Sprintf("%s (%s)", p.Name, strings.ToLower(cmp.Or(p.Status.Reason, string(p.Status.Phase)))))
	}
	return Finding{
		Code: PodsNotReady, Object: objectOf(svc),
		Text: fmt.Sprintf("no Pod of %s runs; they have ended: %s", objectOf(svc), nearest.Few(states)),
		Do:   fmt.Sprintf("kubectl -n %s describe pod %s, and start Pods with the labels of the selector", svc.Namespace, ended[0].Name),
	}
}

// podsLeftOut reports whether files have no Pod of those that are the Service's endpoints, or one as an example of several: not all Pods of
// its namespace are in them. Another Pod of the same ReplicaSet, which is no endpoint, shows that they are.
func (c *Cluster) podsLeftOut(svc *corev1.Service) bool {
	named, known := c.podsOf(svc)
	return c.objects.Made != nil && named > known && known < 2 && !c.hasReplacement(svc)
}

// hasReplacement reports whether a Pod that is no endpoint of the Service is from the same object as one that is, and that is not there.
func (c *Cluster) hasReplacement(svc *corev1.Service) bool {
	in := c.podsIn[svc.Namespace]
	if in == nil {
		return false
	}
	gone, named := make(map[string]bool), make(map[string]bool)
	for _, e := range c.endpointsOf(svc) {
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
			named[ref.Name] = true
			gone[stem(ref.Name)] = gone[stem(ref.Name)] || c.pods[name{Namespace: svc.Namespace, Name: ref.Name}] == nil
		}
	}
	return slices.ContainsFunc(in.pods, func(p *corev1.Pod) bool { return !named[p.Name] && stem(p.Name) != "" && gone[stem(p.Name)] })
}

// arePrinted reports whether one of the Pods is from the output of kubectl describe.
func arePrinted(pods []*corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Annotations[manifest.NotShown] != "" })
}

// podsOf are the numbers of the Service's endpoints that are Pods, and of those whose Pods are among the objects.
func (c *Cluster) podsOf(svc *corev1.Service) (named, known int) {
	for _, e := range c.endpointsOf(svc) {
		if ref := e.TargetRef; ref == nil {
			named++
			if a, err := kubeaddr.Parse(e.Addresses[0]); err == nil && c.owners[a] != nil {
				known++
			}
		} else if ref.Kind == "Pod" {
			named++
			if c.pods[name{Namespace: cmp.Or(ref.Namespace, svc.Namespace), Name: ref.Name}] != nil {
				known++
			}
		}
	}
	return named, known
}

// portNames reports whether a container has the target port's name, and for a message the names that there
// are instead.
func portNames(pods []*corev1.Pod, port *corev1.ServicePort) (names string, has bool) {
	var list []string
	for _, p := range pods {
		for _, q := range containerPorts(p) {
			if protocolOf(q.Protocol) != protocolOf(port.Protocol) {
				if q.Name == port.TargetPort.StrVal {
					list = append(list, fmt.Sprintf("%s (%d) with protocol %s, not %s", q.Name, q.ContainerPort, protocolOf(q.Protocol), protocolOf(port.Protocol)))
				}
				continue
			}
			if q.Name == port.TargetPort.StrVal {
				return "", true
			}
			if q.Name != "" {
				list = append(list, fmt.Sprintf("%s (%d)", q.Name, q.ContainerPort))
			} else {
				list = append(list, fmt.Sprint(q.ContainerPort))
			}
		}
	}
	if len(list) == 0 {
		return "; they declare no ports", false
	}
	return "; they have " + nearest.Few(list), false
}

// idle is why no container of a Pod runs that could connect to a Service; empty: one does, or there is no Pod, or no status.
func (c *Cluster) idle(p *corev1.Pod) string {
	switch {
	case p == nil, slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool { return s.State.Running != nil }):
		return ""
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return "it has ended"
	case p.Status.Phase == corev1.PodPending:
		return c.stateOf(p)
	}
	return ""
}

// stateOf is why a Pod is not ready; "" if it is, or if nothing is known.
func (c *Cluster) stateOf(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "terminating"
	}
	for _, o := range p.Status.Conditions {
		switch {
		case o.Type == corev1.PodScheduled && o.Status == corev1.ConditionFalse:
			return "not scheduled: " + cmp.Or(o.Message, o.Reason)
		case o.Type == corev1.PodReady && o.Status == corev1.ConditionTrue:
			return ""
		}
	}
	inits := p.Status.InitContainerStatuses
	for i, s := range slices.Concat(inits, p.Status.ContainerStatuses) {
		switch last := s.LastTerminationState.Terminated; {
		case i < len(inits) && s.State.Running != nil && !slices.ContainsFunc(containers(p), func(c *corev1.Container) bool { return c.Name == s.Name }):
			return fmt.Sprintf("init container %s has not finished", s.Name)
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && last != nil:
			return fmt.Sprintf("container %s: %s, after it ended with code %d (%s)", s.Name, s.State.Waiting.Reason, last.ExitCode, last.Reason)
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return fmt.Sprintf("container %s: %s", s.Name, s.State.Waiting.Reason)
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("container %s exited with code %d", s.Name, s.State.Terminated.ExitCode)
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if !s.Ready && s.State.Running != nil {
			probe := "its readiness probe fails"
			if s.Started != nil && !*s.Started {
				probe = "its startup probe has not succeeded"
			}
			if why := manifest.ProbeWithoutPort(p); why != "" {
				probe = why
			}
			return fmt.Sprintf("container %s is running, but %s", s.Name, probe)
		}
	}
	for _, o := range p.Status.Conditions {
		if o.Type == corev1.PodReady {
			if o.Message == "" && o.Reason == "" && c.NotReady(p.Spec.NodeName) != nil {
				return "its node " + p.Spec.NodeName + " is not ready"
			}
			state := "not ready"
			if list := p.Status.ContainerStatuses; len(list) > 0 && !slices.ContainsFunc(list, func(s corev1.ContainerStatus) bool { return !s.Ready }) {
				state = "its containers are ready, and its condition Ready is False: see its readiness gates, and its kubelet"
			}
			return cmp.Or(o.Message, o.Reason, state)
		}
	}
	if p.Status.Phase == corev1.PodPending {
		return "pending"
	}
	return ""
}

// deref is the value behind a pointer, and the zero value without one.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
