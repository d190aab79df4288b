package traffic

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// First bytes of a TCP connection.
const (
	askIdentity = 'w' // answered with the last byte of the address that was reached
	sink        = 's' // answered likewise; then everything is read until the end
)

// EchoThreads is how many threads [Echo] uses.
const EchoThreads = 2 * echoThreads

// As many connections are served at once; one that is a sink keeps its thread.
const echoThreads = 32

// Echo answers TCP connections and UDP datagrams at a port of all local IPv4
// addresses with the last byte of the address they came to. It calls ready when both
// are open, and returns only if something fails.
func Echo(port uint16, ready func()) error {
	any4 := sockaddr4(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	tcp, errno := socket(unix.SOCK_STREAM)
	if errno == 0 {
		errno = setInt(tcp, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if errno == 0 {
		errno = bind(tcp, &any4)
	}
	if errno == 0 {
		errno = listen(tcp)
	}
	if errno != 0 {
		return fmt.Errorf("listen on TCP port %d: %w", port, errno)
	}
	udp, errno := socket(unix.SOCK_DGRAM)
	if errno == 0 {
		errno = setInt(udp, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if errno == 0 {
		errno = setInt(udp, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	if errno == 0 {
		errno = bind(udp, &any4)
	}
	if errno != 0 {
		return fmt.Errorf("listen on UDP port %d: %w", port, errno)
	}
	ended := make(chan error, EchoThreads)
	for range echoThreads {
		go func() { ended <- answerTCP(tcp) }()
		go func() { ended <- answerUDP(udp) }()
	}
	ready()
	return <-ended
}

func answerTCP(listener int) error {
	runtime.LockOSThread()
	small, large := make([]byte, 1), make([]byte, 1<<20)
	for {
		fd, errno := accept(listener)
		switch errno {
		case 0:
		case unix.ECONNABORTED:
			continue
		default:
			return fmt.Errorf("accept: %w", errno)
		}
		answerConnection(fd, small, large)
		closeFD(fd)
	}
}

// answerConnection ends with the connection, whatever its end. Like all that it calls it is nosplit: Go's scheduler, which takes
// a thread in a raw system call for a busy one, could interrupt it only where a function checks its stack.
//
//go:nosplit
func answerConnection(fd int, small, large []byte) {
	who, errno := localAddress(fd)
	if errno != 0 {
		return
	}
	if n, _ := read(fd, small); n != 1 {
		return
	}
	rest := small
	if small[0] == sink {
		rest = large
	}
	small[0] = who
	if _, errno := write(fd, small); errno != 0 {
		return
	}
	for {
		if n, errno := read(fd, rest); errno != 0 || n <= 0 {
			return
		}
	}
}

// answerUDP sends each answer from the address that the datagram came to: its packet
// information is sent back as it was received.
func answerUDP(fd int) error {
	runtime.LockOSThread()
	var (
		from    unix.RawSockaddrInet4
		data    [64]byte
		control [64]byte
		vector  = unix.Iovec{Base: &data[0]}
		message unix.Msghdr
	)
	const headerLen = unix.SizeofCmsghdr // what follows is aligned as it is
	for {
		vector.SetLen(len(data))
		message = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&from)), Namelen: uint32(unsafe.Sizeof(from)), Iov: &vector, Iovlen: 1, Control: &control[0]}
		message.SetControllen(len(control))
		n, errno := messageCall(unix.SYS_RECVMSG, fd, &message)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return fmt.Errorf("receive datagram: %w", errno)
		}
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		if n < 1 || message.Controllen < headerLen+unix.SizeofInet4Pktinfo || header.Type != unix.IP_PKTINFO {
			continue
		}
		info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&control[headerLen]))
		info.Spec_dst = info.Addr
		data[0] = info.Addr[3]
		vector.SetLen(1)
		// The client notices a reply that cannot be sent.
		_, _ = messageCall(unix.SYS_SENDMSG, fd, &message)
	}
}

//go:nosplit
func messageCall(call uintptr, fd int, m *unix.Msghdr) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(m)), 0)
	return int(n), errno
}
