// Package hubblepb is Hubble's API in Go: the flow, observer, peer and relay packages of Cilium's
// api/v1 (v1.20.2), with their .proto files unchanged, except that flow, observer and relay are one Go package.
// Cilium's own module has the same types, and with them the dependencies of an agent.
package hubblepb

//go:generate go run -C generate .
