package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/nfqproxy/nfqproxy/deploy/release/program/programtest"
)

// programs writes programs for platforms such as linux/arm64, each into a directory of its own.
func programs(t *testing.T, platforms ...string) (paths []string) {
	t.Helper()
	for _, platform := range platforms {
		path := filepath.Join(t.TempDir(), "nfqproxy")
		programtest.BuildTool(t, platform, path)
		paths = append(paths, path)
	}
	return paths
}

const image = "nfqproxy:dev"

var from = source{dir: "../../..", version: "v1.2.3", revision: "0123456789abcdef0123456789abcdef01234567"}

// sums are the SHA-256 of all files of a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return m
}

// extract writes a tar file's files to a new directory.
func extract(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReproducible: the files depend neither on the place of the programs nor on the time.
func TestReproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	first, second := t.TempDir(), t.TempDir()
	for _, out := range []string{first, second} {
		if err := run(t.Context(), image, from, out, false, programs(t, "linux/amd64", "linux/arm64")); err != nil {
			t.Fatal(err)
		}
	}
	got := sums(t, first)
	if diff := cmp.Diff(got, sums(t, second)); diff != "" {
		t.Error(diff)
	}
	if len(got) != 3 {
		t.Errorf("%d files: %v", len(got), got)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000001")
	if err := run(t.Context(), image, from, second, false, programs(t, "linux/amd64", "linux/arm64")); err != nil {
		t.Fatal(err)
	}
	for file, sum := range sums(t, second) {
		if sum == got[file] {
			t.Errorf("%s does not contain SOURCE_DATE_EPOCH", file)
		}
	}
}

// TestFiles: the layout has the image of both platforms, and each of Docker's files has the same one.
func TestFiles(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	out, paths := t.TempDir(), programs(t, "linux/amd64", "linux/arm64")
	if err := run(t.Context(), image, from, out, false, paths); err != nil {
		t.Fatal(err)
	}
	l, err := layout.FromPath(extract(t, filepath.Join(out, "nfqproxy-image.tar")))
	if err != nil {
		t.Fatal(err)
	}
	top, err := l.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	outer, err := top.IndexManifest()
	if err != nil || len(outer.Manifests) != 1 {
		t.Fatal(outer, err)
	}
	if diff := cmp.Diff(map[string]string{
		"org.opencontainers.image.ref.name": "dev", "io.containerd.image.name": "docker.io/library/nfqproxy:dev",
	}, outer.Manifests[0].Annotations); diff != "" {
		t.Error(diff)
	}
	index, err := top.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		d := manifest.Manifests[i]
		if d.Platform == nil || d.Platform.String() != "linux/"+arch || d.ArtifactType != "" || len(manifest.Manifests) != 2 {
			t.Errorf("%+v", d)
		}
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, img, arch, paths[i])
		tag, err := name.NewTag(image)
		if err != nil {
			t.Fatal(err)
		}
		docker, err := tarball.ImageFromPath(filepath.Join(out, "nfqproxy-image-"+arch+".tar"), &tag)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, docker, arch, paths[i])
	}
}

