package daemonset

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddressOf(t *testing.T) {
	const none = "its daemon serves the flow API at no ADDRESS:PORT"
	for _, tt := range []struct {
		arguments string
		want      address
		err       string
	}{
		{"run", address{}, none},
		{"run --flow-api=unix:/run/nfqproxy/flows.sock", address{}, none},
		{"run --flow-api=/run/flows.sock,nonsense,:http", address{}, none},
		{"run --flow-api=", address{}, none},
		{"run --flow-api=unix:/run/x,127.0.0.1:10253", address{port: 10253, loopback: true}, ""},
		{"run --flow-api unix:/run/x,[::1]:1", address{port: 1, loopback: true}, ""},
		{"run --flow-api=127.0.0.1:1 --flow-api=localhost:2", address{port: 2, loopback: true}, ""},
		{"run --flow-api=:3 --flow-api-tls-cert=x", address{port: 3, tls: true, public: true, loopback: true}, ""},
		{"run --flow-api=[::]:3 --flow-api-tls-cert x", address{port: 3, tls: true, public: true, loopback: true}, ""},
		{"run --flow-api=192.0.2.1:4 --flow-api-tls-cert=x", address{port: 4, tls: true, public: true}, ""},
		// An address of the node reaches farther than a loopback one, where port-forward is forbidden.
		{"run --flow-api=127.0.0.1:1,0.0.0.0:2 --flow-api-tls-cert=x", address{port: 2, tls: true, public: true, loopback: true}, ""},
	} {
		got, err := addressOf(&corev1.PodSpec{Containers: []corev1.Container{{Name: "other"}, {Command: []string{"nfqproxy"}, Args: strings.Fields(tt.arguments)}}})
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%s: %+v, %v; want %+v, %s", tt.arguments, got, err, tt.want, tt.err)
		}
	}
}

// TestBetter: which of two pods of a node is connected to.
func TestBetter(t *testing.T) {
	now := time.Now()
	pod := func(name string, age time.Duration, phase corev1.PodPhase, ready, ends bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-age))}, Status: corev1.PodStatus{Phase: phase}}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if ends {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		return p
	}
	order := []*corev1.Pod{ // from the worst to the best
		pod("failed", time.Hour, corev1.PodFailed, false, false),
		pod("pending", 0, corev1.PodPending, false, false),
		pod("ending", time.Hour, corev1.PodRunning, false, true),
		pod("starting", 2*time.Minute, corev1.PodRunning, false, false),
		pod("newer", time.Minute, corev1.PodRunning, false, false),
		pod("serving until the next one is ready", time.Hour, corev1.PodRunning, true, true),
		pod("serving", time.Hour, corev1.PodRunning, true, false),
	}
	for i, a := range order {
		for j, b := range order {
			got := comparePods(a, b)
			if i < j && got >= 0 || i > j && got <= 0 || i == j && got != 0 {
				t.Errorf("%s and %s: %d", a.Name, b.Name, got)
			}
		}
	}
}

func TestStateOf(t *testing.T) {
	for _, tt := range []struct {
		status corev1.PodStatus
		want   string
	}{
		{corev1.PodStatus{}, "Pending"},
		{corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, "Failed (Evicted)"},
		{corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}}, "Pending (ImagePullBackOff)"},
		{corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}}}, "Pending (0/3 nodes are available)"},
	} {
		if got := stateOf(&corev1.Pod{Status: tt.status}); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
