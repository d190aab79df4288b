package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// answer is the response body of /healthz and /livez (kube-proxy: ProxyHealth).
type answer struct {
	LastUpdated  time.Time                        `json:"lastUpdated"`
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyStatus `json:"status,omitempty"`
	// Fault is an addition of nfqproxy: what is wrong with the rules in the kernel.
	Fault string `json:"fault,omitempty"`
}

// familyStatus is that of one address family (kube-proxy: ProxierHealth).
type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler serves these paths, with status 200 or 503:
//
//   - /healthz: healthy, and the node is eligible. Load balancers probe it for Services with
//     externalTrafficPolicy Cluster.
//   - /livez: healthy. A node about to be deleted is no reason to restart the proxy.
//   - /readyz: a table is in force; before, the text is what the proxy waits for.
//
// The Host header is not checked: load balancers of clouds use various names. So a web page with a
// name that resolves to this node (DNS rebinding) can read the responses, as can every pod that
// reaches the node. They contain only the state of this proxy, times, and the name of its Node
// object while the proxy waits for it: no addresses, no services, no errors of the API server.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		a := p.answer(&s)
		a.NodeEligible = &s.eligible
		p.write(w, "/healthz", a, s.healthy && s.eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		p.write(w, "/livez", p.answer(&s), s.healthy)
	})
	mux.HandleFunc("/readyz", p.serveReadyz)
	return mux
}

func (p *Proxy) answer(s *state) *answer {
	a := &answer{LastUpdated: s.updated, CurrentTime: s.now, Healthy: s.healthy, Fault: s.fault}
	if !s.updated.IsZero() {
		a.Status = make(map[corev1.IPFamily]familyStatus, len(p.config.Families))
		for _, f := range p.config.Families {
			a.Status[f] = familyStatus{s.updated, s.healthy}
		}
	}
	return a
}

func (p *Proxy) write(w http.ResponseWriter, path string, a *answer, ok bool) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		// kube-proxy once reported its last sync, which came round even without a change:
		// clients may treat an old time as a failure.
		a.LastUpdated = a.CurrentTime
	}
	if p.config.Answered != nil {
		p.config.Answered(path, code)
	}
	writeJSON(w, code, a, "")
}

func (p *Proxy) serveReadyz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if s := p.state(); s.updated.IsZero() {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "waiting for %s\n", s.waiting)
		return
	}
	fmt.Fprintln(w, "ok")
}

// writeJSON writes a response with kube-proxy's headers.
func writeJSON(w http.ResponseWriter, code int, body any, indent string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	var b []byte
	if indent == "" {
		b, _ = json.Marshal(body) // of plain structs: it cannot fail
	} else {
		b, _ = json.MarshalIndent(body, "", indent)
	}
	w.WriteHeader(code)
	_, _ = w.Write(b) // the client may be gone
}