func checkImage(t *testing.T, img v1.Image, arch, path string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config.Config)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"Entrypoint":["/nfqproxy"],"Labels":{"org.opencontainers.image.created":"2023-11-14T22:13:20Z",` +
		`"org.opencontainers.image.description":"A Kubernetes Service proxy that makes every decision visible",` +
		`"org.opencontainers.image.licenses":"Apache-2.0","org.opencontainers.image.revision":"0123456789abcdef0123456789abcdef01234567",` +
		`"org.opencontainers.image.source":"https://github.com/nfqproxy/nfqproxy","org.opencontainers.image.title":"nfqproxy",` +
		`"org.opencontainers.image.url":"https://github.com/nfqproxy/nfqproxy","org.opencontainers.image.version":"v1.2.3"},"User":"0:0","WorkingDir":"/"}`
	if diff := cmp.Diff(want, string(text)); diff != "" || config.OS != "linux" || config.Architecture != arch || config.Created.Unix() != 1700000000 {
		t.Errorf("%s: %+v\n%s", arch, config, diff)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range layers {
		got = append(got, list(t, l)...)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	others := thirdParty(t, layers[1])
	for _, want := range []string{"k8s.io/client-go v", "Apache License\n", "    Go 1.", "Copyright 2009 The Go Authors."} {
		if !strings.Contains(others, want) {
			t.Errorf("%s: the licences lack %q", arch, want)
		}
	}
	if diff := cmp.Diff([]string{
		"drwxr-xr-x 0:0 0 etc/ ",
		`-rw-r--r-- 0:0 0 etc/group "root:x:0:\n"`,
		`-rw-r--r-- 0:0 0 etc/nsswitch.conf "hosts: files dns\n"`,
		`-rw-r--r-- 0:0 0 etc/passwd "root:x:0:0:root:/:/sbin/nologin\n"`,
		"dtrwxrwxrwx 0:0 0 tmp/ ",
		"drwxr-xr-x 0:0 0 licenses/ ",
		fmt.Sprintf("-rw-r--r-- 0:0 0 licenses/LICENSE %x", sha256.Sum256(own)),
		fmt.Sprintf("-rw-r--r-- 0:0 0 licenses/THIRD_PARTY_LICENSES %x", sha256.Sum256([]byte(others))),
		fmt.Sprintf("-rwxr-xr-x 0:0 0 nfqproxy %x", sha256.Sum256(program)),
		fmt.Sprintf("-rwxr-xr-x 0:0 0 nfqproxyd %x", sha256.Sum256(program)),
	}, got); diff != "" {
		t.Errorf("%s: %s", arch, diff)
	}
}

// thirdParty is the text of the licences in a layer.
func thirdParty(t *testing.T, l v1.Layer) string {
	t.Helper()
	content, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("licenses/THIRD_PARTY_LICENSES: %v", err)
		}
		if h.Name == "licenses/THIRD_PARTY_LICENSES" {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
	}
}

// list has one line for each file of a layer: mode, owner, time, name and content.
func list(t *testing.T, l v1.Layer) (lines []string) {
	t.Helper()
	content, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		shown := ""
		if len(text) > 1000 {
			shown = fmt.Sprintf("%x", sha256.Sum256(text))
		} else if len(text) > 0 {
			shown = fmt.Sprintf("%q", text)
		}
		lines = append(lines, fmt.Sprintf("%s %d:%d %d %s %s", h.FileInfo().Mode(), h.Uid, h.Gid, h.ModTime.Unix(), h.Name, shown))
	}
}

// TestPush: a registry has the image of both platforms afterwards. A failure names the registry.
func TestPush(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	pushed := strings.TrimPrefix(server.URL, "http://") + "/team/nfqproxy:v1.2.3"
	paths := programs(t, "linux/amd64", "linux/arm64")
	if err := run(t.Context(), pushed, from, t.TempDir(), true, paths); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(pushed)
	if err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(paths[i])
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("-rwxr-xr-x 0:0 0 nfqproxy %x", sha256.Sum256(program)); !slices.Contains(list(t, layers[2]), want) {
			t.Errorf("%s: %q", arch, list(t, layers[2]))
		}
	}
	server.Close()
	err = run(t.Context(), pushed, from, t.TempDir(), true, paths)
	if host, _, _ := strings.Cut(pushed, "/"); err == nil || !strings.Contains(err.Error(), "cannot push "+pushed) || !strings.Contains(err.Error(), "docker login "+host) {
		t.Error(err)
	}
}

// TestRefused: what cannot become an image is named, and no file is written.
func TestRefused(t *testing.T) {
	good := programs(t, "linux/amd64", "linux/amd64", "darwin/arm64")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, epoch, want string
		paths             []string
		dir               string
	}{
		{image, "", "an image needs a program", nil, from.dir},
		{image, "", "is not a program that Go has built", []string{text}, from.dir},
		{image, "", "linux/amd64: an image has one program of each architecture", good[:2], from.dir},
		{image, "", "darwin/arm64: an image has one program of each architecture, for linux", good[2:], from.dir},
		{"Registry/UPPER", "", "the name of the image", good[:1], from.dir},
		{image, "yesterday", `SOURCE_DATE_EPOCH is "yesterday"`, good[:1], from.dir},
		{image, "-1", `SOURCE_DATE_EPOCH is "-1"`, good[:1], from.dir},
		{image, "", "elsewhere/LICENSE", good[:1], "elsewhere"},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", c.epoch)
		out := t.TempDir()
		err := run(context.Background(), c.name, source{dir: c.dir}, out, false, c.paths)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(sums(t, out)) != 0 {
			t.Errorf("%s, %s, %v: %v, %v; want %q", c.name, c.epoch, c.paths, err, sums(t, out), c.want)
		}
	}
}
