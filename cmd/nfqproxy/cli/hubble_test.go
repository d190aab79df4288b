package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/history"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// hubbleServer serves flows of node-a with Hubble's API: to a Service, and to a pod, with no translation.
func hubbleServer(t *testing.T) (server string) {
	t.Helper()
	fake := observetest.New("node-a")
	started := time.Now().Add(-time.Hour)
	fake.StatsAnswer = observe.Stats{Node: "node-a", Version: "v1.2.3", Started: started}
	for i, r := range []*flow.Record{
		{Verdict: "dnat", Reason: "balanced", Destination: "10.96.0.20:80", Service: "default/web:http", Endpoint: "10.244.2.2:8080", Pod: "default/web-2", Life: &flow.Life{State: flow.Answered, Answered: true}},
		{Verdict: "accept", Reason: "not-a-service", Destination: "10.244.2.3:8080", Life: &flow.Life{State: flow.Established, Answered: true}},
	} {
		at := time.Now().Add(time.Duration(i-60) * time.Second)
		r.Version, r.ID, r.Time, r.Node, r.Protocol, r.Source, r.SourcePod = 1, fmt.Sprint("f", i), &at, "node-a", "TCP", fmt.Sprint("10.244.1.9:", 41000+i), "default/shell"
		r.Life.Since = at.Add(time.Millisecond)
		fake.List = append(fake.List, observe.Item{Record: r})
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "hubble.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- hubbleapi.Serve(ctx, l, hubbleapi.Config{Observer: fake, Limits: new(limit.Set), Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "hubble+unix:" + l.Addr().String()
}

// runWith runs a command with the connector of the program.
func runWith(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, complaints bytes.Buffer
	code = execute(ctx, newRootCommand(connect), args, strings.NewReader(""), &out, &complaints)
	return code, out.String(), complaints.String()
}

// TestHubbleServer: what commands show of Hubble's flows, and that others say what Hubble does not have.
func TestHubbleServer(t *testing.T) {
	server := hubbleServer(t)
	code, out, complaints := runWith(t.Context(), "flows", "--server", server, "-o", "custom-columns=FROM:.sourcePod,SERVICE:.service,VERDICT:.verdict,REASON:.reason,TO:.pod,PROXY:.proxy,STATE:.life.state")
	want := [][]string{
		{"FROM", "SERVICE", "VERDICT", "REASON", "TO", "PROXY", "STATE"},
		{"default/shell", "default/web", "dnat", "service-proxy", "default/web-2", "Cilium", "answered"},
		{"default/shell", "-", "accept", "translation-unknown", "<none>", "Cilium", "established"},
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || complaints != "" || len(lines) != len(want) {
		t.Fatalf("flows: %d, %s%s", code, out, complaints)
	}
	for i, line := range lines {
		if got := strings.Fields(line); strings.Join(got, "|") != strings.Join(want[i], "|") {
			t.Errorf("flows: %q, want %q", got, want[i])
		}
	}
	if code, out, complaints = runWith(t.Context(), "flows", "--server", server, "--service", "web"); code != 0 || !strings.Contains(out, "default/web-2:8080") || strings.Contains(out, "not known") {
		t.Errorf("flows --service web: %d, %s%s", code, out, complaints)
	}
	if code, out, complaints = runWith(t.Context(), "flows", "--server", server, "--reason", "translation-unknown"); code != 0 || !strings.Contains(out, "10.244.2.3:8080") || !strings.Contains(out, "not known") {
		t.Errorf("flows --reason: %d, %s%s", code, out, complaints)
	}
	if code, out, complaints = runWith(t.Context(), "status", "--server", server); code != 0 || !strings.Contains(out, "node-a") || !strings.Contains(out, "Cilium, observed by Hubble") {
		t.Errorf("status: %d, %s%s", code, out, complaints)
	}
	for _, command := range []string{"objects", "timeline web"} {
		code, out, complaints := runWith(t.Context(), append(strings.Fields(command), "--server", server)...)
		if code == 0 || !strings.Contains(complaints, "Hubble has no ") || !strings.Contains(complaints, "use nfqproxy flows or record") {
			t.Errorf("%s: %d, %s%s", command, code, out, complaints)
		}
	}
	for command, shows := range map[string]string{"web --no-open": "nfqproxy web shows nodes and Services", "top": "nfqproxy top shows counts of Services"} {
		code, out, complaints := runWith(t.Context(), append(strings.Fields(command), "--server", server)...)
		if want := shows + ", and Hubble only reports flows: use nfqproxy flows or nfqproxy record with --server " + server; code == 0 || !strings.Contains(complaints, want) {
			t.Errorf("%s: %d, %s%s", command, code, out, complaints)
		}
	}
	if code, _, complaints := runWith(t.Context(), "flows", "--server", "hubble:127.0.0.1:4245"); code == 0 || !strings.Contains(complaints, "want hubble://HOST:PORT") {
		t.Errorf("wrong scheme: %d, %s", code, complaints)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-another-api"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, complaints := runWith(t.Context(), "flows", "--server", server, "--token-file", token); code == 0 || !strings.Contains(complaints, "omit --token-file") {
		t.Errorf("token: %d, %s", code, complaints)
	}
	if code, _, complaints := runWith(t.Context(), "flows", "--server", "hubble://relay"); code == 0 || !strings.Contains(complaints, "want hubble://HOST:PORT") {
		t.Errorf("wrong server: %d, %s", code, complaints)
	}
	if code, _, complaints := runWith(t.Context(), "flows", "--server", "hubble+unix:"+token); code == 0 || !strings.Contains(complaints, "Hubble does not answer") {
		t.Errorf("no server: %d, %s", code, complaints)
	}
}

// TestHubbleRecord: a history of Hubble's flows has them as they are shown.
func TestHubbleRecord(t *testing.T) {
	server, dir := hubbleServer(t), t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan string, 1)
	go func() {
		_, _, complaints := runWith(ctx, "record", "--server", server, "--dir", dir, "--write-every", "1s")
		done <- complaints
	}()
	h := &history.History{Dir: dir}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var got []*flow.Record
		if h.Check() == nil {
			_ = h.Flows(t.Context(), observe.FlowQuery{}, func(i observe.Item) error {
				if i.Record != nil {
					got = append(got, i.Record)
				}
				return nil
			})
		}
		if len(got) == 2 {
			r := got[0]
			if r.Proxy != "Cilium" || r.Reason != "service-proxy" || r.Service != "default/web" || r.Endpoint != "10.244.2.2:8080" || r.Node != "node-a" || r.Candidates == nil || len(r.Candidates) > 0 || got[1].Reason != "translation-unknown" {
				t.Errorf("%+v", r)
			}
			break
		}
		if time.Now().After(end) {
			stop()
			t.Fatalf("%d records; record says: %s", len(got), <-done)
		}
	}
	stop()
	if complaints := <-done; strings.Contains(complaints, "WARN") {
		t.Error(complaints)
	}
}
