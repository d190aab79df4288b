package servicetable

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestQueueOneIn(t *testing.T) {
	for _, c := range []struct {
		value   string // "-": there is no annotation
		kernel  bool   // --decide
		bound   bool   // session affinity
		want    uint32
		warning string
	}{
		{"-", false, false, 0, ""},
		{"-", true, false, decision.NotQueued, ""},
		{"queue", true, false, 0, ""},
		{"queue/1", true, false, 0, ""},
		{"kernel", false, false, decision.NotQueued, ""},
		{"queue/100", false, false, 100, ""},
		{"queue/1000000", false, false, 1000000, ""},
		{"queue/1000001", false, false, 0, `want "queue", "kernel" or "queue/N"`},
		{"queue/0", true, false, decision.NotQueued, "ignored"},
		{"queue/-1", false, false, 0, "ignored"},
		{"queue/", false, false, 0, "ignored"},
		{"", false, false, 0, "ignored"},
		{"Kernel", false, false, 0, "ignored"},
		{"kernel", false, true, decision.NotQueued, ""},
		{"queue/100", false, true, 100, "session affinity"},
		{"queue", false, true, 0, ""},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		if c.value != "-" {
			svc.Annotations = map[string]string{"nfqproxy.io/decide": c.value}
		}
		if c.bound {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		if got := queueOneIn(svc, location{kernelDecides: c.kernel}); got != c.want {
			t.Errorf("%q: %d, want %d", c.value, got, c.want)
		}
		if got := strings.Join(decideWarnings(svc), "\n"); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
			t.Errorf("%q: warning %q, want %q", c.value, got, c.warning)
		}
	}
}
