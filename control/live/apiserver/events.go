package apiserver

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// component is what events are reported by.
const component = "nfqproxy"

// Recorder writes Kubernetes events: what kubectl shows an operator of the node or of a
// Service. It never blocks, and repeats of an event are counted in one. Its methods are
// safe for concurrent use.
type Recorder struct {
	client      kubernetes.Interface
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	node        *corev1.ObjectReference
}

// NewRecorder returns a Recorder for the node of the name, which writes until the context
// ends.
func NewRecorder(ctx context.Context, client kubernetes.Interface, node string) (*Recorder, error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	return &Recorder{
		client:      client,
		broadcaster: b,
		recorder:    b.NewRecorder(scheme.Scheme, component),
		// As the kubelet and kube-proxy do: its name for the UID, so that kubectl describe
		// finds the event.
		node: &corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)},
	}, nil
}

// Node writes an Event of the node: reason is one word for programs, text a sentence for people.
func (r *Recorder) Node(warning bool, reason, text string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	r.recorder.Eventf(r.node, nil, kind, reason, action, "%s", limited(text))
}

// Service writes a warning Event of a Service.
func (r *Recorder) Service(namespace, name, reason, text string) {
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name}
	r.recorder.Eventf(regarding, r.node, corev1.EventTypeWarning, reason, action, "%s", limited(text))
}

// NodeNow writes a warning Event of the node before the process ends: it waits until the Event is
// written, at most some seconds.
func (r *Recorder) NodeNow(reason, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	now := metav1.NowMicro()
	_, err := r.client.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{GenerateName: r.node.Name + "-", Namespace: metav1.NamespaceDefault},
		EventTime:           now,
		ReportingController: component, ReportingInstance: component + "-" + r.node.Name,
		Action: action, Reason: reason, Type: corev1.EventTypeWarning, Regarding: *r.node, Note: limited(text),
	}, metav1.CreateOptions{})
	return err
}

const (
	action  = "Proxy"
	maxNote = 1024 // bytes; the API server refuses longer ones
)

// limited is as much of a text as a note may hold.
func limited(text string) string {
	if len(text) <= maxNote {
		return text
	}
	return strings.ToValidUTF8(text[:maxNote-len("…")], "") + "…"
}

// Close ends the Recorder; pending Events are written first.
func (r *Recorder) Close() { r.broadcaster.Shutdown() }
