//go:build linux

// Command compare measures nfqproxy against its alternatives, and against the minimum
// cost of a netfilter queue: in one run, on one machine, taking turns.
//
// Everything happens in network namespaces of this program's own. The services come
// from a real API server (see bench/cluster).
package main
