package limit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
)

// Client identifies a client for limits per client: a user of this machine, if the kernel
// reports the socket's owner, else an address. It is comparable.
type Client struct {
	address netip.Addr // valid iff it is no user
	uid     uint32     // valid iff user
	user    bool
	// privileged: root, or the user that the server runs as. Both can stop the server anyway,
	// so the limit for each client does not apply to them. kubelet's probes, kubectl
	// port-forward, and the relay of a lab are such clients.
	privileged bool
}

// User returns the client with the user ID.
func User(uid uint32) Client {
	return Client{uid: uid, user: true, privileged: uid == 0 || int(uid) == os.Geteuid()}
}

// Address returns the client with the address. IPv6 addresses count individually: the pods of a
// node share a /64 prefix.
func Address(a netip.Addr) Client { return Client{address: a.Unmap().WithZone("")} }

// String returns the client's name for messages.
func (c Client) String() string {
	switch {
	case c.user:
		return "uid " + strconv.FormatUint(uint64(c.uid), 10)
	case c.address.IsValid():
		return c.address.String()
	}
	return "a client without an address"
}

// clientOf finds the client of a connection that a server accepted.
func clientOf(c net.Conn) Client {
	switch c := c.(type) {
	case *net.UnixConn:
		if uid, err := PeerUID(c); err == nil {
			return User(uid)
		}
	case *net.TCPConn:
		remote, local := addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())
		// A connection within this machine: to a loopback address, or to an address of its
		// own, which the kernel then takes as the source, too. kubelet probes like that.
		if remote.Addr().IsLoopback() || remote.Addr() == local.Addr() {
			if uid, ok := socketUID(remote, local); ok {
				return User(uid)
			}
		}
	}
	return Address(addrPort(c.RemoteAddr()).Addr())
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := tcp.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

type clientKey struct{}

// ConnContext adds the client to the context of a connection's requests; see
// [http.Server.ConnContext].
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS is around it
		c = secure.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, clientKey{}, limited.client)
	}
	return ctx
}

// Of returns the client of a request.
func Of(r *http.Request) Client {
	if c, ok := r.Context().Value(clientKey{}).(Client); ok {
		return c
	}
	p, _ := netip.ParseAddrPort(r.RemoteAddr)
	return Address(p.Addr())
}
