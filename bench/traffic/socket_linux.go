package traffic

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Env are environment variables for processes that use this package: without them the
// runtime interrupts threads that do not come by its scheduler, and system calls with
// a timeout are not taken up again.
var Env = []string{"GODEBUG=asyncpreemptoff=1"}

// Tune prepares the process for a number of threads in blocking system calls, each of
// which keeps a P of the scheduler. The garbage collector, which would wait for them,
// is turned off.
func Tune(threads int) {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(threads + 4)
}

// sockaddr4 is struct sockaddr_in.
func sockaddr4(a netip.AddrPort) unix.RawSockaddrInet4 {
	s := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
	setPort(&s, a.Port())
	return s
}

func setPort(s *unix.RawSockaddrInet4, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&s.Port))[:], port)
}

// The raw calls below are those of package unix without a notice to Go's scheduler. Those
// that wait are made again after a signal, which the kernel does not do by itself where
// there is a time limit; a connect that is made again goes on waiting.

func socket(kind int) (int, syscall.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, uintptr(kind|unix.SOCK_CLOEXEC), 0)
	return int(fd), errno
}

func setOption(fd, level, name int, value unsafe.Pointer, size uintptr) syscall.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), size, 0)
	return errno
}

func setInt(fd, level, name int, value int32) syscall.Errno {
	return setOption(fd, level, name, unsafe.Pointer(&value), unsafe.Sizeof(value))
}

// setTimeout bounds connects, sends and receives.
func setTimeout(fd int, d time.Duration) syscall.Errno {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	if errno := setOption(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, unsafe.Pointer(&tv), unsafe.Sizeof(tv)); errno != 0 {
		return errno
	}
	return setOption(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, unsafe.Pointer(&tv), unsafe.Sizeof(tv))
}

func bind(fd int, a *unix.RawSockaddrInet4) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	return errno
}

func connect(fd int, a *unix.RawSockaddrInet4) syscall.Errno {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
		if errno != unix.EINTR {
			return errno
		}
	}
}

func listen(fd int) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_LISTEN, uintptr(fd), 4096, 0)
	return errno
}

//go:nosplit
func accept(fd int) (int, syscall.Errno) {
	for {
		c, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
		if errno != unix.EINTR {
			return int(c), errno
		}
	}
}

// localAddress gives the last byte of a socket's own address.
//
//go:nosplit
func localAddress(fd int) (byte, syscall.Errno) {
	var a unix.RawSockaddrInet4
	size := uint32(unsafe.Sizeof(a))
	_, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&size)))
	return a.Addr[3], errno
}

//go:nosplit
func read(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

//go:nosplit
func write(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

//go:nosplit
func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

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
