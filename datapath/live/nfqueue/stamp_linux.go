package nfqueue

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// StampPackets makes the kernel stamp packets with their arrival time (see [Packet]) until it is
// closed. The kernel stamps all packets of the machine as long as any socket requests it: that
// costs one read of the clock per packet. It takes effect after a short delay
// (net_enable_timestamp in net/core/dev.c leaves it to a worker).
func StampPackets() (io.Closer, error) {
	// Any socket works, also one that receives nothing, but not one of the family unix
	// (sock_needs_netstamp in net/core/sock.c).
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket to have packets stamped: %w", os.NewSyscallError("socket", err))
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMP, 1); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("have packets stamped with the time of their arrival: %w", os.NewSyscallError("setsockopt SO_TIMESTAMP", err))
	}
	return os.NewFile(uintptr(fd), "socket with SO_TIMESTAMP"), nil
}
