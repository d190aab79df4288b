// Package helm tests the chart of this directory, and writes the manifests of deploy/kubernetes that
// are rendered from it.
package helm

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
)

var update = flag.Bool("update", false, "write the manifests and the golden files anew")

// chart is the chart's directory.
const chart = "nfqproxy"

// helm runs the command. Nothing of the user's configuration takes part.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), clustertest.RequireProgram(t, cluster.Helm), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "HELM_NAMESPACE=kube-system")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// valueFiles are arguments that give values, the later ones over the earlier ones.
func valueFiles(t *testing.T, values ...string) (args []string) {
	t.Helper()
	for _, v := range values {
		file, err := os.CreateTemp(t.TempDir(), "*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(v); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--values", file.Name())
	}
	return args
}

// render gives the manifests of a release named nfqproxy, by the name of the template.
func render(t *testing.T, values ...string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if _, errs, err := helm(t, append([]string{"template", "nfqproxy", chart, "--output-dir", dir}, valueFiles(t, values...)...)...); err != nil {
		t.Fatalf("helm template: %v\n%s", err, errs)
	}
	files, err := filepath.Glob(filepath.Join(dir, chart, "templates", "*"))
	if err != nil {
		t.Fatal(err)
	}
	manifests := make(map[string]string)
	for _, file := range files {
		name := filepath.Base(file)
		// Helm separates documents, and names their template.
		var documents []string
		for document := range strings.SplitSeq(readFile(t, file), "---\n# Source: "+chart+"/templates/"+name+"\n") {
			if document = strings.TrimSpace(document); document != "" {
				documents = append(documents, document+"\n")
			}
		}
		manifests[name] = strings.Join(documents, "---\n")
	}
	return manifests
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
