package cli

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// TestAlertIsAnEvent: the limit of the connection table is the machine's, so that no test
// can have it reached.
func TestAlertIsAnEvent(t *testing.T) {
	client := fake.NewClientset()
	recorder, err := apiserver.NewRecorder(t.Context(), client, "worker")
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	p := &proxy{events: recorder}
	for _, a := range []engine.Alert{{Reason: "ConntrackFull", Text: "It is full."}, {Reason: "ConntrackRecovered", Text: "No longer.", Over: true}} {
		p.alert(a)
		var event *eventsv1.Event
		e2etest.Eventually(t, e2etest.Patience, a.Reason, func() bool {
			list, err := client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				if e.Regarding.Kind == "Node" && e.Regarding.Name == "worker" && e.Reason == a.Reason {
					event = &e
				}
			}
			return event != nil
		})
		if want := map[bool]string{false: corev1.EventTypeWarning, true: corev1.EventTypeNormal}[a.Over]; event.Type != want || event.Note != a.Text {
			t.Errorf("%+v", event)
		}
	}
}
