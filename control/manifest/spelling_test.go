package manifest

import "testing"

// TestOldSpellings holds what clusters have had stored since before Kubernetes refused it.
func TestOldSpellings(t *testing.T) {
	for name, text := range map[string]string{
		"Service": `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.041
  clusterIPs: [172.30.0.041]
  ipFamilies: [IPv4]
  externalIPs: [192.000.002.001, "::ffff:192.0.2.2"]
  loadBalancerSourceRanges: [203.0.113.000/025, " 198.51.100.0/024"]
  ports: [{port: 80}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.03}]}}
`,
		"clusterIPs in two spellings": `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 172.30.0.041, clusterIPs: [172.30.0.41], ports: [{port: 80}]}
`,
		"mapped clusterIP": `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: "::ffff:172.30.0.41", ipFamilies: [IPv4], ports: [{port: 80}]}
`,
		"EndpointSlice": `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web}
addressType: IPv4
endpoints: [{addresses: [010.0.0.1]}, {addresses: ["::ffff:10.0.0.2"]}]
`,
		"Node": `
apiVersion: v1
kind: Node
metadata: {name: a}
spec: {podCIDR: 10.244.001.000/24, podCIDRs: [10.244.001.000/24]}
status: {addresses: [{type: InternalIP, address: 172.20.0.02}]}
`,
		"Pod": `
apiVersion: v1
kind: Pod
metadata: {name: a}
status: {podIP: 10.244.1.02, hostIP: 172.20.0.02, podIPs: [{ip: 10.244.1.02}], hostIPs: [{ip: 172.20.0.02}]}
`,
	} {
		if o, err := loadBytes("a.yaml", []byte(text)); err != nil || o.Empty() {
			t.Errorf("%s: %v", name, err)
		}
	}
}
