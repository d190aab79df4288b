package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
)

// TestWeb: the page of a server is served here until the end of the context, and its data with the token only.
func TestWeb(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		root := newRootCommand(connectMadeUp)
		ended <- execute(ctx, root, []string{"web", "--server", "made-up", "--no-open", "--page", "127.0.0.1:0"}, nil, w, os.Stderr)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	m := regexp.MustCompile(`^the page, until Ctrl-C: (http://127\.0\.0\.1:\d+)/#token=(\S{16,})\n$`).FindStringSubmatch(line)
	if err != nil || m == nil {
		t.Fatalf("%q, %v", line, err)
	}
	get := func(path, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m[1]+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if code, body := get("/", ""); code != http.StatusOK || !strings.Contains(body, "<html") {
		t.Errorf("the page: %d %s", code, body)
	}
	if code, body := get("/v1/stats", "wrong"); code != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d %s", code, body)
	}
	if code, body := get("/v1/stats", m[2]); code != http.StatusOK || !strings.Contains(body, "node-a") {
		t.Errorf("with the token: %d %s", code, body)
	}
	if code, body := get("/v1/findings", m[2]); code != http.StatusOK {
		t.Errorf("findings: %d %s", code, body)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestWebOfALab: the page of a lab's server changes that lab, with its own token.
func TestWebOfALab(t *testing.T) {
	lab := &observetest.Lab{Changes: []string{"pod default/web-1 is not ready"}}
	server := httptest.NewServer(flowapi.New(flowapi.Config{Observer: observetest.New("node-a"), Token: "the-token-of-the-lab", Routes: viewapi.Routes(viewapi.Config{Lab: lab})}))
	defer server.Close()
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("the-token-of-the-lab"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, newRootCommand(connect), []string{"web", "--server", server.URL, "--token-file", tokenFile, "--no-open", "--page", "127.0.0.1:0"}, nil, w, os.Stderr)
		_ = w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	m := regexp.MustCompile(`: (http://127\.0\.0\.1:\d+)/#token=(\S{16,})\n$`).FindStringSubmatch(line)
	if err != nil || m == nil {
		t.Fatalf("%q, %v", line, err)
	}
	for token, want := range map[string]bool{m[2]: true, "the-token-of-the-lab": false} {
		page, err := remote.NewClient(m[1], remote.ClientOptions{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		if changes, err := page.Change(t.Context(), labapi.Change{Ready: &labapi.Readiness{Pod: "web-1"}}); (err == nil && slices.Equal(changes, lab.Changes)) != want {
			t.Errorf("token %s: %q, %v", token, changes, err)
		}
	}
	if n := len(lab.Requests()); n != 1 {
		t.Errorf("the lab got %d changes, want 1", n)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestRecentObjects: objects are listed once for many requests, and errors are not kept.
func TestRecentObjects(t *testing.T) {
	lists, away := 0, true
	r := &recentObjects{list: func(context.Context) (*kube.Objects, error) {
		lists++
		if away {
			return nil, errors.New("away")
		}
		return &kube.Objects{}, nil
	}}
	if _, _, err := r.get(t.Context()); err == nil || err.Error() != "away" {
		t.Error(err)
	}
	away = false
	for range 3 {
		if objects, _, err := r.get(t.Context()); err != nil || objects == nil {
			t.Error(err)
		}
	}
	r.listed = r.listed.Add(-objectsFor - time.Second)
	if _, _, err := r.get(t.Context()); err != nil {
		t.Error(err)
	}
	if lists != 3 {
		t.Errorf("%d lists, want 3", lists)
	}
}
