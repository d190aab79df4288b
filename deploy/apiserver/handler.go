package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// request is a request for objects.
type request struct {
	resource
	namespace, name string // empty: all
	labels          labels.Selector
	fields          fields.Selector
}

// wants reports whether the request is for an object; nil is none.
func (q *request) wants(o *object) bool {
	return o != nil && (q.namespace == "" || o.GetNamespace() == q.namespace) && (q.name == "" || o.GetName() == q.name) &&
		q.labels.Matches(labels.Set(o.GetLabels())) && q.fields.Matches(fieldsOf(o))
}

// fieldsOf are the fields by which service proxies select objects.
func fieldsOf(o *object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.Object.(type) {
	case *corev1.Service:
		set["spec.clusterIP"] = o.Spec.ClusterIP
	case *corev1.Pod:
		set["spec.hostNetwork"] = strconv.FormatBool(o.Spec.HostNetwork)
	}
	return set
}

// ServeHTTP answers requests of the Kubernetes API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		// Nobody reads the proxies' own events.
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, io.LimitReader(r.Body, 1<<20)) // as it was sent
		return
	case r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "this API is read only: change the files, or the lab by \"nfqproxy lab apply\"")
		return
	}
	q, ok, err := parse(r)
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	case !ok:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("this API has no %s", r.URL.Path))
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		s.watch(w, r, q)
	case q.name != "":
		s.get(w, q)
	default:
		s.list(w, q)
	}
}

// parse reads a path: GROUP/[namespaces/NAMESPACE/]RESOURCE[/NAME].
func parse(r *http.Request) (*request, bool, error) {
	query := r.URL.Query()
	q := new(request)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	n := 2
	if parts[0] == "apis" {
		n = 3
	}
	if len(parts) <= n {
		return nil, false, nil
	}
	q.group, parts = "/"+strings.Join(parts[:n], "/"), parts[n:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.resource.name = parts[0]
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if _, ok := kinds[q.resource]; !ok || len(parts) > 2 {
		return nil, false, nil
	}
	var err error
	if q.labels, err = labels.Parse(query.Get("labelSelector")); err == nil {
		q.fields, err = fields.ParseSelector(query.Get("fieldSelector"))
	}
	return q, true, err
}

func (s *Server) get(w http.ResponseWriter, q *request) {
	found, _ := s.selected(q)
	if len(found) == 0 {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", q.resource.name, q.name))
		return
	}
	writeJSON(w, http.StatusOK, found[0].text)
}

func (s *Server) list(w http.ResponseWriter, q *request) {
	found, version := s.selected(q)
	items := make([]json.RawMessage, len(found))
	for i, o := range found {
		items[i] = o.text
	}
	kind := kinds[q.resource]
	kind.Kind += "List"
	writeJSON(w, http.StatusOK, struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{kind, metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}, items})
}

// selected are the objects of a request, by name, and the version of the whole.
func (s *Server) selected(q *request) (found []*object, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[q.resource] {
		if q.wants(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b *object) int { return strings.Compare(a.key(), b.key()) })
	return found, s.version
}

// maxWatch is how long a watch may last that has no limit of its own.
const maxWatch = time.Hour

// watch sends the changes after a version, or all objects and then their changes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, q *request) {
	query := r.URL.Query()
	limit := maxWatch
	if n, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && n > 0 {
		limit = min(limit, time.Duration(n)*time.Second)
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	since, err := strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	send := func(what watch.EventType, object any) {
		// An error is that of the connection, whose end the context has, too.
		_ = out.Encode(struct {
			Type   watch.EventType `json:"type"`
			Object any             `json:"object"`
		}{what, object})
	}
	initial := query.Get("sendInitialEvents") == "true"
	if err != nil || since == 0 || initial {
		var found []*object
		found, since = s.selected(q)
		for _, o := range found {
			send(watch.Added, o.text)
		}
		if initial {
			send(watch.Bookmark, struct {
				metav1.TypeMeta `json:",inline"`
				Metadata        metav1.ObjectMeta `json:"metadata"`
			}{kinds[q.resource], metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(since, 10), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
		}
	}
	for {
		events, next, gone := s.after(since)
		if gone {
			send(watch.Error, status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
			return
		}
		for _, e := range events {
			since = e.version
			if e.resource != q.resource {
				continue
			}
			// Objects come and go by their labels, too.
			switch was, is := q.wants(e.before), q.wants(e.after) && e.what != watch.Deleted; {
			case was && is:
				send(watch.Modified, e.after.text)
			case is:
				send(watch.Added, e.after.text)
			case was:
				send(watch.Deleted, e.after.text)
			}
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-next:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// after are the events after a version, and a channel that is closed at the next ones. gone: earlier ones are forgotten.
func (s *Server) after(version uint64) (events []event, next <-chan struct{}, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.oldest {
		return nil, nil, true
	}
	i, _ := slices.BinarySearchFunc(s.events, version+1, func(e event, v uint64) int { return int(int64(e.version) - int64(v)) })
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return slices.Clone(s.events[i:]), s.changed, false
}

var statusType = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}

func status(code int32, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{TypeMeta: statusType, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, status(int32(code), reason, message))
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client is gone
}
