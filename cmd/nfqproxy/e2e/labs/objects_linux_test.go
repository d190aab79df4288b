package labs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/derivation"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// objectsOf writes the Kubernetes objects of a built-in lab to a file.
func objectsOf(t *testing.T, name string) string {
	t.Helper()
	data, err := labs.File(name)
	if err != nil {
		t.Fatal(err)
	}
	_, objects, ok := strings.Cut(string(data), "\n---\n")
	if !ok {
		t.Fatalf("lab %s has one document", name)
	}
	return e2etest.WriteFile(t, name+".yaml", []byte(objects))
}

// named are the lines of the built-in labs that say which pods endpoints are and where.
var named = regexp.MustCompile(`(?m)^  (nodeName|targetRef): .*\n`)

// The demo of a lab that is made of a built-in lab's objects alone ends as well as that
// lab's own, also where they are as poor as those that rules tell of.
func TestLabDemoOfObjects(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	demo := func(t *testing.T, path string) {
		t.Helper()
		code, stdout, stderr := e2etest.Run(t, nil, "lab", "demo", "--objects", path)
		if code != 0 || stderr != "" || strings.Contains(stdout, "✗") || !strings.Contains(stdout, "checks passed") || !strings.Contains(stdout, " is derived from objects") {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
		if !strings.Contains(e2etest.ReadFile(t, path), "kind: EndpointSlice") {
			return // no Service has endpoints
		}
		for _, scene := range []string{"A pod connects to a Service", "A pod connects to its own Service and reaches itself"} {
			if !strings.Contains(stdout, scene) {
				t.Errorf("there is no scene %q", scene)
			}
		}
	}
	for _, name := range labs.Names() {
		if netnstest.Selected(name, "kube-dns-hairpin") {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				demo(t, objectsOf(t, name))
			})
		}
		if netnstest.Selected(name, "kind", "dual-stack") {
			t.Run(name+" unnamed", func(t *testing.T) {
				t.Parallel()
				path := objectsOf(t, name)
				poor := named.ReplaceAllString(e2etest.ReadFile(t, path), "")
				if err := os.WriteFile(path, []byte(poor), 0o644); err != nil {
					t.Fatal(err)
				}
				demo(t, path)
			})
		}
	}
}

// TestLabOfRealNodes: what services reads out of the rules of a real node comes up as a
// lab, and everything in it works.
func TestLabOfRealNodes(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for _, name := range []string{"kind-1.29-worker1-after.rules", "kubeadm-1.22-flannel-node1.rules", "nodeport-30007.listing", "kube-dns-hairpin.listing"} {
		if !netnstest.Selected(name, "kind-1.29-worker1-after.rules", "nodeport-30007.listing") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, objects, stderr := e2etest.Run(t, nil, "services", "--rules", "../../../../datapath/paper/iptables/testdata/"+name, "-o", "yaml")
			if code != 0 {
				t.Fatalf("services: exit code %d: %s", code, stderr)
			}
			// The comment on top says how to bring it up.
			args := []string{"lab", "demo", "--objects", e2etest.WriteFile(t, "objects.yaml", []byte(objects))}
			if cidr := regexp.MustCompile(`lab up .*--cluster-cidr (\S+)`).FindStringSubmatch(objects); cidr != nil {
				args = append(args, "--cluster-cidr", cidr[1])
			}
			code, stdout, stderr := e2etest.Run(t, nil, args...)
			if code != 0 || stderr != "" || strings.Contains(stdout, "✗") || !strings.Contains(stdout, "checks passed") {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}

// TestLabOfObjects: a change of the objects applies while the lab runs.
func TestLabOfObjects(t *testing.T) {
	t.Parallel()
	path := objectsOf(t, "kind")
	file, err := lab.FromObjects([]string{path}, "", derivation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}})
	const service = "10.96.118.136:80"
	a := c.Ask(c.Dial("shell-1", "tcp", e2etest.AnyPort, service))
	if !strings.HasPrefix(a.Pod, "default/my-nginx-") {
		t.Errorf("%+v answered", a)
	}
	change := []byte(strings.ReplaceAll(e2etest.ReadFile(t, path), "10.96.118.136", "10.96.118.137"))
	if err := os.WriteFile(path+".new", change, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	e2etest.Eventually(t, e2etest.Timeout, "the new address to be served", func() bool {
		conn, err := c.TryDial("shell-1", "tcp", e2etest.AnyPort, "10.96.118.137:80")
		return err == nil && conn.Close() == nil
	})
}
