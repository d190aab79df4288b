package servicetable

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// manyObjects makes n Services with one port and ten endpoints each.
func manyObjects(n int) *kube.Objects {
	objects := &kube.Objects{}
	for i := range n {
		name := fmt.Sprintf("service-%d", i)
		objects.Services = append(objects.Services, service(named("default", name), withIPs(fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255))))
		var endpoints []discoveryv1.Endpoint
		for k := range 10 {
			e := ready(fmt.Sprintf("10.244.%d.%d", i%250, 1+k))
			e.NodeName = new(fmt.Sprintf("node-%d", k))
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-%d", name, k)}
			endpoints = append(endpoints, e)
		}
		s := v4(8080, endpoints...)
		s.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
		objects.EndpointSlices = append(objects.EndpointSlices, s)
	}
	return objects
}

// BenchmarkTable makes whole tables, ten endpoints for each service. bytes/endpoint
// is what a table keeps on the heap.
func BenchmarkTable(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			objects := manyObjects(n)
			config := NodeConfig{Name: "node-1", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
			table := func() *decision.Table {
				services, _ := Build(objects, config)
				t := decision.NewTable(1, time.Time{}, config.node(nil, nil), services)
				return t
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			kept := table()
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportAllocs()
			for b.Loop() {
				table()
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(10*n), "bytes/endpoint")
			runtime.KeepAlive(kept)
		})
	}
}
