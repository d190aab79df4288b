package viewapi

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// DefaultPage is the default address of the page of several nodes.
const DefaultPage = "127.0.0.1:10253"

// ListenPage listens at a loopback address and a port, for the page of several nodes; empty:
// [DefaultPage] or, if that is in use, any port. The server must have a token. Errors name the flag
// --page.
func ListenPage(address string) (net.Listener, error) {
	wanted := cmp.Or(address, DefaultPage)
	if a, err := netip.ParseAddrPort(strings.Replace(wanted, "localhost:", "127.0.0.1:", 1)); err != nil || !a.Addr().IsLoopback() {
		return nil, fmt.Errorf("--page %q: want a loopback address and a port, such as %s", address, DefaultPage)
	}
	l, err := net.Listen("tcp", wanted)
	if address == "" && errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		return nil, fmt.Errorf("--page %s: %w", wanted, err)
	}
	return l, nil
}
