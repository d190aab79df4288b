package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/e2e/image"
)

// registry is the one in the names of images. There is no such host: all images are made here,
// and none is pulled.
const registry = "images.invalid"

// Images of the cluster. Those of the tests have the names and tags of
// test/utils/image/manifest.go in k8s.io/kubernetes.
const (
	pauseImage     = registry + "/pause:3.10.2"
	coreDNSImage   = registry + "/coredns/coredns:e2e"
	kubeProxyImage = registry + "/kube-proxy:e2e"
	peerImage      = registry + "/peer:e2e"
	// The name in deploy/kubernetes, as container runtimes complete it.
	nfqproxyImage = "docker.io/library/nfqproxy:dev"
	// That of deploy/kubernetes/components/hubble-relay.
	relayImage = "quay.io/cilium/hubble-relay:v1.20.2"
)

// repositories maps the registries of the tests' images (KUBE_TEST_REPO_LIST).
const repositories = `gcRegistry: ` + registry + `
promoterE2eRegistry: ` + registry + `/e2e-test-images
buildImageRegistry: ` + registry + `/build-image
gcEtcdRegistry: ` + registry + `
sigStorageRegistry: ` + registry + `/sig-storage
`

// shell are the programs of a shell's daily use, which upstream's images have, too.
var shell = []string{
	"sh", "bash", "cat", "ls", "echo", "sleep", "grep", "sed", "awk", "head", "tail", "wc", "seq", "sort", "uniq", "cut", "tr",
	"test", "true", "false", "date", "env", "id", "hostname", "mkdir", "rm", "touch", "timeout", "printf", "dirname", "basename",
	"ps", "kill", "mount", "chroot", "stat", "tee", "xargs", "find", "chmod", "cp", "mv", "ln", "dd",
}

// writeImages writes the archive of all images.
func (s *settings) writeImages() error {
	images, err := makeImages()
	if err != nil {
		return err
	}
	if s.Image == "" {
		own := new(image.Layer)
		if err := errors.Join(own.Copy("/nfqproxy", s.Program), own.Copy("/nfqproxyd", filepath.Join(filepath.Dir(s.Program), "nfqproxyd"))); err != nil {
			return err
		}
		images = append(images, image.Image{Names: []string{nfqproxyImage}, Layers: []*image.Layer{own}, Entrypoint: []string{"/nfqproxy"}})
	}
	file, err := os.Create(s.path(imagesFile))
	if err != nil {
		return err
	}
	return errors.Join(image.Write(file, images...), file.Close())
}

// makeImages makes all images but nfqproxy's.
func makeImages() ([]image.Image, error) {
	tools, err := toolsLayer()
	if err != nil {
		return nil, err
	}
	binaries, err := programs(pause, coreDNS, regression, agnhost, cluster.KubeProxy, peer, cluster.HubbleRelay)
	if err != nil {
		return nil, err
	}
	layers := make([]*image.Layer, len(binaries))
	for i, at := range []string{"/pause", "/coredns", "/" + regression, "/agnhost", "/usr/local/bin/kube-proxy", "/peer", "/usr/bin/hubble-relay"} {
		layers[i] = new(image.Layer)
		if err := layers[i].Copy(at, binaries[i]); err != nil {
			return nil, err
		}
	}
	agnhostLayer := layers[3]
	agnhostLayer.Link("/agnhost-2", "agnhost")
	if err := copyCertificates(agnhostLayer); err != nil {
		return nil, err
	}
	return []image.Image{
		{Names: []string{pauseImage}, Layers: layers[:1], Entrypoint: []string{"/pause"}},
		{Names: []string{coreDNSImage}, Layers: layers[1:2], Entrypoint: []string{"/coredns"}},
		{Names: []string{registry + "/e2e-test-images/regression-issue-74839:1.4"}, Layers: layers[2:3], Entrypoint: []string{"/" + regression}},
		{
			Names:      []string{registry + "/e2e-test-images/agnhost:2.63.0", registry + "/e2e-test-images/agnhost:2.55"},
			Layers:     []*image.Layer{tools, agnhostLayer},
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
		},
		// Of these the tests use the shell and some tools.
		{
			Names: []string{
				registry + "/e2e-test-images/busybox:1.37.0-1",
				registry + "/build-image/distroless-iptables:v0.9.6",
				registry + "/e2e-test-images/glibc-dns-testing:2.0.0",
			},
			Layers: []*image.Layer{tools}, Cmd: []string{"sh"},
		},
		{Names: []string{kubeProxyImage}, Layers: []*image.Layer{tools, layers[4]}},
		{Names: []string{peerImage}, Layers: layers[5:6], Entrypoint: []string{"/peer"}},
		{Names: []string{relayImage}, Layers: layers[6:7]},
	}, nil
}

// toolsLayer has the programs of this machine that the tests run in containers. Upstream's
// images have Alpine's or Debian's of the same names.
func toolsLayer() (*image.Layer, error) {
	l := new(image.Layer)
	l.Dir("/tmp", 0o777|fs.ModeSticky)
	for _, dir := range []string{"/proc", "/sys", "/dev", "/root", "/run", "/uploads", "/var/tmp"} {
		l.Dir(dir, 0o755)
	}
	l.Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n", 0o644)
	l.Text("/etc/group", "root:x:0:\nuser-defined-in-image:x:1000:\n", 0o644)
	l.Text("/etc/nsswitch.conf", "hosts: files dns\n", 0o644)
	if err := l.Programs(append(shell, "curl", "nc", "dig", "nslookup", "host", "ip", "ss", "ping", "conntrack", "ipset", "nft")...); err != nil {
		return nil, err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		if err := l.Programs(family, family+"-save", family+"-restore"); err != nil {
			return nil, err
		}
	}
	if err := l.Glob("/usr/lib/*/xtables/*.so"); err != nil {
		return nil, err
	}
	// Upstream's wget is busybox', which does not try again.
	if err := l.Programs("wget"); err != nil {
		return nil, err
	}
	l.Move("/bin/wget", "/bin/wget.gnu")
	l.Text("/bin/wget", "#!/bin/sh\nexec /bin/wget.gnu --tries=1 \"$@\"\n", 0o755)
	return l, nil
}

// copyCertificates adds the certificate and the key of agnhost's porter.
func copyCertificates(l *image.Layer) error {
	files, err := programs("porter/localhost.crt", "porter/localhost.key")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := l.Copy("/"+filepath.Base(file), file); err != nil {
			return err
		}
	}
	return nil
}
