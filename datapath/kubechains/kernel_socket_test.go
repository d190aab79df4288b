//go:build linux

package kubechains

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// packetSocket sends and captures IP packets on a device, below the IP stack.
type packetSocket struct {
	fd     int
	device int // its index; 0: all devices, for capturing only
	buffer []byte
}

func openPacketSocket(ns *netns.Namespace, device string) (*packetSocket, error) {
	s := &packetSocket{buffer: make([]byte, 1<<16)}
	err := ns.Do(func() error {
		if device != "" {
			i, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			s.device = i.Index
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.fd = fd
		// What the socket waits for either comes at once or never: the limit is so that
		// the test ends.
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: s.device})
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket on %q in %s: %w", device, ns.Name(), err)
	}
	return s, nil
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }

// nodeMAC is the Ethernet address of all the node's interfaces. (A router does not
// forward what comes to the broadcast address.)
var nodeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// transmit sends a packet to the node's interface at the other end of the device.
func (s *packetSocket) transmit(ip []byte) error {
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_IP), Ifindex: s.device, Halen: 6}
	if ip[0]>>4 == 6 {
		to.Protocol = networkOrder(unix.ETH_P_IPV6)
	}
	copy(to.Addr[:], nodeMAC)
	return unix.Sendto(s.fd, ip, 0, to)
}

// receive gives the next packet; it is valid until the next call.
func (s *packetSocket) receive(flags int) ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, flags)
		if err != unix.EINTR {
			return s.buffer[:max(n, 0)], err
		}
	}
}
