//go:build linux

package diagnose_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// origin is where a flow comes from.
type origin int

// The origins. There are two pods.
const (
	fromPod origin = iota
	fromOtherPod
	fromNode
	fromOutside
	origins
)

func (o origin) String() string {
	return [...]string{"pod 1", "pod 2", "the node", "outside"}[o]
}

// flow is a TCP connection, or a UDP datagram and its answer.
type flow struct {
	service *decision.ServicePort
	origin  origin
	source  netip.AddrPort // invalid: the kernel chooses
	to      netip.AddrPort
	want    bool // an answer, as the services say
	why     string

	fd       int
	answered bool
	err      error // the client's
}

func (f *flow) String() string {
	return fmt.Sprintf("%s %s from %s to %s (%s)", f.service.Name, f.service.Protocol, f.origin, f.to, f.why)
}

// server is a socket that answers.
type server struct {
	fd       int
	protocol decision.Protocol
}

// endpointPorts are those that all servers listen at.
var endpointPorts = []uint16{53, 8080, 8443}

// serve opens the sockets of all endpoints.
func (n *network) serve(t testing.TB) {
	t.Helper()
	for _, s := range []struct {
		ns        *netns.Namespace
		addresses []netip.Addr
	}{
		{n.pods[0], n.plan.pods[:1]}, {n.pods[1], n.plan.pods[1:]}, {n.node, []netip.Addr{n.plan.node}},
		{n.remote, []netip.Addr{n.otherNode, n.remotePods[0], n.remotePods[1]}},
	} {
		check(t, s.ns.Do(func() error {
			for _, a := range s.addresses {
				for _, port := range endpointPorts {
					for _, protocol := range []decision.Protocol{decision.TCP, decision.UDP} {
						fd, err := socket(protocol, netip.AddrPortFrom(a, port))
						if err == nil && protocol == decision.TCP {
							err = unix.Listen(fd, 512)
						}
						if err != nil {
							return fmt.Errorf("server at %s port %d: %w", a, port, err)
						}
						t.Cleanup(func() { _ = unix.Close(fd) })
						n.servers = append(n.servers, server{fd, protocol})
					}
				}
			}
			return nil
		}))
	}
}

// socket opens a socket that is bound to an address, if that is valid.
func socket(protocol decision.Protocol, at netip.AddrPort) (int, error) {
	typ := unix.SOCK_DGRAM
	if protocol == decision.TCP {
		typ = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil || !at.IsValid() {
		return fd, err
	}
	if at.Port() == 0 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	return fd, errors.Join(err, unix.Bind(fd, sockaddr(at)))
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// batch is how many flows are under way at once: fewer than a device's queue takes.
const batch = 100

// hops is how many devices packets of a flow and of its answer pass at most: with those of a refused packet, and of
// acknowledgements.
const hops = 24

// try begins the flows and finds out which are answered. It does not wait: on one CPU the kernel is done with a packet
// when a marker behind it has passed.
func (n *network) try(flows []*flow) error {
	defer func() {
		for _, f := range flows {
			if f.fd >= 0 {
				// A connection ends at once, without a state that would stay.
				_ = unix.SetsockoptLinger(f.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
				_ = unix.Close(f.fd)
			}
		}
	}()
	places := [origins]*netns.Namespace{n.pods[0], n.pods[1], n.node, n.remote}
	for o, ns := range places {
		if err := ns.Do(func() (err error) {
			for _, f := range flows {
				if f.origin == origin(o) && err == nil {
					f.fd, err = socket(f.service.Protocol, f.source)
				}
			}
			return err
		}); err != nil {
			return fmt.Errorf("opening sockets: %w", err)
		}
	}
	return netns.OnOneCPU(func() error {
		for first := 0; first < len(flows); first += batch {
			some := flows[first:min(first+batch, len(flows))]
			for _, f := range some {
				f.begin()
			}
			if err := n.gate.Pass(hops); err != nil {
				return err
			}
			if err := n.answer(); err != nil {
				return err
			}
			if err := n.gate.Pass(hops); err != nil {
				return err
			}
			for _, f := range some {
				f.end()
			}
		}
		return nil
	})
}

// begin sends the first packet.
func (f *flow) begin() {
	f.err = unix.Connect(f.fd, sockaddr(f.to))
	if f.err == nil && f.service.Protocol == decision.UDP {
		_, f.err = unix.Write(f.fd, []byte("request"))
	}
}

// end looks whether there was an answer.
func (f *flow) end() {
	if f.service.Protocol == decision.UDP {
		var buffer [16]byte
		if _, err := unix.Read(f.fd, buffer[:]); err == nil {
			f.answered = true
		} else if f.err == nil {
			f.err = err
		}
		return
	}
	if code, err := unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
		f.err = unix.Errno(code)
	}
	_, err := unix.Getpeername(f.fd)
	f.answered = err == nil
}

// answer has the servers answer what came. The kernel itself has answered connections.
func (n *network) answer() error {
	var buffer [64]byte
	for _, s := range n.servers {
		for {
			var err error
			if s.protocol == decision.TCP {
				var fd int
				if fd, _, err = unix.Accept4(s.fd, unix.SOCK_CLOEXEC); err == nil {
					_ = unix.Close(fd)
				}
			} else {
				var client unix.Sockaddr
				var length int
				if length, client, err = unix.Recvfrom(s.fd, buffer[:], 0); err == nil {
					// An error is one of the way back: the client gets no answer.
					_ = unix.Sendto(s.fd, buffer[:length], 0, client)
				}
			}
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			// Others are ICMP errors about earlier answers.
			if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("a server: %w", err)
			}
		}
	}
	return nil
}

// due reports whether the flow should be answered: the services say so, or its service lacks endpoints, which is a fault.
func (f *flow) due() bool { return f.want || !f.service.HasEndpoints }
