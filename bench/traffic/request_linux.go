package traffic

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Request makes one connection and gives the last byte of the address that answered. All of
// it may take as long as limit. Unlike all else here it may be called in any process:
// the socket does not block, and time limits of sockets, which begin anew after each
// signal that the runtime sends, are not used.
func Request(to netip.AddrPort, limit time.Duration) (byte, error) {
	fd, errno := socket(unix.SOCK_STREAM | unix.SOCK_NONBLOCK)
	if errno != 0 {
		return 0, explain("socket", errno)
	}
	defer closeFD(fd)
	end := time.Now().Add(limit)
	a := sockaddr4(to)
	if errno := connect(fd, &a); errno != 0 && errno != unix.EINPROGRESS {
		return 0, explain("connect", errno)
	}
	if errno := await(fd, unix.POLLOUT, end); errno != 0 {
		return 0, explain("connect", errno)
	}
	b := []byte{askIdentity}
	if _, errno := write(fd, b); errno != 0 {
		return 0, explain("write", errno)
	}
	if errno := await(fd, unix.POLLIN, end); errno != 0 {
		return 0, explain("read", errno)
	}
	if n, errno := read(fd, b); errno != 0 || n != 1 {
		return 0, explain("read", errno)
	}
	return b[0], nil
}

// await waits for an event at a socket. EAGAIN: it did not come in time. What went wrong
// with the connection is an error.
func await(fd int, event int16, end time.Time) syscall.Errno {
	for {
		left := time.Until(end)
		if left <= 0 {
			return unix.EAGAIN
		}
		timeout := unix.NsecToTimespec(left.Nanoseconds())
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: event}}, &timeout, nil)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		var failed int
		if err == nil {
			failed, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return errno
		}
		return syscall.Errno(failed)
	}
}
