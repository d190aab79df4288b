package apiserver

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// testEvents has an operator's mistakes told of by events.
func testEvents(t *testing.T, n *siteNode) {
	shared := []string{"203.0.113.9"}
	n.expose(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "first"}, Spec: corev1.ServiceSpec{ExternalIPs: shared}})
	n.expose(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: corev1.ServiceSpec{ExternalIPs: shared}})
	local := n.expose(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
	}})
	port := local.Spec.HealthCheckNodePort
	taken, err := n.ns.Listen(t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	flags := append(e2etest.MachineUnchanged(t), "--kubeconfig", n.kubeconfig("nfqproxy"), "--hostname-override", n.name)
	d := e2etest.StartNfqproxy(n, n.ns, flags...)
	n.awaitEvent("Node", n.name, "Starting", corev1.EventTypeNormal, "serves")
	// Of equals the older one keeps the address.
	n.awaitEvent("Service", "second", "ServiceUnusable", corev1.EventTypeWarning, "203.0.113.9")
	n.awaitEvent("Service", "local", "FailedToStartServiceHealthcheck", corev1.EventTypeWarning, fmt.Sprintf("node %s cannot serve health check node port", n.name))
	if e := findEvent(t, n.Client(), "Service", "first", "ServiceUnusable"); e != nil {
		t.Errorf("of the first service: %s", e.Note)
	}

	_ = taken.Close()
	n.await("the health check", func() bool {
		status, _ := n.get(fmt.Sprintf("198.51.100.%s:%d", hostPart(n), port), "/")
		return status == http.StatusOK
	})
	d.Stop(syscall.SIGTERM)
	if strings.Contains(d.Log(), "the API server refuses") {
		t.Error("something was refused")
	}

	// Nobody's rights: what is missing is said to whoever looks at the cluster, too.
	cmd := e2etest.DaemonCommand(flags...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	code, _, stderr := e2etest.RunCommand(t, n.ns, cmd)
	if code != 2 || !strings.HasPrefix(stderr, "nfqproxyd: capability CAP_NET_ADMIN is missing") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, message %q", code, stderr)
	}
	n.awaitEvent("Node", n.name, "KernelFeatureMissing", corev1.EventTypeWarning, "CAP_NET_ADMIN")
}

// hostPart is the last number of the node's address.
func hostPart(n *siteNode) string {
	bytes := n.server.Addr().As4()
	return fmt.Sprint(4*bytes[2] + 2)
}

func (n *siteNode) awaitEvent(kind, name, reason, eventType, note string) {
	n.Helper()
	var event *eventsv1.Event
	n.await("event "+reason+" of "+kind+" "+name, func() bool {
		event = findEvent(n.T, n.Client(), kind, name, reason)
		return event != nil
	})
	if event.Type != eventType || !strings.Contains(event.Note, note) || event.ReportingController != "nfqproxy" {
		n.Errorf("event %s: %+v", reason, event)
	}
}

func findEvent(t *testing.T, client kubernetes.Interface, kind, name, reason string) *eventsv1.Event {
	t.Helper()
	list, err := client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason {
			return e
		}
	}
	return nil
}
