package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A running datapath hands over to another process of the same user: the successor sends handoverRequest and
// receives handoverReady, with the lock of the namespace and the listening socket. From then on the
// predecessor does not touch the rules; the successor adopts them, so that packets go to its own queues,
// and sends handoverDone. The predecessor decides the packets that still wait, and ends. If the successor
// ends before handoverDone, the predecessor repairs the rules and continues.
const (
	handoverRequest = "hand over\n"
	handoverReady   = "ready\n"
	handoverDone    = "done\n"
)

// handoverAddress is an abstract address: there is one in each network namespace. Other users may listen
// at it, too: see ofUser.
const handoverAddress = "@nfqproxy-handover"

// handoverTimeout is how long the rules stay untouched for a successor.
const handoverTimeout = time.Minute

// ErrReplaced is the result of [Engine.Run] after another datapath took over.
var ErrReplaced = errors.New("another nfqproxy has taken over")

// ofUser checks that the process at the other end has the user.
func ofUser(conn *net.UnixConn, user int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if int(peer.Uid) != user {
		return fmt.Errorf("process %d at %s is of user %d, not of user %d", peer.Pid, handoverAddress, peer.Uid, user)
	}
	return nil
}

// sendHandover sends a message with files.
func sendHandover(conn *net.UnixConn, text string, files ...*os.File) error {
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			// Not by Fd, which would make the socket of a listener blocking.
			raw, err := f.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
			}
			if err != nil {
				return err
			}
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix([]byte(text), rights, nil)
	runtime.KeepAlive(files)
	return err
}

// receiveHandover receives a message with n files.
func receiveHandover(conn *net.UnixConn, want string, n int) (files []*os.File, err error) {
	text, rights := make([]byte, len(want)), make([]byte, unix.CmsgSpace(4*n))
	read, length, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:length])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, e := unix.ParseUnixRights(&m)
		err = errors.Join(err, e)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), handoverAddress))
		}
	}
	if err != nil || string(text[:read]) != want || len(files) != n {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, errors.Join(err, fmt.Errorf("received %q with %d files, want %q with %d", text[:read], len(files), want, n))
	}
	return files, nil
}

// successors receives the requests of other processes to take over.
type successors struct {
	listener *net.UnixListener
	lock     *os.File
	user     int // whose processes may take over
	requests chan *successor
	stop     chan struct{}
	log      *slog.Logger
}

// successor is a process that takes over.
type successor struct {
	*successors
	conn *net.UnixConn
	over chan struct{} // closed when its outcome is known
}

// awaitSuccessors receives requests at the listener or, if it is nil, at a new one in the calling thread's network
// namespace. nil: the address is taken.
func awaitSuccessors(listener *net.UnixListener, lock *os.File, log *slog.Logger) *successors {
	if listener == nil {
		var err error
		if listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: handoverAddress, Net: "unixpacket"}); err != nil {
			log.Warn("cannot listen for a nfqproxy that takes over; stop this one before another is started", "error", err)
			return nil
		}
	}
	s := &successors{listener: listener, lock: lock, user: os.Geteuid(), requests: make(chan *successor), stop: make(chan struct{}), log: log}
	go s.run()
	return s
}

// run accepts successors.
func (s *successors) run() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		if err := ofUser(conn, s.user); err != nil {
			s.log.Debug("a request to take over was refused", "error", err)
			_ = conn.Close()
			continue
		}
		go s.serve(conn)
	}
}

// serve waits for the request of one successor: it connects before it confines itself, and sends its
// request when it has a service table. One after the other takes over.
func (s *successors) serve(conn *net.UnixConn) {
	defer conn.Close() //nolint:errcheck // the outcome is known
	if _, err := receiveHandover(conn, handoverRequest, 0); err != nil {
		s.log.Debug("a process that was to take over has ended", "error", err)
		return
	}
	next := &successor{successors: s, conn: conn, over: make(chan struct{})}
	select {
	case s.requests <- next:
		<-next.over
	case <-s.stop:
	}
}

// close ends run, and lets waiting successors fail.
func (s *successors) close() error {
	if s == nil {
		return nil
	}
	close(s.stop)
	return s.listener.Close()
}

// proceed lets the successor change the rules. The channel has an error if it did not.
func (n *successor) proceed() <-chan error {
	outcome := make(chan error, 1)
	go func() {
		_ = n.conn.SetDeadline(time.Now().Add(handoverTimeout))
		listener, err := n.listener.File()
		if err == nil {
			err = sendHandover(n.conn, handoverReady, n.lock, listener)
			_ = listener.Close()
		}
		if err == nil {
			_, err = receiveHandover(n.conn, handoverDone, 0)
		}
		outcome <- err
	}()
	return outcome
}

// Predecessor is another process's datapath that this process can take over.
type Predecessor struct {
	conn     *net.UnixConn
	lock     *os.File
	listener *net.UnixListener
}

// connectToPredecessor connects to the running datapath of the calling thread's network namespace.
func connectToPredecessor() (*Predecessor, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: handoverAddress, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("take over from the running nfqproxy: %w (has it another version?)", err)
	}
	if err := ofUser(conn, os.Geteuid()); err != nil {
		return nil, errors.Join(fmt.Errorf("take over from the running nfqproxy: %w", err), conn.Close())
	}
	return &Predecessor{conn: conn}, nil
}

// takeOver has the running datapath leave its rules alone. After an error the connection is closed.
func (p *Predecessor) takeOver() error {
	_ = p.conn.SetDeadline(time.Now().Add(handoverTimeout))
	var files []*os.File
	err := sendHandover(p.conn, handoverRequest)
	if err == nil {
		files, err = receiveHandover(p.conn, handoverReady, 2)
	}
	if err == nil {
		p.lock = files[0]
		var l net.Listener
		l, err = net.FileListener(files[1])
		_ = files[1].Close()
		p.listener, _ = l.(*net.UnixListener)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("take over from the running nfqproxy: %w", err), p.Close())
	}
	return nil
}

// finish ends the running datapath, now that its rules are ours.
func (p *Predecessor) finish() error {
	return errors.Join(sendHandover(p.conn, handoverDone), p.conn.Close())
}

// Close gives up: the running datapath continues.
func (p *Predecessor) Close() error {
	err := p.conn.Close()
	if p.lock != nil {
		err = errors.Join(err, p.lock.Close())
	}
	if p.listener != nil {
		p.listener.SetUnlinkOnClose(false)
		err = errors.Join(err, p.listener.Close())
	}
	return err
}
