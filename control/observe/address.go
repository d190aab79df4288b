package observe

import (
	"net/netip"
	"strings"
)

// SocketPath returns the path of a Unix socket's address: unix:/PATH, unix:///PATH or /PATH. false:
// it is another address. The path may be relative, which is an error of the user.
func SocketPath(address string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(address, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return address, strings.HasPrefix(address, "/")
}

// IsLoopback reports whether a host, of an address to connect to or to listen at, is this machine
// only.
func IsLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
