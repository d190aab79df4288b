package daemon

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/apiserver/apiservertest"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// TestAlertIsAnEvent: the limit of the connection table is the machine's, so that no test
// can have it reached.
func TestAlertIsAnEvent(t *testing.T) {
	client, events := fake.NewClientset(), make(chan *eventsv1.Event, 10)
	client.PrependReactor("create", "events", func(action k8stesting.Action) (bool, runtime.Object, error) {
		events <- action.(k8stesting.CreateAction).GetObject().(*eventsv1.Event)
		return false, nil, nil
	})
	recorder := apiserver.NewRecorder(t.Context(), apiservertest.Client{Interface: client}, "worker", slog.New(slog.DiscardHandler))
	defer recorder.Close()
	p := &process{events: recorder}
	for _, a := range []engine.Alert{{Reason: "ConntrackFull", Text: "It is full."}, {Reason: "ConntrackRecovered", Text: "No longer.", Over: true}} {
		p.alert(a)
		var event *eventsv1.Event
		select {
		case event = <-events:
		case <-time.After(time.Minute):
			t.Fatalf("no event %s", a.Reason)
		}
		if event.Regarding.Kind != "Node" || event.Regarding.Name != "worker" || event.Reason != a.Reason {
			t.Errorf("%+v", event)
		}
		if want := map[bool]string{false: corev1.EventTypeWarning, true: corev1.EventTypeNormal}[a.Over]; event.Type != want || event.Note != a.Text {
			t.Errorf("%+v", event)
		}
	}
}
