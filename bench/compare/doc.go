//go:build linux

// Command compare measures nfqproxy beside what people would use instead, and beside
// the least that a netfilter queue costs: in one run, on one machine, taking turns.
//
// Everything happens in network namespaces of this program's own. The services come
// from a real API server (see bench/cluster).
package main
