package switchover

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func daemonSet(name, generation string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: generation},
	}}
}

// podOf is a pod of a DaemonSet, of one generation of its template.
func podOf(set, generation string, ready bool, changes ...func(*corev1.Pod)) corev1.Pod {
	controller, is := true, corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: set + "-" + generation, Labels: map[string]string{"pod-template-generation": generation},
			OwnerReferences: []metav1.OwnerReference{{UID: types.UID(set), Controller: &controller}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}},
	}
	for _, c := range changes {
		c(&p)
	}
	return p
}

func ending(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

// container gives a pod the status of its container.
func container(status corev1.ContainerStatus) func(*corev1.Pod) {
	status.Name = "nfqproxy"
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{status} }
}

func TestServed(t *testing.T) {
	by, other := daemonSet("nfqproxy", "2"), daemonSet("kube-proxy", "1")
	waits := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}
	runs := corev1.ContainerStatus{State: corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}}
	crashed := runs
	crashed.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "no CAP_NET_ADMIN"}
	for _, tt := range []struct {
		pods    []corev1.Pod
		updated bool
		want    string
	}{
		{nil, true, "no pod of DaemonSet nfqproxy on the node"},
		{[]corev1.Pod{podOf("nfqproxy", "2", true)}, true, ""},
		{[]corev1.Pod{podOf("coredns", "1", true)}, true, "no pod of DaemonSet nfqproxy on the node"},
		{[]corev1.Pod{podOf("nfqproxy", "2", true), podOf("kube-proxy", "1", true)}, true, "pod kube-proxy-1 is still there"},
		{[]corev1.Pod{podOf("kube-proxy", "1", true, ending), podOf("nfqproxy", "2", true)}, true, "pod kube-proxy-1 is still there"},
		{[]corev1.Pod{podOf("nfqproxy", "1", true)}, true, "pod nfqproxy-1 has not been replaced yet"},
		{[]corev1.Pod{podOf("nfqproxy", "1", true)}, false, ""},
		{[]corev1.Pod{podOf("nfqproxy", "2", true, ending)}, false, "pod nfqproxy-2 has not been replaced yet"},
		// During a rolling update with a surge there are two.
		{[]corev1.Pod{podOf("nfqproxy", "2", true), podOf("nfqproxy", "1", true, ending)}, true, ""},
		{[]corev1.Pod{podOf("nfqproxy", "1", true, ending), podOf("nfqproxy", "2", true)}, true, ""},
		{[]corev1.Pod{podOf("nfqproxy", "2", false, container(waits)), podOf("nfqproxy", "1", true)}, true, "pod nfqproxy-2: container nfqproxy is waiting: ImagePullBackOff: not found"},
		{[]corev1.Pod{podOf("nfqproxy", "2", false)}, true, "pod nfqproxy-2 is not ready: Running"},
		{[]corev1.Pod{podOf("nfqproxy", "2", false, container(waits))}, true, "pod nfqproxy-2: container nfqproxy is waiting: ImagePullBackOff: not found"},
		{[]corev1.Pod{podOf("nfqproxy", "2", false, container(runs))}, true, "pod nfqproxy-2: container nfqproxy is running, but not ready"},
		{[]corev1.Pod{podOf("nfqproxy", "2", false, container(crashed))}, true, "pod nfqproxy-2: container nfqproxy is not ready, and exited before with code 1: Error: no CAP_NET_ADMIN"},
	} {
		got := ""
		if err := served(tt.pods, by, other, tt.updated); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%d pods: %q, want %q", len(tt.pods), got, tt.want)
		}
	}
	by.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	if err := served([]corev1.Pod{podOf("nfqproxy", "1", true)}, by, nil, true); err != nil {
		t.Errorf("a pod that is updated by nobody but its user: %v", err)
	}
}
