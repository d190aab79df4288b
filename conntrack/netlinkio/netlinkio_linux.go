// Package netlinkio writes to netlink sockets and reads from them with as few and as
// cheap system calls as there are. Go-netlink's sockets are opened and configured by
// package netlink; this is for the few places that run for every new flow.
//
// All but [Buffers.Wait] go past Go's scheduler (RawSyscall). A system call that it is
// told of and that takes more than 20 µs loses its processor to whoever else wants one,
// and has to queue for another when it ends (runtime/proc.go, retake): with verdicts,
// which carry their packets all the way through the network stack, that is most of them,
// and costs more than what this program does itself. What is not told of keeps a
// stop-the-world waiting: so nothing here may sleep, or take more than a millisecond
// or so.
package netlinkio

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Write writes one datagram. Netlink is synchronous: what it asks for has been done, and
// the answers are there, when Write returns. The error is an *os.SyscallError.
func Write(fd uintptr, datagram []byte) error {
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(datagram))), uintptr(len(datagram)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("write", errno)
		}
	}
}

// Buffers receive datagrams, several with one system call. They belong to one goroutine.
type Buffers struct {
	memory  [][]byte
	headers []header // that point to vectors
	vectors []unix.Iovec
}

// header is struct mmsghdr.
type header struct {
	msg unix.Msghdr
	len uint32
}

// NewBuffers makes count buffers of size bytes. Of a longer datagram the rest is lost.
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

// Datagram gives what the last call received. It is valid until the next one.
func (b *Buffers) Datagram(i int) []byte { return b.memory[i][:b.headers[i].len] }

// Poll receives the datagrams that are there, at most as many as there are buffers and at
// most limit. If it gives fewer, there are no more. The error is an *os.SyscallError.
func (b *Buffers) Poll(fd uintptr, limit int) (n int, err error) {
	for {
		// The kernel does not touch what it is not given back, so nothing is to be set anew.
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.headers[0])), uintptr(min(limit, len(b.headers))), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return result(n, errno)
		}
	}
}

// Wait is Poll, but where there is no datagram it waits for one, in a blocking socket. It
// gives none if something interrupts it.
func (b *Buffers) Wait(fd uintptr, limit int) (n int, err error) {
	r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.headers[0])), uintptr(min(limit, len(b.headers))), unix.MSG_WAITFORONE, 0, 0)
	return result(r, errno)
}

func result(n uintptr, errno syscall.Errno) (int, error) {
	switch errno {
	case 0:
		return int(n), nil
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	}
	return 0, os.NewSyscallError("recvmmsg", errno)
}
