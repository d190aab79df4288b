package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// manyObjects are a node and services with endpoints each, in a cluster with the pods' network 10.128.0.0/9.
func manyObjects(services, endpoints int) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: node}\nstatus: {addresses: [{type: InternalIP, address: 172.20.0.2}]}\n")
	for i := range services {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: web-%d, namespace: default}\n", i)
		fmt.Fprintf(&b, "spec: {clusterIP: 10.96.%d.%d, ports: [{name: http, port: 80, targetPort: 8080}]}\n", i/250, 1+i%250)
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-%d-a, namespace: default, labels: {kubernetes.io/service-name: web-%[1]d}}\n", i)
		b.WriteString("addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n")
		for e := range endpoints {
			n := i*endpoints + e
			fmt.Fprintf(&b, "- {addresses: [10.%d.%d.%d], conditions: {ready: true}}\n", 128+n>>16, n>>8&255, n&255)
		}
	}
	return b.String()
}

// BenchmarkLoad: nfqproxy trace with kube-proxy's rules of 10,000 services with 10 endpoints each, in a process that has
// started already.
func BenchmarkLoad(b *testing.B) {
	objects := filepath.Join(b.TempDir(), "objects.yaml")
	if err := os.WriteFile(objects, []byte(manyObjects(10_000, 10)), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, mode := range []string{"iptables", "nftables"} {
		rules := filepath.Join(b.TempDir(), mode)
		out, err := os.Create(rules)
		if err != nil {
			b.Fatal(err)
		}
		render := newRenderCommand()
		render.SetArgs([]string{"--objects", objects, "--cluster-cidr", "10.128.0.0/9", "--mode", mode})
		render.SetOut(out)
		render.SetErr(io.Discard)
		if err := render.Execute(); err != nil {
			b.Fatal(err)
		}
		if err := out.Close(); err != nil {
			b.Fatal(err)
		}
		b.Run(mode, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				runtime.GC() // of what the iteration before left
				trace := newTraceCommand()
				trace.SetArgs([]string{"--rules", rules, "--protocol", "tcp", "--source", "10.128.0.99", "--destination", "10.96.0.78:80"})
				trace.SetOut(io.Discard)
				if err := trace.Execute(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
