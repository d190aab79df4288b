package lab

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestProbes: readiness follows what the nodes' probes find on the network.
func TestProbes(t *testing.T) {
	t.Parallel()
	probe := func(path string) string {
		return strings.Replace(living, "ports: [{name: http, port: 8080}]", "ports: [{name: http, port: 8080}], readinessProbe: {httpGet: {path: "+path+", port: http}, periodSeconds: 1, failureThreshold: 1}", 1)
	}
	l := newLivingLabOf(t, probe("/healthz"))
	l.awaitReady("10.244.0.2, 10.244.0.3, 10.244.1.2")

	// The server of a pod stops, and starts again.
	l.do(Change{Server: &Serving{Pod: "web-1"}})
	l.await("pod shop/web-1 is not ready: its probe fails: GET http://10.244.0.2:8080/healthz: connection re") // refused, or reset
	l.expect("10.244.0.2 not ready, 10.244.0.3, 10.244.1.2")
	if _, err := l.Change(t.Context(), Change{Server: &Serving{Pod: "shell"}}); err == nil || err.Error() != "pod default/shell has no server: it has no ports" {
		t.Error(err)
	}
	l.do(Change{Server: &Serving{Pod: "web-1", Running: true}})
	l.await("pod shop/web-1 is ready: its probe succeeds: GET http://10.244.0.2:8080/healthz")
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2")

	// The packets of the probe are lost.
	f := l.fault(Fault{Kind: "loss", Host: "shop/web-3", Percent: 100})
	l.await("pod shop/web-3 is not ready: its probe fails: GET http://10.244.0.3:8080/healthz: no answer")
	if _, err := l.RemoveFault(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	l.await("pod shop/web-3 is ready")

	// A command goes before the probe, and ends no failure of it.
	l.do(Change{Ready: &Readiness{Pod: "web-2"}})
	l.expect("10.244.0.2, 10.244.0.3, 10.244.1.2 not ready")
	l.do(Change{Server: &Serving{Pod: "web-2"}})
	l.await("pod shop/web-2 is not ready: its probe fails")
	// A connection is refused, or reset or closed if the server had accepted it when it stopped.
	notYet := "pod shop/web-2 is not ready yet: readiness probe: GET http://10.244.1.2:8080/healthz: connection "
	if got := l.do(Change{Ready: &Readiness{Pod: "web-2", Ready: true}})[0]; !strings.HasPrefix(got, notYet) {
		t.Error(got)
	}
	l.do(Change{Server: &Serving{Pod: "web-2", Running: true}})
	l.await("pod shop/web-2 is ready")

	// New pods with a path that the server does not have are never ready, with the reason in their condition.
	l.save(probe("/wrong"))
	l.await("pod shop/web-4 is not ready: its probe fails: GET http://10.244.0.4:8080/wrong: 404 Not Found")
	if got := l.get("yaml", "po", "web-4"); !strings.Contains(got, "message: 'readiness probe: GET http://10.244.0.4:8080/wrong: 404 Not Found'") {
		t.Errorf("the pod is\n%s", got)
	}
	l.save(strings.Replace(probe("/wrong"), "httpGet: {path: /wrong, port: http}", "tcpSocket: {port: 8080}", 1))
	l.await("pod shop/web-7 is ready: its probe succeeds: connect to 10.244.0.6:8080")

	// Without a probe, a pod is ready at once.
	l.save(living)
	l.await("pod shop/web-10 is added")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// awaitReady waits until the endpoints are those.
func (l *livingLab) awaitReady(want string) {
	l.Helper()
	for l.endpoints() != want {
		l.await("is ready")
	}
}

// TestShortErrors: the reason of a probe's failure does not repeat the request.
func TestShortErrors(t *testing.T) {
	p := &prober{pod: Pod{Ports: []Port{{Port: 80}}, ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: new(corev1.TCPSocketAction)}}}}
	if _, err := p.try(t.Context()); err == nil || err.Error() != "0 is not a port number (1 to 65535)" {
		t.Error(err)
	}
	if err := withoutAddresses(errors.New("malformed HTTP")); err.Error() != "malformed HTTP" {
		t.Error(err)
	}
}
