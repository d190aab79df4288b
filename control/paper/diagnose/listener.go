package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// listener is why a Pod will not answer at a port; nil: there is no reason to expect that. port is the one of
// the Service; nil: the connection is to the Pod itself.
func (w *inquiry) listener(p *corev1.Pod, at uint16, protocol decision.Protocol, port *corev1.ServicePort) *Finding {
	if servicetable.PodEnded(p) {
		return &Finding{Code: PodGone, Object: "Pod " + nameOf(p).String(), Field: "status.phase", Text: fmt.Sprintf("Pod %s has ended", nameOf(p)), Do: "start it again"}
	}
	if why := notRunning(p, at, protocol); why != "" {
		return &Finding{
			Code: PodGone, Object: "Pod " + nameOf(p).String(), Field: "status.containerStatuses", Text: fmt.Sprintf("nothing listens in Pod %s: %s", nameOf(p), why),
			Do: fmt.Sprintf("kubectl -n %s describe pod %s", p.Namespace, p.Name),
		}
	}
	code, verb := NoListener, "listens at"
	var listens, numbers []string
	add := func(port uint16, q decision.Protocol) {
		if listens = append(listens, fmt.Sprintf("%d/%s", port, q)); q == protocol {
			numbers = append(numbers, strconv.Itoa(int(port)))
		}
	}
	if ports, lab := w.listens[nameOf(p)]; lab {
		for _, l := range ports {
			if l.Port == at && l.Protocol == protocol {
				return nil
			}
			add(l.Port, l.Protocol)
		}
	} else {
		code, verb = OtherPort, "declares"
		if !declaresAll(p) {
			return nil
		}
		for _, q := range containerPorts(p) {
			if q.ContainerPort == int32(at) && protocolOf(q.Protocol) == protocol {
				return nil
			}
			add(uint16(q.ContainerPort), protocolOf(q.Protocol))
		}
	}
	some := "no port"
	if len(listens) > 0 {
		some = nearest.Few(listens)
	}
	f := &Finding{
		Code: code, Object: "Pod " + nameOf(p).String(), Field: "spec.containers",
		Text: fmt.Sprintf("Pod %s %s %s, and the connection goes to %d/%s", nameOf(p), verb, some, at, protocol), Do: "use a port that the Pod listens on",
	}
	if t := w.templateOf(p); t != nil {
		f.Object, f.Field = t.String(), "spec.template.spec.containers"
		f.Text = fmt.Sprintf("the template of %s %s %s, and the connection goes to %d/%s: probably nothing listens there", t, verb, some, at, protocol)
	}
	if port != nil {
		f.Object, f.Field = objectOf(w.to.service), "spec.ports["+strconv.Itoa(w.indexOf(port))+"].targetPort"
		f.Do = fmt.Sprintf("have the Pod listen on %d/%s", at, protocol)
		switch other := slices.IndexFunc(listens, func(l string) bool { return strings.HasPrefix(l, fmt.Sprintf("%d/", at)) }); {
		case other >= 0:
			f.Do = fmt.Sprintf("set the protocol of port %d of %s to that of the container, or have the Pod listen on %d/%s", port.Port, objectOf(w.to.service), at, protocol)
		case len(numbers) > 0:
			f.Do = fmt.Sprintf("set targetPort of port %d of %s to %s, unless the Pod listens on %d anyway", port.Port, objectOf(w.to.service), strings.Join(numbers, " or "), at)
		}
	}
	return f
}

// notRunning is why no container can listen on a port of a Pod: that which declares it, or if none does, all, do not run; "": one
// may.
func notRunning(p *corev1.Pod, at uint16, protocol decision.Protocol) (why string) {
	declares := func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(q corev1.ContainerPort) bool {
			return q.ContainerPort == int32(at) && protocolOf(q.Protocol) == protocol
		})
	}
	list := containers(p)
	if slices.ContainsFunc(list, declares) {
		list = slices.DeleteFunc(list, func(c *corev1.Container) bool { return !declares(c) })
	}
	for _, c := range list {
		i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		switch {
		case i < 0 || p.Status.ContainerStatuses[i].State.Waiting == nil:
			return ""
		case why == "":
			why = fmt.Sprintf("container %s does not run (%s)", c.Name, p.Status.ContainerStatuses[i].State.Waiting.Reason)
		}
	}
	return why
}

// indexOf is the position of the port in the Service.
func (w *inquiry) indexOf(port *corev1.ServicePort) int {
	for i := range w.to.service.Spec.Ports {
		if &w.to.service.Spec.Ports[i] == port {
			return i
		}
	}
	return 0
}

// containers are those that run as long as the Pod: its sidecars too.
func containers(p *corev1.Pod) (list []*corev1.Container) {
	for i := range p.Spec.Containers {
		list = append(list, &p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; deref(c.RestartPolicy) == corev1.ContainerRestartPolicyAlways {
			list = append(list, c)
		}
	}
	return list
}

// containerPorts are the ports that a Pod's containers declare.
func containerPorts(p *corev1.Pod) (ports []corev1.ContainerPort) {
	for _, c := range containers(p) {
		ports = append(ports, c.Ports...)
	}
	return ports
}

// declaresAll reports whether each container declares ports. One that declares none may listen at any: it need not
// declare them, and its sidecar does.
func declaresAll(p *corev1.Pod) bool {
	list := containers(p)
	return len(list) > 0 && !slices.ContainsFunc(list, func(c *corev1.Container) bool { return len(c.Ports) == 0 })
}
