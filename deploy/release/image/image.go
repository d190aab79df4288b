package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/nfqproxy/nfqproxy/deploy/release/licenses"
	"github.com/nfqproxy/nfqproxy/deploy/release/program"
)

// The programs' places in the image; the manifests of deploy/kubernetes use them.
const (
	entrypoint = "/nfqproxy"
	daemon     = "/nfqproxyd"
)

// base is what programs expect of a root file system: names of users, the order of name services
// and /tmp. There is no shell, no iptables and no library, for the kernel is addressed over netlink;
// and no certificates: those of the API server come with the service account or the kubeconfig.
var base = []file{
	{name: "etc/", mode: 0o755},
	{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\n")},
	{name: "etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
	{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\n")},
	{name: "tmp/", mode: 0o1777},
}

// file is a file of a layer or, if the name ends with a slash, a directory.
type file struct {
	name    string
	mode    int64
	content []byte
}

// source is where the programs come from.
type source struct {
	dir               string // of the repository
	version, revision string // the commit is empty if it is unknown
	date              time.Time
	// lab is the directory of lab-root.sh, for an image of labs; empty: an image of the program alone.
	lab string
}

// build makes an image of each program, and the index of them all. The images are by architecture.
func build(programs []*program.Program, from source) (v1.ImageIndex, map[string]v1.Image, error) {
	if len(programs) == 0 {
		return nil, nil, errors.New("an image needs a program: name the files that go build has written")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	images := make(map[string]v1.Image)
	for _, p := range programs {
		if p.OS != "linux" || images[p.Arch] != nil {
			return nil, nil, fmt.Errorf("%s is for %s/%s: an image has one program of each architecture, for linux", p.Path, p.OS, p.Arch)
		}
		image, err := buildOne(p, from)
		if err != nil {
			return nil, nil, err
		}
		images[p.Arch] = image
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        plain{image},
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}},
		})
	}
	return mutate.Annotations(index, from.annotations()).(v1.ImageIndex), images, nil
}

// plain is an image that is no artifact: by default mutate gives the entries of an index a type of artifact.
type plain struct{ v1.Image }

func (plain) ArtifactType() (string, error) { return "", nil }

func buildOne(p *program.Program, from source) (v1.Image, error) {
	content, err := os.ReadFile(p.Path)
	if err != nil {
		return nil, err
	}
	served, err := os.ReadFile(p.Daemon)
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(filepath.Join(from.dir, "LICENSE"))
	if err != nil {
		return nil, err
	}
	modules, err := licenses.Of(p, from.dir)
	if err != nil {
		return nil, err
	}
	below, err := layer(base)
	files := []file{{name: entrypoint[1:], mode: 0o755, content: content}, {name: daemon[1:], mode: 0o755, content: served}}
	if from.lab != "" {
		var entry []byte
		if entry, err = os.ReadFile(filepath.Join(from.dir, "deploy/release/lab-entry.sh")); err == nil {
			below, err = rootLayer(filepath.Join(from.lab, p.Arch))
		}
		files = []file{{name: labEntry, mode: 0o755, content: entry}, {name: labProgram, mode: 0o755, content: content}, {name: labDaemon, mode: 0o755, content: served}}
	}
	if err != nil {
		return nil, err
	}
	texts, err := layer([]file{
		{name: "licenses/", mode: 0o755},
		{name: "licenses/LICENSE", mode: 0o644, content: own},
		{name: "licenses/" + licenses.FileName, mode: 0o644, content: []byte(licenses.Text(modules))},
	})
	if err != nil {
		return nil, err
	}
	programs, err := layer(files)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		by    string
		layer v1.Layer
	}{
		{"deploy/release/image: base", below},
		{"deploy/release/image: licences", texts},
		{"deploy/release/image: nfqproxy " + from.version, programs},
	} {
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:     l.layer,
			History:   v1.History{Created: v1.Time{Time: from.date}, CreatedBy: l.by},
			MediaType: types.OCILayer,
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.OS, p.Arch, v1.Time{Time: from.date}
	config.Config = v1.Config{
		Entrypoint: []string{entrypoint},
		WorkingDir: "/",
		// Not a user of its own: Kubernetes gives added capabilities (CAP_NET_ADMIN) to user 0
		// only, since it sets no ambient ones; and the files under /proc/sys/net and
		// /run/xtables.lock belong to user 0.
		User:   "0:0",
		Labels: from.annotations(),
	}
	if from.lab != "" {
		labConfig(&config.Config)
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, from.annotations()).(v1.Image), nil
}

// annotations are the keys of the OCI image specification. Labels of the configuration have the same, for
// programs that show nothing else.
func (from source) annotations() map[string]string {
	const key, repository = "org.opencontainers.image.", "https://github.com/nfqproxy/nfqproxy"
	title, description := "nfqproxy", "A Kubernetes Service proxy that makes every decision visible"
	if from.lab != "" {
		title, description = "nfqproxy-lab", "Labs about Kubernetes Services: nfqproxy, with tools of Debian"
	}
	m := map[string]string{
		key + "title":       title,
		key + "description": description,
		key + "source":      repository,
		key + "url":         repository,
		key + "licenses":    "Apache-2.0",
		key + "version":     from.version,
		key + "created":     from.date.Format(time.RFC3339),
	}
	if from.revision != "" {
		m[key+"revision"] = from.revision
	}
	return m
}

// layer makes a layer of files in their order. All belong to root and are from the Unix epoch, so that
// equal files make equal layers.
func layer(files []file) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}
