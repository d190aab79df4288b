package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// get requests a path of the proxy.
func get(p *Proxy, path string) *http.Response {
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Result()
}

// codes gives the status codes of /healthz, /livez and /readyz.
func codes(p *Proxy) string {
	return fmt.Sprint(get(p, "/healthz").StatusCode, get(p, "/livez").StatusCode, get(p, "/readyz").StatusCode)
}

func expect(t *testing.T, p *Proxy, when, want string) {
	t.Helper()
	if got := codes(p); got != want {
		t.Errorf("%s: healthz, livez, readyz are %s, want %s", when, got, want)
	}
}

func TestLateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProxy(ProxyConfig{Timeout: time.Minute})
		expect(t, p, "at first", "200 200 503")
		p.Queued()
		time.Sleep(time.Hour)
		expect(t, p, "still starting", "200 200 503")
		p.Updated()
		expect(t, p, "first table", "200 200 200")
		time.Sleep(time.Hour)
		expect(t, p, "nothing to do", "200 200 200")

		p.Queued()
		time.Sleep(59 * time.Second)
		p.Queued() // the older one counts
		expect(t, p, "not late yet", "200 200 200")
		time.Sleep(time.Second)
		expect(t, p, "late", "503 503 200")
		p.Updated()
		expect(t, p, "caught up", "200 200 200")
	})
}

func TestChangeDuringSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProxy(ProxyConfig{})
		p.Updated()
		p.Queued()
		p.Taken()
		time.Sleep(30 * time.Second)
		p.Queued()
		p.Updated() // of what was taken
		time.Sleep(59 * time.Second)
		expect(t, p, "the later one is not late yet", "200 200 200")
		time.Sleep(time.Second)
		expect(t, p, "the later one is late", "503 503 200")
		p.Taken()
		expect(t, p, "taken, not in force", "503 503 200")
		p.Taken() // the sync failed; this is the next one
		expect(t, p, "tried again", "503 503 200")
		p.Updated()
		expect(t, p, "in force", "200 200 200")
	})
}

// TestPending: what the first table waits for, and then whether a change is late.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProxy(ProxyConfig{Fault: func() string { return "rules are missing" }})
		check := func(when, waiting string, late bool) {
			t.Helper()
			if w, l := p.Pending(); w != waiting || l != late {
				t.Errorf("%s: waiting for %q, late %v; want %q, %v", when, w, l, waiting, late)
			}
		}
		check("at first", "the first service table", false)
		p.WaitingFor("the API server")
		p.Queued()
		time.Sleep(defaultTimeout)
		check("later", "the API server", false)
		p.Updated()
		check("in force", "", false)
		p.Queued()
		time.Sleep(defaultTimeout - 1)
		check("a change", "", false)
		time.Sleep(time.Nanosecond)
		check("a change that is late", "", true)
	})
}

func TestNode(t *testing.T) {
	deleted := metav1.Now()
	for name, c := range map[string]struct {
		node     *corev1.Node
		eligible bool
	}{
		"plain":         {&corev1.Node{}, true},
		"other taint":   {&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "node.kubernetes.io/unreachable"}}}}, true},
		"autoscaler":    {&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}, {Key: "ToBeDeletedByClusterAutoscaler", Value: "1"}}}}, false},
		"being deleted": {&corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}}, false},
		"gone":          {nil, false},
	} {
		p := NewProxy(ProxyConfig{})
		p.Updated()
		p.SetNode(c.node)
		want := "200 200 200"
		if !c.eligible {
			want = "503 200 200"
		}
		expect(t, p, name, want)
		if !p.Healthy() {
			t.Errorf("%s: the proxy is unhealthy for its node's sake", name)
		}
		p.SetNode(&corev1.Node{})
		expect(t, p, name+", then plain again", "200 200 200")
	}
}

// TestBody holds the JSON against kube-proxy 1.36's field names and meanings.
func TestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProxy(ProxyConfig{Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}})
		stamp := func() string { b, _ := json.Marshal(time.Now()); return string(b) }
		body := func(path string) string {
			r := get(p, path)
			if c, n := r.Header.Get("Content-Type"), r.Header.Get("X-Content-Type-Options"); c != "application/json" || n != "nosniff" {
				t.Errorf("%s: Content-Type %q, X-Content-Type-Options %q", path, c, n)
			}
			return readAll(t, r)
		}
		check := func(path, want string) {
			t.Helper()
			if got := body(path); got != want {
				t.Errorf("%s\n got %s\nwant %s", path, got, want)
			}
		}
		check("/livez", fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%[1]s,"healthy":true}`, stamp()))
		p.Updated()
		updated := stamp()
		time.Sleep(time.Second)
		check("/livez", fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%[1]s,"healthy":true,"status":{"IPv4":{"lastUpdated":%s,"healthy":true},"IPv6":{"lastUpdated":%[2]s,"healthy":true}}}`, stamp(), updated))
		p.SetNode(nil)
		check("/healthz", fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":%[1]s,"healthy":true},"IPv6":{"lastUpdated":%[1]s,"healthy":true}}}`, updated, stamp()))
		p.SetNode(&corev1.Node{})
		p.Queued()
		time.Sleep(defaultTimeout)
		check("/healthz", fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":%[1]s,"healthy":false},"IPv6":{"lastUpdated":%[1]s,"healthy":false}}}`, updated, stamp()))
	})
}

func TestReadyzNamesWhatItWaitsFor(t *testing.T) {
	p := NewProxy(ProxyConfig{})
	if got := readAll(t, get(p, "/readyz")); got != "waiting for the first service table\n" {
		t.Errorf("at first: %q", got)
	}
	p.WaitingFor("the Node object worker1")
	if got := readAll(t, get(p, "/readyz")); got != "waiting for the Node object worker1\n" {
		t.Errorf("then: %q", got)
	}
	p.Updated()
	if got := readAll(t, get(p, "/readyz")); got != "ok\n" {
		t.Errorf("at last: %q", got)
	}
}

func TestAnswersAreCounted(t *testing.T) {
	var got []string
	p := NewProxy(ProxyConfig{Answered: func(path string, code int) { got = append(got, fmt.Sprint(path, " ", code)) }})
	p.Updated()
	p.SetNode(nil)
	codes(p)
	if s := strings.Join(got, ", "); s != "/healthz 503, /livez 200" {
		t.Errorf("counted %s", s)
	}
}

func TestProxyConcurrently(t *testing.T) {
	p := NewProxy(ProxyConfig{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 100 {
				p.Queued()
				p.Taken()
				p.SetNode(&corev1.Node{})
				p.WaitingFor("x")
				codes(p)
				p.Updated()
			}
		})
	}
	group.Wait()
	expect(t, p, "in the end", "200 200 200")
}

// TestFault: while the kernel's rules are at fault, the proxy is unhealthy and reports why.
func TestFault(t *testing.T) {
	fault := ""
	p := NewProxy(ProxyConfig{Fault: func() string { return fault }})
	p.Updated()
	expect(t, p, "no fault", "200 200 200")
	fault = "chain new_flows has other rules"
	expect(t, p, "a fault", "503 503 200")
	if p.Healthy() {
		t.Error("the proxy is healthy for health check node ports")
	}
	for path, want := range map[string]string{"/healthz": fault, "/livez": fault} {
		var body struct {
			Healthy bool
			Fault   string
		}
		if err := json.NewDecoder(get(p, path).Body).Decode(&body); err != nil || body.Healthy || body.Fault != want {
			t.Errorf("%s: %+v, %v", path, body, err)
		}
	}
	fault = ""
	expect(t, p, "repaired", "200 200 200")
}
