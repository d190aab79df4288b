package apiserver

import (
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver/apiservertest"
)

// recording is a Recorder that writes to a fake API server.
type recording struct {
	*Recorder
	client *fake.Clientset
	log    strings.Builder

	mu       sync.Mutex
	requests []string         // their verbs
	failing  map[string]error // of requests, by their verb
}

func recorded(t *testing.T, test func(t *testing.T, r *recording)) {
	synctest.Test(t, func(t *testing.T) {
		r := &recording{client: fake.NewClientset(), failing: make(map[string]error)}
		r.client.PrependReactor("*", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if a.GetVerb() != "list" {
				r.requests = append(r.requests, a.GetVerb())
			}
			err := r.failing[a.GetVerb()]
			return err != nil, nil, err
		})
		r.Recorder = NewRecorder(t.Context(), apiservertest.Client{Interface: r.client}, "worker", slog.New(slog.NewTextHandler(&r.log, nil)))
		defer r.Close()
		test(t, r)
	})
}

// events are what the API server has.
func (r *recording) events(t *testing.T) []eventsv1.Event {
	synctest.Wait()
	list, err := r.client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// take returns the verbs of the requests since the last call.
func (r *recording) take() string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	verbs := strings.Join(r.requests, " ")
	r.requests = nil
	return verbs
}

// fail has requests with the verb fail; nil: they succeed again.
func (r *recording) fail(verb string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing[verb] = err
}

// TestEvents: what an event of a Service and one of the node have in them.
func TestEvents(t *testing.T) {
	recorded(t, func(t *testing.T, r *recording) {
		r.Service("shop", "web", "Testing", "text")
		r.Node(false, "Starting", "serves")
		node := corev1.ObjectReference{Kind: "Node", Name: "worker", UID: "worker"}
		events := r.events(t)
		if len(events) != 2 {
			t.Errorf("%d events, want 2", len(events))
		}
		for _, e := range events {
			want := eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Reason: "Starting", Type: "Normal", Regarding: node, Note: "serves"}
			if e.Regarding.Kind == "Service" {
				want = eventsv1.Event{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Reason: "Testing", Type: "Warning", Related: &node, Note: "text",
					Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "web"},
				}
			}
			if !strings.HasPrefix(e.Name, want.Regarding.Name+".") || !strings.HasPrefix(e.ReportingInstance, "nfqproxy-") || e.EventTime.IsZero() {
				t.Errorf("%+v", e)
			}
			e.TypeMeta, e.ManagedFields = metav1.TypeMeta{}, nil
			e.Name, e.ReportingInstance, e.EventTime = "", "", metav1.MicroTime{}
			want.Action, want.ReportingController = "Proxy", "nfqproxy"
			if !reflect.DeepEqual(e, want) {
				t.Errorf("%+v, want %+v", e, want)
			}
		}
	})
}

// TestRepeats: the first repeat of an event is written, others are counted until they end, and the API server hears of a long
// series in between.
func TestRepeats(t *testing.T) {
	recorded(t, func(t *testing.T, r *recording) {
		again := func() { r.Service("shop", "web", "Testing", "text") }
		expect := func(after, verbs string, count int32) {
			t.Helper()
			if got := r.take(); got != verbs {
				t.Errorf("%s: requests %q, want %q", after, got, verbs)
			}
			if e := r.events(t); len(e) != 1 || (e[0].Series == nil) != (count == 1) || count > 1 && e[0].Series.Count != count {
				t.Errorf("%s: %+v, want one with the count %d", after, e, count)
			}
		}
		again()
		expect("an event", "create", 1)
		again()
		expect("a repeat", "patch", 2)
		again()
		expect("another", "", 2)
		for range 7 {
			time.Sleep(5*time.Minute - time.Second)
			again()
		}
		expect("half an hour", "patch", 9)
		time.Sleep(2 * seriesEnd)
		expect("its end", "patch", 10)
		again()
		if e := r.events(t); len(e) != 2 {
			t.Errorf("after the series: %+v, want another event", e)
		}
	})
}

// TestEventNotWritten: an event waits for the API server. One that the API server refuses is given up, and one that it has
// deleted is created again.
func TestEventNotWritten(t *testing.T) {
	recorded(t, func(t *testing.T, r *recording) {
		r.fail("create", errors.New("connection refused"))
		r.Node(true, "First", "text")
		time.Sleep(time.Minute)
		if got := r.take(); strings.Count(got, "create") < 3 {
			t.Errorf("requests in a minute without an answer: %q", got)
		}
		r.fail("create", nil)
		time.Sleep(time.Minute)
		if e := r.events(t); r.take() != "create" || len(e) != 1 {
			t.Errorf("%+v, want one", e)
		}
		events := schema.GroupResource{Resource: "events"}
		r.fail("patch", apierrors.NewNotFound(events, "x"))
		r.fail("create", apierrors.NewForbidden(events, "x", nil))
		r.Node(true, "First", "text")
		time.Sleep(time.Minute)
		if got := r.take(); got != "patch create" || !strings.Contains(r.log.String(), "cannot write an event") {
			t.Errorf("requests %q, logged %q", got, &r.log)
		}
	})
}
