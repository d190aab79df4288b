// Package health serves the health checks of a service proxy as kube-proxy does: /healthz and
// /livez of the proxy itself, and the health check node ports of Services with
// externalTrafficPolicy Local, by which load balancers find the nodes that have
// endpoints. /readyz is an addition.
package health

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// defaultTimeout is kube-proxy's with its default sync period.
const defaultTimeout = time.Minute

// toBeDeletedTaint is what the cluster autoscaler taints a node with before it deletes it.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// ProxyConfig is the configuration of a Proxy. The zero value is valid.
type ProxyConfig struct {
	// Timeout is how long a change may wait to come into force before the proxy is
	// unhealthy; 0: a minute, kube-proxy's with its default sync period. kube-proxy takes twice its sync period.
	Timeout time.Duration
	// Families are the address families in responses. One table holds all of them, so their
	// status is the same.
	Families []corev1.IPFamily
	// Answered is called for each response of /healthz and /livez; it may be nil. It may be
	// called by several goroutines at once.
	Answered func(path string, code int)
	// Fault describes what is wrong with the rules in the kernel, or is empty: with a fault
	// the proxy is unhealthy. nil: there never is one. It may be called by several
	// goroutines at once.
	Fault func() string
}

// Proxy is the health of the proxy: whether each change came into force in time. It is
// safe for concurrent use.
type Proxy struct {
	config ProxyConfig

	mu       sync.Mutex
	queued   time.Time // when the oldest change came that no sync has taken yet; zero: none
	syncing  bool      // between Taken and Updated
	taken    time.Time // when the oldest change came that a sync has taken; zero: none
	updated  time.Time // when a table last came into force; zero: none did
	eligible bool      // for traffic from load balancers
	waiting  string    // what the first table waits for
}

// NewProxy returns a Proxy that is healthy, not ready, and whose node is eligible.
func NewProxy(config ProxyConfig) *Proxy {
	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}
	return &Proxy{config: config, eligible: true, waiting: "the first service table"}
}

// Queued reports a change that is not in force yet.
func (p *Proxy) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued.IsZero() {
		p.queued = time.Now()
	}
}

// Taken reports that a sync begins, with all changes queued so far. Those that arrive
// while it runs wait for the next one. A sync that fails does not call Updated; the next
// one calls Taken again.
func (p *Proxy) Taken() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken.IsZero() {
		p.taken = p.queued
	}
	p.queued, p.syncing = time.Time{}, true
}

// Updated reports that the changes are in force: those before Taken or, without Taken,
// all.
func (p *Proxy) Updated() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.syncing {
		p.queued = time.Time{}
	}
	p.taken, p.syncing, p.updated = time.Time{}, false, time.Now()
}

// WaitingFor sets what the first table waits for, as a text that follows "waiting for".
func (p *Proxy) WaitingFor(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = what
}

// SetNode sets the proxy's Node object; nil: it does not exist. Until the first
// call the node counts as eligible, for there may be no Node objects at all.
func (p *Proxy) SetNode(node *corev1.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eligible = eligible(node)
}

// eligible reports whether load balancers should send new flows to the node. They should
// not if it is about to go away.
func eligible(node *corev1.Node) bool {
	if node == nil || !node.DeletionTimestamp.IsZero() {
		return false
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint })
}

// Healthy reports whether no change has waited for too long and the kernel's rules are without
// fault. While the first table is not in force, the proxy is starting, which is healthy.
func (p *Proxy) Healthy() bool { return p.state().healthy }

// Pending returns what the first table waits for, as a text that follows "waiting for" (empty: the
// table is in force), and whether a change has waited for too long.
func (p *Proxy) Pending() (waiting string, late bool) {
	s := p.state()
	if s.updated.IsZero() {
		return s.waiting, false
	}
	return "", s.late
}

// state is what the answers are made of.
type state struct {
	now, updated      time.Time
	healthy, eligible bool
	late              bool   // a change has waited for too long
	waiting           string // valid iff updated is zero
	fault             string // of the kernel's rules; empty: none
}

func (p *Proxy) state() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := state{now: time.Now(), updated: p.updated, eligible: p.eligible, waiting: p.waiting}
	late := func(since time.Time) bool { return !since.IsZero() && s.now.Sub(since) >= p.config.Timeout }
	s.late = !p.updated.IsZero() && (late(p.queued) || late(p.taken))
	if p.config.Fault != nil {
		s.fault = p.config.Fault()
	}
	s.healthy = !s.late && s.fault == ""
	return s
}
