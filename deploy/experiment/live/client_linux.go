package live

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// request is what a client does.
type request struct {
	*traffic.Flow
	counted  bool
	giveUp   time.Duration
	answered func(after time.Duration) // is called with the time from the SYN to the first reply
}

// outcome is what came of a flow.
type outcome struct {
	ended      ending
	answered   bool
	endpoint   int           // that answered; valid iff answered
	response   time.Duration // from the SYN to the end of the work; 0: it did not end
	incomplete error         // the client could not do it, or was interrupted; others are not valid
}

type ending uint8

const (
	complete ending = iota
	refusedFlow
	unanswered
	broken
)

// sockets makes the sockets of a pod's clients, on a thread that stays in the pod's namespace.
type sockets struct{ requests chan<- socketRequest }

type socketRequest struct {
	from, to netip.AddrPort
	made     chan<- socket
}

type socket struct {
	fd  int
	err error
}

// openSockets starts the thread. It ends when the context does, with all requests that were made before.
func openSockets(ctx context.Context, ns *netns.Namespace) *sockets {
	requests := make(chan socketRequest)
	go func() {
		_ = ns.Do(func() error {
			for {
				select {
				case r := <-requests:
					r.made <- connect(r.from, r.to)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}()
	return &sockets{requests}
}

// options are those of clients' sockets. Keepalives find connections that no endpoint has any more, while a client
// waits: one a second.
var options = []struct{ level, option, value int }{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 5},
}

// connect begins a connection.
func connect(from, to netip.AddrPort) socket {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return socket{err: os.NewSyscallError("socket", err)}
	}
	s := socket{fd: fd}
	local := &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}
	remote := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	for _, o := range options {
		err = errors.Join(err, unix.SetsockoptInt(fd, o.level, o.option, o.value))
	}
	if err == nil {
		err = unix.Bind(fd, local)
	}
	if err == nil {
		err = unix.Connect(fd, remote)
	}
	// An earlier connection of the client has the port: the kernel selects another one.
	if (errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL)) && local.Port != 0 {
		_ = unix.Close(fd)
		return connect(netip.AddrPortFrom(from.Addr(), 0), to)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return socket{err: os.NewSyscallError("connect", err)}
	}
	return s
}

// do has a client make a connection, and everything that follows.
func (s *sockets) do(ctx context.Context, from, to netip.AddrPort, q request) outcome {
	made := make(chan socket, 1)
	begin := time.Now()
	select {
	case s.requests <- socketRequest{from, to, made}:
	case <-ctx.Done():
		return outcome{incomplete: ctx.Err()}
	}
	sock := <-made
	if sock.err != nil {
		if errors.Is(sock.err, unix.ECONNREFUSED) || errors.Is(sock.err, unix.EHOSTUNREACH) || errors.Is(sock.err, unix.ENETUNREACH) {
			return outcome{ended: refusedFlow}
		}
		return outcome{incomplete: sock.err}
	}
	c := os.NewFile(uintptr(sock.fd), "connection")
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	o := exchange(ctx, c, begin, q)
	if ctx.Err() != nil && o.ended != complete {
		o.incomplete = ctx.Err()
	}
	return o
}

// exchange is a connection from the SYN to its end.
func exchange(ctx context.Context, c *os.File, begin time.Time, q request) (o outcome) {
	_ = c.SetWriteDeadline(begin.Add(q.giveUp))
	switch err := established(c); {
	case errors.Is(err, unix.ECONNREFUSED):
		o.ended = refusedFlow
		return o
	case err != nil:
		o.ended = unanswered
		return o
	}
	_ = c.SetWriteDeadline(time.Time{})
	message := binary.BigEndian.AppendUint64(nil, uint64(q.Work))
	message = append(message, 0)
	if q.counted {
		message[8] = 1
	}
	o.ended = broken
	if _, err := c.Write(message); err != nil {
		return o
	}
	var answer [answerSize]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return o
	}
	if answer[0] == refused {
		o.ended = refusedFlow
		return o
	}
	o.answered = true
	q.answered(time.Since(begin))
	o.endpoint = int(binary.BigEndian.Uint16(answer[1:]))
	if _, err := io.ReadFull(c, answer[:1]); err != nil {
		return o
	}
	o.response, o.ended = time.Since(begin), complete
	if q.Idle > 0 {
		// A connection that is reset meanwhile has done its work.
		_ = c.SetReadDeadline(time.Now().Add(q.Idle))
		if ctx.Err() != nil { // the deadline of its end is overwritten
			return o
		}
		if _, err := c.Read(answer[:1]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			o.ended = broken
		}
	}
	return o
}

// established waits until the connection is established.
func established(c *os.File) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			failed = err
			return true
		}
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	return errors.Join(err, failed)
}
