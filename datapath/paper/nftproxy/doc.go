// Package nftproxy is what kube-proxy writes in its nftables mode (pkg/proxy/nftables/proxier.go of Kubernetes): the names of
// its chains, maps and sets, and its tables for a service table, as version 1.36 has them.
package nftproxy
