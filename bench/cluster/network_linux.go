package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"syscall"
)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ports are those of the control plane, the same for its whole life.
type ports struct{ etcd, peer, api, manager, scheduler uint16 }

// Ports are chosen from this range, which is below the kernel's for outgoing
// connections (net.ipv4.ip_local_port_range) and that of NodePorts, so that none of
// these takes one while its component is down.
const firstPort, lastPort = 20000, 29999

func (c *Cluster) choosePorts() (ports, error) {
	// All are held until the last is found, to get different ones.
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	var chosen [5]uint16
	for port := firstPort + rand.IntN(lastPort-firstPort)/2; port <= lastPort; port++ {
		l, err := c.listen(uint16(port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return ports{}, fmt.Errorf("choosing ports: %w", err)
		}
		chosen[len(held)] = uint16(port)
		held = append(held, l)
		if len(held) == len(chosen) {
			return ports{chosen[0], chosen[1], chosen[2], chosen[3], chosen[4]}, nil
		}
	}
	return ports{}, fmt.Errorf("no free ports up to %d", lastPort)
}

func (c *Cluster) listen(port uint16) (net.Listener, error) {
	at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	if c.config.Namespace != nil {
		return c.config.Namespace.Listen(context.Background(), at)
	}
	return net.Listen("tcp4", at.String())
}

// dial connects from where the control plane runs.
func (c *Cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.config.Namespace == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return c.config.Namespace.Dial(ctx, network, netip.AddrPort{}, to)
}

// spawn starts a process where the control plane runs.
func (c *Cluster) spawn(cmd *exec.Cmd) error {
	if c.config.Namespace != nil {
		return c.config.Namespace.Start(cmd)
	}
	return cmd.Start()
}
