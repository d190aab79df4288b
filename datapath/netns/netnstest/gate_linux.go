package netnstest

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Gate tells when the kernel is done with packets. On one CPU (see [netns.OnOneCPU]) it hands packets from
// device to device in the order they came: a marker that is sent behind packets arrives when each of them is a device
// further.
type Gate struct {
	in, out int // packet sockets at both ends of a veth pair
	device  int
	marker  []byte
}

// markerType is an Ethernet type for experiments (IEEE 802): no rule sees its frames.
const markerType = 0x88b5

// NewGate makes a gate of a veth pair: markers go from one end to the other.
func NewGate(from *netns.Namespace, device string, to *netns.Namespace, peer string) (*Gate, error) {
	g := &Gate{in: -1, out: -1}
	err := from.Do(func() (err error) {
		g.in, g.device, err = markerSocket(device, 0)
		return err
	})
	if err == nil {
		err = to.Do(func() (err error) {
			var address net.HardwareAddr
			g.out, _, err = markerSocket(peer, markerType)
			if i, e := net.InterfaceByName(peer); e == nil {
				address = i.HardwareAddr
			}
			g.marker = append(append([]byte(address), 2, 0, 0, 0, 0, 1), markerType>>8, markerType&0xff)
			g.marker = append(g.marker, make([]byte, 46)...)
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gate of %s: %w", device, err), g.Close())
	}
	return g, nil
}

// markerSocket receives frames of a type from a device; 0: none, it sends only.
func markerSocket(device string, typ uint16) (fd, index int, err error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return -1, 0, err
	}
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	return fd, i.Index, errors.Join(
		// A marker comes at once or never: the limit is so that the test ends.
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: typ<<8 | typ>>8, Ifindex: i.Index}),
	)
}

// Pass returns when the kernel has handed all packets that were sent before over that many devices, or was done with
// them earlier.
func (g *Gate) Pass(devices int) error {
	var buffer [128]byte
	for range devices {
		if err := unix.Sendto(g.in, g.marker, 0, &unix.SockaddrLinklayer{Ifindex: g.device}); err != nil {
			return fmt.Errorf("sending a marker: %w", err)
		}
		for {
			_, _, err := unix.Recvfrom(g.out, buffer[:], 0)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("waiting for a marker: %w", err)
			}
		}
	}
	return nil
}

// Close closes the gate's sockets.
func (g *Gate) Close() error {
	var errs []error
	for _, fd := range []int{g.in, g.out} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
