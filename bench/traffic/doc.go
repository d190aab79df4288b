// Package traffic makes and answers short connections at little cost, so that what a
// benchmark measures is the way in between: blocking system calls on threads of their
// own that the Go scheduler does not touch, and no allocation while it runs.
//
// Both sides are meant to be processes of their own, started with [Env] and [Tune].
package traffic
