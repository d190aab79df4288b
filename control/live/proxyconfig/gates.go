package proxyconfig

// GateExternalIPs is the only feature gate of kube-proxy that nfqproxy has: with false, the spec.externalIPs of Services
// have no effect. Kubernetes plans to make that its default (KEP-5707).
const GateExternalIPs = "AllowServiceExternalIPs"

// gate reports whether a feature gate is on. GateExternalIPs is on by default.
func gate(gates map[string]bool, name string) bool {
	on, given := gates[name]
	return on || !given
}
