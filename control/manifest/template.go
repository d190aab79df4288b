package manifest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Template is an object that has Pods made of a template: a Deployment, StatefulSet, DaemonSet, ReplicaSet,
// ReplicationController, Job or CronJob.
type Template struct {
	Kind            string
	Namespace, Name string
	Pod             corev1.PodTemplateSpec
	// Replicas is how many Pods it wants; valid iff EachNode is false.
	Replicas  int
	Suspended bool // a Job or CronJob that wants none for now
	EachNode  bool // a DaemonSet
	// Ready is how many of its Pods are ready, as an API server has seen them; nil: none has.
	Ready *int
	// Owned: another object makes this one, as a Deployment makes a ReplicaSet.
	Owned bool
	// ServiceName is the Service of a StatefulSet whose Pods have names in DNS by it.
	ServiceName string
	Parallel    bool // a StatefulSet whose Pods do not wait for each other
}

// String is "Deployment shop/web".
func (t *Template) String() string { return t.Kind + " " + t.Namespace + "/" + t.Name }

// templateKinds are the kinds of objects with a template, by API group. All versions of a group have the same fields here.
var templateKinds = map[string][]string{
	"":           {"ReplicationController"},
	"apps":       {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"},
	"extensions": {"Deployment", "DaemonSet", "ReplicaSet"}, // until Kubernetes 1.15
	"batch":      {"Job", "CronJob"},
	// Of others, with the same template.
	"apps.openshift.io": {"DeploymentConfig"},
	"argoproj.io":       {"Rollout"},
	"apps.kruise.io":    {"CloneSet", "StatefulSet", "DaemonSet"},
}

// hasTemplate reports whether objects of the type have a template of Pods.
func (t typeName) hasTemplate() bool {
	group, _, found := strings.Cut(t.apiVersion, "/")
	if !found {
		group = ""
	}
	return slices.Contains(templateKinds[group], t.kind)
}

// workload is what is read of an object with a template.
type workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas *int32                 `json:"replicas"`
		Suspend  bool                   `json:"suspend"`
		Template corev1.PodTemplateSpec `json:"template"`
		// ServiceName is that of a StatefulSet.
		ServiceName         string                         `json:"serviceName"`
		PodManagementPolicy appsv1.PodManagementPolicyType `json:"podManagementPolicy"`
		// Selector is read of kinds of API group apps.
		Selector *metav1.LabelSelector `json:"selector"`
	} `json:"spec"`
	Status struct {
		Replicas      int32  `json:"replicas"`
		ReadyReplicas *int32 `json:"readyReplicas"`
		NumberReady   *int32 `json:"numberReady"`
	} `json:"status"`
}

// defaultPod fills in what the API server would, and Services look at: the protocols of ports.
func defaultPod(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for j := range containers[i].Ports {
				setDefault(&containers[i].Ports[j].Protocol, corev1.ProtocolTCP)
			}
		}
	}
}

// workloadOf has those fields of an object that are in a workload. The template of a CronJob is moved to where other
// kinds have it.
func workloadOf(m map[string]any) map[string]any {
	part := func(of any, fields ...string) map[string]any {
		from, _ := of.(map[string]any)
		some := make(map[string]any)
		for _, f := range fields {
			if v, ok := from[f]; ok {
				some[f] = v
			}
		}
		return some
	}
	w := part(m, "apiVersion", "kind", "metadata")
	spec := part(m["spec"], "replicas", "suspend", "template", "serviceName", "podManagementPolicy")
	if m["apiVersion"] == "apps/v1" {
		maps.Copy(spec, part(m["spec"], "selector"))
	}
	if job := part(m["spec"], "jobTemplate"); len(job) > 0 {
		maps.Copy(spec, part(part(job["jobTemplate"], "spec")["spec"], "template"))
	}
	w["spec"], w["status"] = spec, part(m["status"], "replicas", "readyReplicas", "numberReady")
	// A Job is often made with a prefix of its name only.
	if metadata, ok := m["metadata"].(map[string]any); ok && metadata["name"] == nil {
		if prefix, ok := metadata["generateName"].(string); ok {
			metadata = maps.Clone(metadata)
			metadata["name"] = strings.TrimRight(prefix, "-.")
			w["metadata"] = metadata
		}
	}
	return w
}

// template keeps an object with a template.
func (l *loader) template(at Place, t typeName, m map[string]any, duplicates []string) {
	o, ok := add(l, at, t, workloadOf(m), duplicates, func(w *workload) { defaultPod(&w.Spec.Template.Spec) }, func(w *workload, v *validation) {
		if s, err := metav1.LabelSelectorAsSelector(w.Spec.Selector); err == nil && !s.Empty() && !s.Matches(labels.Set(w.Spec.Template.Labels)) && w.Spec.Selector != nil {
			v.fail("spec.selector", "the API server rejects it: the labels of spec.template do not match it")
		}
	})
	if !ok {
		return
	}
	if o.Annotations[annotationHook] != "" && !fromCluster(o) || len(o.Spec.Template.Spec.Containers) == 0 { // a Rollout may refer to a Deployment instead
		l.objects.skip(t)
		return
	}
	made := &Template{Kind: t.kind, Namespace: o.Namespace, Name: o.Name, Pod: o.Spec.Template, Replicas: 1, EachNode: t.kind == "DaemonSet", ServiceName: o.Spec.ServiceName, Suspended: o.Spec.Suspend}
	if o.Spec.Replicas != nil {
		made.Replicas = max(int(*o.Spec.Replicas), 0)
	}
	made.Parallel = o.Spec.PodManagementPolicy == appsv1.ParallelPodManagement
	if made.Suspended {
		made.Replicas = 0
	}
	if fromCluster(o) && t.kind != "Job" && t.kind != "CronJob" {
		ready := cmp.Or(o.Status.ReadyReplicas, o.Status.NumberReady, new(int32))
		made.Ready = new(int(*ready))
	}
	for _, owner := range o.OwnerReferences {
		made.Owned = made.Owned || owner.Controller != nil && *owner.Controller
	}
	l.objects.Templates = append(l.objects.Templates, made)
}

// CountTemplates counts the objects with templates as Skipped does: the service table does not depend on them.
func (o *Objects) CountTemplates() []Skipped {
	var counted Objects
	for _, t := range o.Templates {
		counted.skip(typeName{kind: t.Kind})
	}
	return counted.Skipped
}
