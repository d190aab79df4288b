package lab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "my.yaml")
	if err := os.WriteFile(path, []byte(`apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes: [{name: node-a, addresses: [192.0.2.2]}]
objects: [more]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{path, filepath.Join(dir, "more")}, f.ObjectPaths()); d != "" {
		t.Error(d)
	}
	if _, err := Load("no-such-lab"); err == nil || !strings.Contains(err.Error(), "built-in labs: allowed-ports, dual-stack, flannel, grafana-31577, kind, kube-dns-hairpin, nodeport-30007, three-modes") {
		t.Errorf("no such lab: %v", err)
	}
	if _, err := Load("./no-such-lab"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such file: %v", err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a directory: %v", err)
	}
}

func TestBuiltInLabs(t *testing.T) {
	for _, name := range labs.Names() {
		f, err := Load(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Spec.Name != name {
			t.Errorf("lab %s calls itself %s", name, f.Spec.Name)
		}
	}
	if _, err := labs.File("../labs"); err == nil {
		t.Error("a lab outside of the labs")
	}
}
