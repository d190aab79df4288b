package lab

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// fifty is a lab of 50 pods behind a Service, on three nodes.
const fifty = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: fifty}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}]
nodes:
- {name: node-a, addresses: [172.20.0.2], podCIDRs: [10.244.0.0/24]}
- {name: node-b, addresses: [172.20.0.3], podCIDRs: [10.244.1.0/24]}
- {name: node-c, addresses: [172.20.0.4], podCIDRs: [10.244.2.0/24]}
deployments: [{name: web, replicas: 50, ports: [{name: http, port: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// BenchmarkUp measures the time from the start of "nfqproxy lab up" until its lab is up. It runs bin/nfqproxy,
// which "make build" makes.
func BenchmarkUp(b *testing.B) {
	netnstest.Require(b)
	program, err := filepath.Abs("../../bin/nfqproxy")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		b.Skip("no bin/nfqproxy: make build")
	}
	path := filepath.Join(b.TempDir(), "fifty.yaml")
	if err := os.WriteFile(path, []byte(fifty), 0o644); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"kind", path} {
		lab := strings.TrimSuffix(filepath.Base(name), ".yaml")
		b.Run("lab="+lab, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(program, "lab", "up", name)
				out, err := cmd.StdoutPipe()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				lines, up := bufio.NewScanner(out), false
				for !up && lines.Scan() {
					up = strings.HasPrefix(lines.Text(), "Decisions")
				}
				b.StopTimer()
				if !up {
					b.Fatalf("lab up %s has ended: %v", lab, cmd.Wait())
				}
				if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
					b.Fatal(err)
				}
				for lines.Scan() { // until its end
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
