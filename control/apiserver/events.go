package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
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
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	node        *corev1.ObjectReference
}

// NewRecorder makes a Recorder for the node of the name, which writes until the context
// ends.
func NewRecorder(ctx context.Context, client kubernetes.Interface, node string) (*Recorder, error) {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	return &Recorder{
		broadcaster: b,
		recorder:    b.NewRecorder(scheme.Scheme, component),
		// As the kubelet and kube-proxy do: its name for the UID, so that kubectl describe
		// finds the event.
		node: &corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)},
	}, nil
}

// Node tells of the node: reason is one word for programs, text a sentence for people.
func (r *Recorder) Node(warning bool, reason, text string) {
	r.recorder.Eventf(r.node, nil, eventType(warning), reason, "Proxy", "%s", text)
}

// Service warns of a Service.
func (r *Recorder) Service(namespace, name, reason, text string) {
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name}
	r.recorder.Eventf(regarding, r.node, corev1.EventTypeWarning, reason, "Proxy", "%s", text)
}

func eventType(warning bool) string {
	if warning {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}

// Close lets go of the Recorder; what is on its way is written first.
func (r *Recorder) Close() { r.broadcaster.Shutdown() }
