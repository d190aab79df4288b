package kubernetes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2]}]
`

// TestCapabilities: the daemon starts with the capabilities of the manifest and no other,
// and with fewer it does not.
func TestCapabilities(t *testing.T) {
	netns.Require(t)
	netns.RequireTool(t, "setpriv")
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "nfqproxy"), filepath.Join(dir, "objects.yaml")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/nfqproxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	added := read[appsv1.DaemonSet](t, "base/daemonset.yaml").Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add
	start := func(capabilities []string) string {
		ns, err := netns.New("node")
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		set := strings.Join(append([]string{"-all"}, capabilities...), ",")
		cmd := exec.Command("setpriv", "--bounding-set="+set, "--inh-caps="+set, "--no-new-privs",
			binary, "run", "--objects", file, "--hostname-override", "node", "--queues", "1", "--ready-fd", "3")
		ready, theirs, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer ready.Close()
		var log bytes.Buffer
		cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, &log
		err = ns.Start(cmd)
		_ = theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		said := make([]byte, len("ready\n"))
		n, _ := ready.Read(said) // 0 if the daemon ends before
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		return string(said[:n]) + log.String()
	}
	var names []string
	for _, c := range added {
		names = append(names, "+"+strings.ToLower(string(c)))
	}
	if got := start(names); !strings.HasPrefix(got, "ready\n") {
		t.Errorf("with %v: %s", added, got)
	}
	for i, c := range added {
		without := append(append([]string{}, names[:i]...), names[i+1:]...)
		if got := start(without); strings.HasPrefix(got, "ready\n") || !strings.Contains(got, string(c)) {
			t.Errorf("without %s: %s", c, got)
		}
	}
}
