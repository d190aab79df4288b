// Package nftproxy is what kube-proxy writes in its mode nftables (pkg/proxy/nftables/proxier.go of Kubernetes): the names
// of its chains, maps and sets.
package nftproxy
