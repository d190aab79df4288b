package labfile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// This file has the pods and deployments of a lab as Kubernetes objects, and the other way round.

// answerImage is the image of containers with the built-in server labapi.AnswerServer.
const answerImage = "answer"

// Images are the images of containers with the built-in servers.
var Images = []string{answerImage, string(labapi.DNSServer)}

// PodObject is a pod as a Kubernetes object, running and ready.
func PodObject(p *labapi.Pod) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec:       podSpec(p.Ports, p.GracePeriodSeconds, p.ReadinessProbe),
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	o.Spec.NodeName = p.Node
	if p.Deployment != "" {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: p.Deployment, Controller: new(true)}}
	}
	setPodIPs(&o.Status, p.Addresses)
	return o
}

func setPodIPs(s *corev1.PodStatus, addresses []netip.Addr) {
	for _, a := range addresses {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: a.String()})
	}
	if len(addresses) > 0 {
		s.PodIP = addresses[0].String()
	}
}

// Object is the deployment as a Kubernetes object, without a status.
func (d *Deployment) Object() *appsv1.Deployment {
	o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
	o.Spec.Replicas = new(int32(*d.Replicas))
	o.Spec.Selector = &metav1.LabelSelector{MatchLabels: d.Labels}
	o.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: d.Labels}, Spec: podSpec(d.Ports, d.GracePeriodSeconds, d.ReadinessProbe)}
	if len(d.Nodes) > 0 {
		o.Spec.Template.Spec.Affinity = onNodes(d.Nodes)
	}
	return o
}

// podSpec has a container for each kind of server.
func podSpec(ports []labapi.Port, grace *uint16, probe *corev1.Probe) (spec corev1.PodSpec) {
	if grace != nil {
		spec.TerminationGracePeriodSeconds = new(int64(*grace))
	}
	for _, p := range ports {
		image := cmp.Or(string(p.Server), answerImage)
		i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Image == image })
		if i < 0 {
			i = len(spec.Containers)
			spec.Containers = append(spec.Containers, corev1.Container{Name: image, Image: image})
		}
		spec.Containers[i].Ports = append(spec.Containers[i].Ports, corev1.ContainerPort{Name: p.Name, ContainerPort: int32(p.Port), Protocol: corev1.Protocol(p.Protocol.String())})
	}
	if probe != nil {
		if len(spec.Containers) == 0 {
			spec.Containers = []corev1.Container{{Name: answerImage, Image: answerImage}}
		}
		spec.Containers[0].ReadinessProbe = probe
	}
	return spec
}

// onNodes is the affinity of pods to nodes by their names.
func onNodes(names []string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names,
		}}}},
	}}}
}

// DeploymentOf is a Deployment as a deployment of a lab. What has no meaning in a lab is left out. An error names the
// first field that a lab cannot have.
func DeploymentOf(o *appsv1.Deployment) (Deployment, error) {
	var v problems
	d := v.deploymentOf(o)
	return d, v.first("Deployment", o)
}

// PodOf is a Pod as a pod of a lab, without an address: a status is not the user's to write. It is like DeploymentOf.
func PodOf(o *corev1.Pod) (labapi.Pod, error) {
	var v problems
	p := v.podOf(o)
	return p, v.first("Pod", o)
}

