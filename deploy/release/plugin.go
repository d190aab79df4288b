package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/deploy/release/licenses"
	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

// writePlugins writes the kubectl plugin's archives, and its manifest for krew if the release has all platforms of
// the manifest deploy/krew/nfqproxy.yaml. Without that file there is no plugin.
func (r *release) writePlugins(programs map[string]*program.Program) error {
	dir := filepath.Join(r.source, "deploy/krew")
	template, err := os.ReadFile(filepath.Join(dir, "nfqproxy.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Its first lines describe the placeholders.
	_, manifest, _ := strings.Cut(string(template), "apiVersion:")
	manifest = "apiVersion:" + strings.ReplaceAll(manifest, "VERSION", r.version)
	for _, platform := range r.platforms {
		p := programs[platform]
		name := "kubectl-nfqproxy_" + p.OS + "_" + p.Arch + ".tar.gz"
		entries := []entry{
			{"kubectl-nfqproxy", p.Path, 0o755},
			{"kubectl_complete-nfqproxy", filepath.Join(dir, "kubectl_complete-nfqproxy"), 0o755},
			{"LICENSE", filepath.Join(r.source, "LICENSE"), 0o644},
			{licenses.FileName, r.licenses(platform), 0o644},
		}
		if p.Daemon != "" { // for labs
			entries = slices.Insert(entries, 1, entry{"nfqproxyd", p.Daemon, 0o755})
		}
		if err := r.writeTar(name, entries); err != nil {
			return err
		}
		sum, err := sumOf(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		manifest = strings.ReplaceAll(manifest, "SHA256_"+strings.ToUpper(p.OS+"_"+p.Arch), sum)
	}
	if strings.Contains(manifest, "SHA256_") {
		return nil
	}
	return os.WriteFile(filepath.Join(r.out, "nfqproxy.krew.yaml"), []byte(manifest), 0o644)
}
