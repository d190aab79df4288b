package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// component is what events are reported by.
const component = "nfqproxy"

// The numbers are those of client-go's recorder (tools/events), which would link the types of all API groups.
const (
	// Repeats of an event are counted in one, its series, until there are none for seriesEnd. The API server gets the
	// count with the first repeat, every seriesRefresh, so that it does not delete the event as an old one, and at the end.
	seriesEnd     = 6 * time.Minute
	seriesRefresh = 30 * time.Minute
	// An event is sent maxTries times if the API server does not answer, retryPause apart and up to a quarter more.
	maxTries   = 12
	retryPause = 10 * time.Second
	maxQueued  = 1000
)

// Recorder writes Kubernetes events: what kubectl shows an operator of the node or of a
// Service. It never blocks, and repeats of an event are counted in one. Its methods are
// safe for concurrent use. A nil Recorder writes nothing.
type Recorder struct {
	client   Client
	log      *slog.Logger
	node     *corev1.ObjectReference
	instance string
	queue    chan *eventsv1.Event
	known    map[eventKey]*eventsv1.Event // what was written; of run
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// eventKey is what an event and its repeats have in common.
type eventKey struct {
	kind, reason string
	regarding    corev1.ObjectReference
}

// NewRecorder returns a Recorder for the node of the name, which writes until the context
// ends.
func NewRecorder(ctx context.Context, client Client, node string, log *slog.Logger) *Recorder {
	hostname, _ := os.Hostname()
	r := &Recorder{
		client: client, log: log, instance: component + "-" + hostname,
		// As the kubelet and kube-proxy do: its name for the UID, so that kubectl describe
		// finds the event.
		node:  &corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)},
		queue: make(chan *eventsv1.Event, maxQueued), known: make(map[eventKey]*eventsv1.Event),
	}
	ctx, r.stop = context.WithCancel(ctx)
	r.running.Go(func() { r.run(ctx) })
	return r
}

// Node writes an Event of the node: reason is one word for programs, text a sentence for people.
func (r *Recorder) Node(warning bool, reason, text string) {
	if r == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	r.note(r.event(kind, reason, text, r.node))
}

// Service writes a warning Event of a Service.
func (r *Recorder) Service(namespace, name, reason, text string) {
	if r == nil {
		return
	}
	e := r.event(corev1.EventTypeWarning, reason, text, &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name})
	e.Namespace, e.Related = namespace, r.node
	r.note(e)
}

// NodeNow writes a warning Event of the node before the process ends: it waits until the Event is
// written, at most some seconds.
func (r *Recorder) NodeNow(reason, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return r.client.CreateEvent(ctx, r.event(corev1.EventTypeWarning, reason, text, r.node))
}

const (
	action  = "Proxy"
	maxNote = 1024 // bytes; the API server refuses longer ones
	// maxBase is how much of an object's name fits in an event's name of 253 bytes, before a dot and 16 digits.
	maxBase = 236
)

func (r *Recorder) event(kind, reason, text string, regarding *corev1.ObjectReference) *eventsv1.Event {
	now := metav1.NowMicro()
	base := strings.TrimRight(regarding.Name[:min(len(regarding.Name), maxBase)], "-.")
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", base, now.UnixNano()), Namespace: metav1.NamespaceDefault},
		EventTime:           now,
		ReportingController: component, ReportingInstance: r.instance,
		Action: action, Reason: reason, Type: kind, Regarding: *regarding, Note: limited(text),
	}
}

// limited is as much of a text as a note may hold.
func limited(text string) string {
	if len(text) <= maxNote {
		return text
	}
	return strings.ToValidUTF8(text[:maxNote-len("…")], "") + "…"
}

// Close ends the Recorder. Events that are not written yet are lost.
func (r *Recorder) Close() {
	r.stop()
	r.running.Wait()
}

func (r *Recorder) note(e *eventsv1.Event) {
	select {
	case r.queue <- e:
	default:
		r.log.Warn("an event was lost: too many wait to be written", "reason", e.Reason, "of", e.Regarding.Name)
	}
}

func (r *Recorder) run(ctx context.Context) {
	end, refresh := time.Tick(seriesEnd), time.Tick(seriesRefresh)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			r.record(ctx, e)
		case <-refresh:
			for _, e := range r.known {
				if e.Series != nil {
					r.write(ctx, e)
				}
			}
		case <-end:
			r.endSeries(ctx)
		}
	}
}

// record writes an event, or counts it as a repeat.
func (r *Recorder) record(ctx context.Context, e *eventsv1.Event) {
	key := eventKey{e.Type, e.Reason, e.Regarding}
	switch first := r.known[key]; {
	case first == nil:
		r.known[key] = e
		r.write(ctx, e)
	case first.Series == nil:
		first.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: e.EventTime}
		r.write(ctx, first)
	default:
		first.Series.Count++
		first.Series.LastObservedTime = e.EventTime
	}
}

// endSeries forgets events without a repeat for a while, and writes the count of their repeats.
func (r *Recorder) endSeries(ctx context.Context) {
	for key, e := range r.known {
		last := e.EventTime
		if e.Series != nil {
			last = e.Series.LastObservedTime
		}
		if time.Since(last.Time) < seriesEnd {
			continue
		}
		if e.Series != nil {
			r.write(ctx, e)
		}
		delete(r.known, key)
	}
}

// write sends an event, again if the API server does not answer.
func (r *Recorder) write(ctx context.Context, e *eventsv1.Event) {
	var err error
	for range maxTries {
		if err = r.send(ctx, e); err == nil || apierrors.IsAlreadyExists(err) { // an earlier try arrived
			return
		}
		if _, refused := errors.AsType[*apierrors.StatusError](err); refused {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryPause + rand.N(retryPause/4)):
		}
	}
	r.log.Warn("cannot write an event", "reason", e.Reason, "of", e.Regarding.Name, "error", err)
}

// send creates an event. One with a series exists, unless it was deleted: only the series is written.
func (r *Recorder) send(ctx context.Context, e *eventsv1.Event) error {
	if e.Series != nil {
		patch, err := json.Marshal(map[string]any{"series": e.Series})
		if err != nil {
			return err
		}
		if err := r.client.PatchEvent(ctx, e.Namespace, e.Name, patch); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return r.client.CreateEvent(ctx, e)
}
