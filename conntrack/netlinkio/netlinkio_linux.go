// Package netlinkio writes to netlink sockets and reads from them with as few and as cheap system
// calls as possible. Package netlink opens and configures the sockets; this package is for the few
// sockets that every new flow uses.
//
// The package avoids two parts of Go's runtime. The runtime's poller wakes a thread for every
// datagram that arrives at a registered socket, even if no goroutine waits for it: [Take] removes
// the socket from the poller. System calls bypass the scheduler (RawSyscall), except in
// [Socket.Wait]: a goroutine in a normal system call of more than 20 µs loses its processor to
// another goroutine and has to queue for one when the call ends (runtime/proc.go, retake). Most
// calls that send verdicts take that long, because each verdict carries its packet through the
// network stack. A raw system call delays a stop-the-world, so none of them sleeps, or takes more
// than about a millisecond.
//
// It is a ground package.
package netlinkio

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket that Go's poller does not know. Any goroutine may use it or close it.
type Socket struct {
	fd uintptr
	// use is held while fd is used: the number must not become another file's.
	use    sync.RWMutex
	closed bool
}

// Conn is the part of netlink.Conn that this package uses.
type Conn interface {
	SyscallConn() (syscall.RawConn, error)
	Close() error
}

// Take takes the socket from a connection, with all options and bindings, and closes the
// connection in every case. A goroutine that receives from the connection fails.
func Take(conn Conn) (*Socket, error) {
	fd := -1
	raw, err := conn.SyscallConn()
	if err == nil {
		e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, e)
	}
	// The poller knows the old descriptor only, and forgets it now.
	err = errors.Join(err, conn.Close())
	if err == nil {
		// For Wait. Both descriptors share one open file, so it becomes blocking only after the
		// old one is closed: a goroutine that received from the old one would sleep, and Close
		// would wait for ever.
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("take over netlink socket: %w", err)
	}
	return &Socket{fd: uintptr(fd)}, nil
}

// Close closes the socket. It waits until other goroutines have finished their calls, so none may
// be in [Socket.Wait]; see [Socket.CloseWaiting].
func (s *Socket) Close() error {
	s.use.Lock()
	defer s.use.Unlock()
	return s.close()
}

// File returns a duplicate of the socket: bindings last until both are closed.
func (s *Socket) File() (*os.File, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	fd, err := unix.FcntlInt(s.fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// The time for a waiting goroutine to return after one wake, and after all of them.
const (
	wakeAgain  = 10 * time.Millisecond
	wakeGiveUp = 5 * time.Second
)

// CloseWaiting is Close for a socket in which a goroutine may be in [Socket.Wait] that will not
// call it again. wake makes the kernel send a message to the socket, which ends the wait. One wake
// may be lost for lack of memory, so it is repeated. If all are lost, the socket stays open and
// CloseWaiting returns an error instead of waiting for ever.
func (s *Socket) CloseWaiting(wake func() error) error {
	return s.closeWaiting(wake, wakeGiveUp)
}

func (s *Socket) closeWaiting(wake func() error, giveUp time.Duration) error {
	for start := time.Now(); ; {
		err := wake()
		for pause := time.Now(); time.Since(pause) < wakeAgain; time.Sleep(wakeAgain / 100) {
			if s.use.TryLock() {
				defer s.use.Unlock()
				return s.close()
			}
		}
		if errors.Is(err, os.ErrClosed) {
			return err
		}
		if time.Since(start) > giveUp {
			return errors.Join(errors.New("close netlink socket: a goroutine still waits for a datagram and cannot be woken"), err)
		}
	}
}

// close closes the socket. The caller holds use.
func (s *Socket) close() error {
	if s.closed {
		return os.ErrClosed
	}
	s.closed = true
	return os.NewSyscallError("close", unix.Close(int(s.fd)))
}

// Write writes one datagram. Netlink is synchronous: when Write returns, the kernel has processed
// the requests and the replies are in the receive buffer. The error is [os.ErrClosed] or an
// *os.SyscallError.
func (s *Socket) Write(datagram []byte) error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return os.ErrClosed
	}
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_WRITE, s.fd, uintptr(unsafe.Pointer(unsafe.SliceData(datagram))), uintptr(len(datagram)))
		if errno != unix.EINTR {
			return sysError("write", errno)
		}
	}
}

// SetMember joins or leaves a multicast group. Leaving a group of which it is no member does
// nothing. Errors are those of Write.
func (s *Socket) SetMember(group int, member bool) error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return os.ErrClosed
	}
	option := unix.NETLINK_DROP_MEMBERSHIP
	if member {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(s.fd), unix.SOL_NETLINK, option, group))
}

// Buffers receive datagrams, several with one system call. They belong to one goroutine.
type Buffers struct {
	memory  [][]byte
	headers []header // which point to vectors
	vectors []unix.Iovec
}

// header is struct mmsghdr.
type header struct {
	msg unix.Msghdr
	len uint32
}

// NewBuffers makes count buffers of size bytes. Longer datagrams are cut off.
func NewBuffers(count, size int) *Buffers {
	b := &Buffers{make([][]byte, count), make([]header, count), make([]unix.Iovec, count)}
	for i := range count {
		b.memory[i] = make([]byte, size)
		b.vectors[i].Base = &b.memory[i][0]
		b.vectors[i].SetLen(size)
		b.headers[i].msg.Iov = &b.vectors[i]
		b.headers[i].msg.SetIovlen(1)
	}
	return b
}

// Datagram returns a datagram of the last call. It is valid until the next call.
func (b *Buffers) Datagram(i int) []byte { return b.memory[i][:b.headers[i].len] }

// Poll receives the waiting datagrams, at most as many as there are buffers and at most limit. If
// it returns fewer, there are no more. Errors are those of Write.
func (s *Socket) Poll(into *Buffers, limit int) (n int, err error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return 0, os.ErrClosed
	}
	for {
		// The kernel does not change the headers of unused buffers, so they need no reset.
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, s.fd, uintptr(unsafe.Pointer(&into.headers[0])), uintptr(into.room(limit)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return 0, nil
		case unix.EINTR:
		default:
			return 0, sysError("recvmmsg", errno)
		}
	}
}

// Wait is Poll, but waits if there is no datagram. It returns none if it is interrupted.
func (s *Socket) Wait(into *Buffers, limit int) (n int, err error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return 0, os.ErrClosed
	}
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, s.fd, uintptr(unsafe.Pointer(&into.headers[0])), uintptr(into.room(limit)), unix.MSG_WAITFORONE, 0, 0)
	switch errno {
	case 0:
		return int(r), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, sysError("recvmmsg", errno)
}

func (b *Buffers) room(limit int) int { return min(limit, len(b.headers)) }

// sysError is os.NewSyscallError without an allocation where there is no error.
func sysError(call string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, errno)
}
