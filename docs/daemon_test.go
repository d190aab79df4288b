package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What nfqproxyd must not link: it runs on every node with NET_ADMIN. Prefixes of import paths.
var notInDaemon = []string{
	"google.golang.org/grpc", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "github.com/cilium/", // exports
	"html/template", "github.com/gorilla/websocket", "github.com/yuin/goldmark", // pages
	"github.com/charmbracelet/", "charm.land/", "github.com/muesli/", // terminals
	module + "control/view", module + "deploy", module + "bench", module + "cmd/nfqproxy/",
	module + "control/manifest", module + "control/controllers", "k8s.io/endpointslice", // files of objects
	module + "control/paper", module + "datapath/paper", // the simulator and the doctor
	module + "control/labapi",                                                                                             // labs
	"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/tools/events", "k8s.io/component-base", // the types of all API groups
}

// What nfqproxyd is built on: it has no second way to do what these modules do.
var builtOn = []string{"github.com/florianl/go-nfqueue/v2", "github.com/mdlayher/netlink", "github.com/ti-mo/conntrack", "k8s.io/client-go"}

// The largest nfqproxyd: lines of our own, without tests and generated files, and modules of others.
const (
	maxDaemonLines   = 45_000
	maxDaemonModules = 50
)

// TestDaemonLinks: the daemon stays small, and has no part of the views, the doctor, the lab and the course.
// "go test ./docs -run TestDaemonLinks -v" prints its figures.
func TestDaemonLinks(t *testing.T) {
	modules := make(map[string]bool)
	lines, packages := 0, 0
	for _, line := range goList(t, "-deps", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{with .Module}}{{.Path}}{{end}}\t{{join .GoFiles \" \"}}", "./cmd/nfqproxyd") {
		fields := strings.Split(line, "\t")
		path, dir, of, files := fields[0], fields[1], fields[2], fields[3]
		for _, p := range notInDaemon {
			if strings.HasPrefix(path, p) {
				t.Errorf("nfqproxyd links %s", path)
			}
		}
		packages++
		if !strings.HasPrefix(path+"/", module) {
			if of != "" {
				modules[of] = true
			}
			continue
		}
		for name := range strings.FieldsSeq(files) {
			if strings.HasSuffix(name, ".pb.go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines += strings.Count(string(text), "\n")
		}
	}
	for _, m := range builtOn {
		if !modules[m] {
			t.Errorf("nfqproxyd does not link %s", m)
		}
	}
	t.Logf("nfqproxyd: %d lines of ours, %d packages, %d modules of others", lines, packages, len(modules))
	if lines > maxDaemonLines || lines < maxDaemonLines/2 {
		t.Errorf("nfqproxyd has %d lines of ours, want up to %d", lines, maxDaemonLines)
	}
	if len(modules) > maxDaemonModules {
		t.Errorf("nfqproxyd has %d modules of others, want up to %d", len(modules), maxDaemonModules)
	}
}
