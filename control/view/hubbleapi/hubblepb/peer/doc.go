// Package peerpb is the package peer of Hubble's API in Go: see package hubblepb.
package peerpb
