package apiserver

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// TestUses: a client names the files that it reads again, and the program that it starts.
func TestUses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := write("token", "t")
	config := func(user string) string {
		return write("config", `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users: [{name: u, user: {`+user+`}}]
`)
	}
	for user, want := range map[string]Uses{
		"token: t":         {},
		"tokenFile: token": {Files: []string{token}}, // relative to the kubeconfig
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}": {Program: "aws"},
	} {
		c := Connection{ClientConnection: proxyconfig.ClientConnection{Kubeconfig: config(user)}}
		_, got, err := c.Connect(slog.New(slog.DiscardHandler))
		if err != nil || !slices.Equal(got.Files, want.Files) || got.Program != want.Program {
			t.Errorf("%s: %+v, error %v, want %+v", user, got, err, want)
		}
	}
}
