package servicetable

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// AnnotationBalance is the annotation of a Service for the algorithm that selects its endpoints, as
// [balance.Registry.Parse] reads it.
const AnnotationBalance = "nfqproxy.io/balance"

// AnnotationWeight is the annotation of an EndpointSlice, for all its endpoints, or of a Pod, which has
// precedence, for the weight of endpoints: a number from 0 to 65535; 1 without it.
const AnnotationWeight = "nfqproxy.io/weight"

// defaultWeight is the weight of endpoints without an annotation.
const defaultWeight = 1

// builtIn are the algorithms of a NodeConfig that names none.
var builtIn = balance.NewRegistry()

func (c *NodeConfig) algorithms() *balance.Registry { return cmp.Or(c.Algorithms, builtIn) }

// weightOf reads the annotation of an object. Without a valid one the weight is the default, and ok is false. A wrong one
// causes the warning.
func weightOf(object string, annotations map[string]string) (weight uint16, ok bool, warning string) {
	value, ok := annotations[AnnotationWeight]
	if !ok {
		return defaultWeight, false, ""
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return defaultWeight, false, fmt.Sprintf("%s: annotation %s %q: want a number from 0 to 65535; the weight is %d", object, AnnotationWeight, value, defaultWeight)
	}
	return uint16(n), true, ""
}

// balanceOf returns [decision.ServicePort.Balance] of a Service's ports.
func balanceOf(svc *corev1.Service, at location) string {
	if at.balanceFixed {
		return at.balance
	}
	if value, ok := svc.Annotations[AnnotationBalance]; ok {
		if canonical, err := at.algorithms.Canonical(value); err == nil {
			return canonical
		}
	}
	return at.balance
}

// balanceWarnings are about the annotation.
func balanceWarnings(svc *corev1.Service, at location) []string {
	name := decision.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
	if value, ok := svc.Annotations[AnnotationBalance]; ok {
		if _, err := at.algorithms.Canonical(value); err != nil {
			return []string{fmt.Sprintf("service %s: annotation %s: %v; it is balanced by %s", name, AnnotationBalance, err, balance.Name(at.balance))}
		}
	}
	if b := balanceOf(svc, at); b != "" && queueOneIn(svc, at) != 0 {
		return []string{fmt.Sprintf("service %s: %s balances only the flows that the daemon decides; the kernel draws the endpoints of the others (%s, --decide)", name, b, AnnotationDecide)}
	}
	return nil
}

// Balance sets the algorithm of a Service until the Controller ends, whatever its annotation says;
// nil: the annotation counts again. It returns an error if there is no such Service or algorithm, and
// otherwise when the table with it is in force. It may be called by any goroutine while Run runs.
func (c *Controller) Balance(ctx context.Context, name decision.ServiceName, algorithm *string) error {
	r := request{func() error { return c.builder.setBalance(name, algorithm) }, make(chan error, 1)}
	select {
	case c.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request is a change by hand.
type request struct {
	change func() error
	done   chan error // has room for the result
}

// setBalance is Balance for the builder.
func (b *builder) setBalance(name decision.ServiceName, algorithm *string) error {
	if s := b.services[name]; s == nil || s.object == nil {
		return fmt.Errorf("there is no service %s", name)
	}
	if algorithm == nil {
		delete(b.balance, name)
	} else {
		canonical, err := b.config.algorithms().Canonical(*algorithm)
		if err != nil {
			return err
		}
		set(&b.balance, name, canonical)
	}
	b.stale[name] = true
	return nil
}

// locationOf is the location for a Service.
func (b *builder) locationOf(name decision.ServiceName) location {
	at := b.at
	if algorithm, ok := b.balance[name]; ok {
		at.balance, at.balanceFixed = algorithm, true
	}
	return at
}

// weigh takes the weights of pods over.
func (b *builder) weigh(u *Update) {
	before := b.weights
	if u.All {
		b.weights = make(weights)
	}
	changed := make(map[string]bool)
	for name, pod := range u.Pods {
		key := name.String()
		weight, ok := uint16(0), false
		if pod != nil {
			weight, ok, _ = weightOf("", pod.Annotations)
		}
		if was, had := before[key]; had != ok || ok && was != weight {
			changed[key] = true
		}
		if ok {
			b.weights[key] = weight
		} else {
			delete(b.weights, key)
		}
	}
	for key := range before {
		if _, ok := b.weights[key]; !ok {
			changed[key] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	for name, s := range b.services {
		for _, slice := range s.slices {
			for i := range slice.endpoints {
				if changed[slice.endpoints[i].pod] {
					b.stale[name] = true
				}
			}
		}
	}
}

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
