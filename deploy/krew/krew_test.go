// Package krew tests the manifest of the kubectl plugin.
package krew

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// plugin is a manifest of krew (sigs.k8s.io/krew/pkg/index, Plugin), as far as it is used.
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			Sha256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

// TestManifest: after a release has filled it in, the manifest has all that krew requires (validation in
// sigs.k8s.io/krew/internal/index/validation), for each platform.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("nfqproxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	released := strings.ReplaceAll(string(text), "VERSION", "v1.2.3")
	placeholder := regexp.MustCompile(`SHA256_[A-Z0-9]+_[A-Z0-9]+`)
	if n := len(placeholder.FindAllString(released, -1)); n != 5 { // one is in the comment
		t.Errorf("%d checksums", n)
	}
	released = placeholder.ReplaceAllString(released, strings.Repeat("a", 64))
	var p plugin
	if err := yaml.UnmarshalStrict([]byte(released), &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "nfqproxy" {
		t.Errorf("%s %s %s", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	s := p.Spec
	if s.Version != "v1.2.3" || s.Homepage == "" || s.Description == "" || s.ShortDescription == "" || len(s.ShortDescription) > 50 {
		t.Errorf("version %q, short description of %d characters: %q", s.Version, len(s.ShortDescription), s.ShortDescription)
	}
	var platforms []string
	for _, platform := range s.Platforms {
		labels := platform.Selector.MatchLabels
		name := labels["os"] + "_" + labels["arch"]
		platforms = append(platforms, name)
		if want := fmt.Sprintf("https://github.com/nfqproxy/nfqproxy/releases/download/v1.2.3/kubectl-nfqproxy_%s.tar.gz", name); platform.URI != want {
			t.Errorf("%s: %s, want %s", name, platform.URI, want)
		}
		if !strings.Contains(string(text), "uri: https://github.com/nfqproxy/nfqproxy/releases/download/VERSION/kubectl-nfqproxy_"+name+".tar.gz\n    sha256: SHA256_"+strings.ToUpper(name)+"\n") {
			t.Errorf("%s: the checksum is another platform's", name)
		}
		if len(platform.Sha256) != 64 || platform.Bin != "kubectl-nfqproxy" {
			t.Errorf("%s: %+v", name, platform)
		}
	}
	if want := []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms %q, want %q", platforms, want)
	}
}

// TestCompletion: kubectl's completion gets the plugin's values by the script.
func TestCompletion(t *testing.T) {
	netnstest.RequireTool(t, "sh")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl-nfqproxy"), []byte("#!/bin/sh\necho \"$# $1 $2 $3\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./kubectl_complete-nfqproxy", "flows", "a b")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if want := "3 __complete flows a b\n"; err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}
