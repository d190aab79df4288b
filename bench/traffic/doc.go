// Package traffic makes and serves short connections at little cost, so that a benchmark
// measures the path between them: blocking system calls on threads of their
// own that the Go scheduler does not touch, and no allocation while it runs.
//
// Both sides are meant to be processes of their own, started with [Env] and [Tune].
package traffic
