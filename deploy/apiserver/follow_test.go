package apiserver

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// lines is a log that tests wait for.
type lines struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.written <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, part string) {
	t.Helper()
	for end := time.After(time.Minute); ; {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Contains(text, part) {
			return
		}
		select {
		case <-l.written:
		case <-end:
			t.Fatalf("%q does not come:\n%s", part, text)
		}
	}
}

const web = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"

// TestFollow: clients with the kubeconfig see the objects of a file, its changes, and the last good state of a faulty one.
func TestFollow(t *testing.T) {
	s, log := new(Server), &lines{written: make(chan struct{}, 1)}
	defer s.Close()
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "objects.yaml"), filepath.Join(dir, "kubeconfig")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(web)
	if err := s.ServeHere(kubeconfig); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Follow(ctx, slog.New(slog.NewTextHandler(log, nil)), []string{file}, func() { close(begun) })
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.clusterIP!=None"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	w, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	write(strings.Replace(web, "port: 80", "port: 800000", 1))
	log.await(t, "cannot load the objects; the last good ones stay in force")
	log.await(t, "spec.ports[0].port")
	write(strings.Replace(web, "port: 80", "port: 81", 1))
	log.await(t, "loading the objects works again")
	if e := <-w.ResultChan(); e.Type != "MODIFIED" {
		t.Errorf("%s %+v", e.Type, e.Object)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFollowFaulty: what is faulty at first is not served.
func TestFollowFaulty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte("kind: Service\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := new(Server).Follow(t.Context(), slog.New(slog.DiscardHandler), []string{file}, func() { t.Error("it begins") })
	if err == nil || !strings.Contains(err.Error(), "apiVersion: missing") {
		t.Error(err)
	}
}

// TestWithoutToken: who has no token gets nothing, by TLS or without.
func TestWithoutToken(t *testing.T) {
	s := new(Server)
	defer s.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := s.ServeHere(kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "x", config.BearerToken + "x"} {
		config.BearerToken = token
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		r, err := client.Get(config.Host + "/api/v1/services")
		if err != nil {
			t.Fatal(err)
		}
		if _ = r.Body.Close(); r.StatusCode != http.StatusUnauthorized || r.ProtoMajor != 2 {
			t.Errorf("token %q: %s by %s", token, r.Status, r.Proto)
		}
	}
	if info, err := os.Stat(kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
