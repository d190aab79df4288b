package servicetable

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// AnnotationDecide is the annotation of a Service for where its flows are decided: "queue", by the
// daemon; "kernel", by the kernel's copy of the service table; "queue/N", one flow in N by the daemon.
const AnnotationDecide = "nfqproxy.io/decide"

// parseDecide reads the annotation's value.
func parseDecide(value string) (oneIn uint32, err error) {
	switch value {
	case "queue", "queue/1":
		return 0, nil
	case "kernel":
		return decision.NotQueued, nil
	}
	if text, ok := strings.CutPrefix(value, "queue/"); ok {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil && n > 1 && n <= decision.MaxQueueOneIn {
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf(`annotation %s %q: want "queue", "kernel" or "queue/N", with N from 1 to %d`, AnnotationDecide, value, decision.MaxQueueOneIn)
}

// queueOneIn returns [decision.ServicePort.QueueOneIn] of a Service's ports.
func queueOneIn(svc *corev1.Service, at location) uint32 {
	if value, ok := svc.Annotations[AnnotationDecide]; ok {
		if n, err := parseDecide(value); err == nil {
			return n
		}
	}
	if at.kernelDecides {
		return decision.NotQueued
	}
	return 0
}

// decideWarnings are about the annotation.
func decideWarnings(svc *corev1.Service) []string {
	value, ok := svc.Annotations[AnnotationDecide]
	if !ok {
		return nil
	}
	n, err := parseDecide(value)
	name := decision.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
	switch {
	case err != nil:
		return []string{fmt.Sprintf("service %s: %v; ignored", name, err)}
	case n > 0 && n != decision.NotQueued && affinitySeconds(svc) > 0:
		return []string{fmt.Sprintf("service %s: annotation %s %q is ignored, because the daemon and the kernel would bind clients to different endpoints (session affinity)", name, AnnotationDecide, value)}
	}
	return nil
}