func (v *problems) first(kind string, o metav1.Object) error {
	if len(v.errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s %s/%s: %s: %w", kind, o.GetNamespace(), o.GetName(), v.errs[0].Field, v.errs[0].Err)
}

func (v *problems) deploymentOf(o *appsv1.Deployment) Deployment {
	d := Deployment{Name: o.Name, Namespace: o.Namespace, Replicas: new(uint16(1)), Labels: o.Spec.Template.Labels}
	if r := o.Spec.Replicas; r != nil {
		if *r < 0 || *r > maxReplicas {
			v.fail("spec.replicas", "%d: want a number from 0 to %d", *r, maxReplicas)
		} else {
			*d.Replicas = uint16(*r)
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
	switch {
	case o.Spec.Selector == nil:
		v.fail("spec.selector", "missing")
	case err != nil:
		v.fail("spec.selector", "%w", err)
	case selector.Empty() || !selector.Matches(labels.Set(d.Labels)):
		v.fail("spec.selector", "it does not match spec.template.metadata.labels")
	}
	const at = "spec.template.spec"
	spec := &o.Spec.Template.Spec
	d.Nodes = v.nodeNames(at, spec)
	d.Ports, d.GracePeriodSeconds = v.servers(at, spec), v.gracePeriod(at, spec)
	d.ReadinessProbe = v.readinessProbe(at, spec, d.Ports)
	return d
}

func (v *problems) podOf(o *corev1.Pod) labapi.Pod {
	spec := &o.Spec
	p := labapi.Pod{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, Node: spec.NodeName, Ports: v.servers("spec", spec), GracePeriodSeconds: v.gracePeriod("spec", spec)}
	if names := v.nodeNames("spec", spec); p.Node == "" && len(names) > 0 {
		p.Node = names[0]
	}
	p.ReadinessProbe = v.readinessProbe("spec", spec, p.Ports)
	return p
}

// servers are the ports of all containers.
func (v *problems) servers(at string, spec *corev1.PodSpec) (ports []labapi.Port) {
	for i, c := range spec.Containers {
		server := labapi.AnswerServer // also in the place of other images
		if c.Image == string(labapi.DNSServer) {
			server = labapi.DNSServer
		}
		for j, p := range c.Ports {
			path := fmt.Sprintf("%s.containers[%d].ports[%d]", at, i, j)
			port := labapi.Port{Name: p.Name, Port: uint16(p.ContainerPort), Server: server}
			before := len(v.errs)
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				v.fail(path+".containerPort", "%d is not a port number (1 to 65535)", p.ContainerPort)
			}
			protocol, err := readProtocol(cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)))
			if err != nil {
				v.fail(path+".protocol", "%w", err)
			}
			if len(v.errs) > before {
				ports = append(ports, port) // a probe may have its name
				continue
			}
			port.Protocol = protocol.(decision.Protocol)
			if slices.ContainsFunc(ports, func(q labapi.Port) bool { return q.Port == port.Port && q.Protocol == port.Protocol }) {
				v.fail(path, "port %d/%s is given twice", port.Port, port.Protocol)
				continue
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// readinessProbe is the one that a lab runs; nil: there is none.
func (v *problems) readinessProbe(at string, spec *corev1.PodSpec, ports []labapi.Port) (probe *corev1.Probe) {
	for i, c := range spec.Containers {
		path := fmt.Sprintf("%s.containers[%d].readinessProbe", at, i)
		switch {
		case !Probed(c.ReadinessProbe):
		case probe != nil:
			v.fail(path, "a second readinessProbe: a pod of a lab can have one")
		default:
			v.probe(path, c.ReadinessProbe, ports)
			probe = c.ReadinessProbe
		}
	}
	return probe
}

func (v *problems) gracePeriod(at string, spec *corev1.PodSpec) *uint16 {
	switch s := spec.TerminationGracePeriodSeconds; {
	case s == nil:
		return nil
	case *s < 0 || *s > maxGrace:
		v.fail(at+".terminationGracePeriodSeconds", "%d: want a number from 0 to %d", *s, maxGrace)
		return nil
	default:
		return new(uint16(*s))
	}
}

// nodeNames are the nodes that a node selector or a required affinity names; nil: all.
func (v *problems) nodeNames(at string, spec *corev1.PodSpec) []string {
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if key != corev1.LabelHostname && key != corev1.LabelOSStable { // all of them run Linux
			v.fail(fmt.Sprintf("%s.nodeSelector[%s]", at, key), "a lab selects nodes by the label %s only", corev1.LabelHostname)
		}
	}
	if name, ok := spec.NodeSelector[corev1.LabelHostname]; ok {
		return []string{name}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) == 1 && len(terms[0].MatchFields) == 0 && len(terms[0].MatchExpressions) == 1 {
		if e := terms[0].MatchExpressions[0]; e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn {
			return e.Values
		}
	}
	v.fail(at+".affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", "a lab supports one expression only: %s In [...]", corev1.LabelHostname)
	return nil
}

// Limits as in a lab file.
const (
	maxReplicas = 1000
	maxGrace    = 3600
)
