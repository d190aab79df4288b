package flows

import (
	"errors"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestRequest: requests of a lab's hosts are answered, refused or invalid; each is a flow.
func TestRequest(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for _, tt := range []struct {
		name    string
		request labapi.Request
		by, err string // the beginning of who answers, and the error
	}{
		{"TCP", labapi.Request{From: "shell", To: "10.96.0.20:80"}, "default/web-", ""},
		{"IPv6", labapi.Request{From: "default/shell", To: "[fd00:10:96::20]:80", Protocol: "tcp"}, "default/web-", ""},
		{"node port", labapi.Request{From: "outside", To: "172.21.0.3:30080"}, "default/web-", ""},
		{"from a node", labapi.Request{From: "node-a", To: "10.96.0.20:80"}, "default/web-", ""},
		{"URL", labapi.Request{From: "shell", To: "http://10.96.0.20/"}, "default/web-", ""},
		{"URL, IPv6", labapi.Request{From: "shell", To: "http://[fd00:10:96::20]/"}, "default/web-", ""},
		{"datagram", labapi.Request{From: "shell", To: "udp://10.96.0.20:53"}, "default/web-", ""},
		{"refused", labapi.Request{From: "shell", To: "10.244.0.2:81"}, "", "connection refused"},
		{"name of a machine", labapi.Request{From: "outside", To: "node-a:30080"}, "default/web-", ""},
		{"this lab has no DNS", labapi.Request{From: "shell", To: "web:80"}, "", "web: this host does not use the DNS of the cluster: only pods of a lab with Service kube-system/kube-dns do; use an address"},
	} {
		r, err := c.Request(t.Context(), tt.request)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if tt.err != r.Error || !strings.HasPrefix(r.By, tt.by) || (r.By == "") != (tt.by == "") || r.Seconds <= 0 || (tt.err == "") != (r.Client != "") {
			t.Errorf("%s: %+v, want an answer of %q, or %q", tt.name, r, tt.by, tt.err)
		}
	}
	for _, tt := range []struct {
		request labapi.Request
		field   string
	}{
		{labapi.Request{From: "nobody", To: "10.96.0.20:80"}, "from"}, {labapi.Request{From: "shell", To: "https://web"}, "to"},
		{labapi.Request{From: "shell", To: "10.96.0.20:0"}, "to"}, {labapi.Request{From: "shell", To: "10.96.0.20:80", Protocol: "sctp"}, "protocol"},
	} {
		_, err := c.Request(t.Context(), tt.request)
		if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != 400 || e.Field != tt.field {
			t.Errorf("%+v: %v, want an error of %s", tt.request, err, tt.field)
		}
	}
}
