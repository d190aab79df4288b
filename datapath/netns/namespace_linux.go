package netns

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. It lives until it is closed and the last
// process and socket in it are gone. Its methods may be called concurrently.
type Namespace struct {
	name   string
	file   *os.File
	links  *netlink.Handle
	view   view
	closed chan struct{}
	close  sync.Once
}

// New makes a network namespace with lo up. The name is for messages only.
func New(name string) (*Namespace, error) {
	var file *os.File
	err := onThread(func() (keep bool, err error) {
		// The thread belongs to the new namespace now and is not used again.
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return false, os.NewSyscallError("unshare", err)
		}
		file, err = openCurrent()
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	return open(name, file)
}

// Current is the network namespace of this process, with lo up: inside an [Isolation], one of
// its own. The name is for messages only. Close does not end it.
func Current(name string) (*Namespace, error) {
	// Not that of this thread, which may be in another one.
	file, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	return open(name, file)
}

func open(name string, file *os.File) (*Namespace, error) {
	links, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	n := &Namespace{name: name, file: file, links: links, closed: make(chan struct{})}
	if err := n.prepare(); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// prepare brings lo up and turns duplicate address detection off: it would keep
// link-local addresses, and with them neighbour discovery, waiting for a second.
func (n *Namespace) prepare() error {
	for _, name := range []string{"net.ipv6.conf.all.accept_dad", "net.ipv6.conf.default.accept_dad"} {
		// A kernel without IPv6 has no such setting and does not need it.
		if err := n.SetSysctl(name, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return n.SetUp("lo")
}

// Name is the name given to New.
func (n *Namespace) Name() string { return n.name }

// FD is a file descriptor of the namespace, for setns and for netlink sockets.
// It is valid until Close.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Close closes the namespace. Processes started with a parent-death signal get it now. It is
// safe to call Close more than once.
func (n *Namespace) Close() error {
	var err error
	n.close.Do(func() {
		close(n.closed)
		n.links.Close()
		err = errors.Join(n.file.Close(), n.view.close())
	})
	return err
}

// Do calls f on a thread that is in the namespace. Goroutines that f starts are
// not. Sockets that f makes stay in the namespace for good.
func (n *Namespace) Do(f func() error) error {
	var result error
	err := onThread(func() (keep bool, err error) {
		before, err := openCurrent()
		if err != nil {
			return true, err
		}
		defer before.Close()
		if err := n.enter(); err != nil {
			return true, err
		}
		result = f()
		// A thread that cannot return to its namespace is discarded.
		return unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil, nil
	})
	return cmp.Or(err, result)
}

// Start starts a process in the namespace, with a /sys that shows its devices and the
// hostname and files of [Namespace.SetIdentity]. In a user namespace with one user, system calls that change the user succeed without
// effect. A parent-death signal in cmd.SysProcAttr is sent at Close or at the end of
// this process, whichever comes first, not at the end of the calling thread.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	go func() {
		_ = onThread(func() (keep bool, err error) {
			err = n.start(cmd)
			result <- err
			if err == nil && cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
				<-n.closed // the signal is tied to this thread
			}
			return false, nil
		})
	}()
	return <-result
}

// Run runs a program in the namespace, with the input as its standard input, and returns
// its output. The error includes its standard error.
func (n *Namespace) Run(input, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func (n *Namespace) start(cmd *exec.Cmd) error {
	if err := n.enter(); err != nil {
		return err
	}
	shared, err := n.view.openNamed()
	if err != nil {
		return fmt.Errorf("namespace %s: %w", n.name, err)
	}
	// The mounts of a process are those of the thread that starts it.
	err = unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	}
	if err == nil {
		// Fails where the outer /sys is masked: then that one stays.
		_ = unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if err := n.view.enter(); err != nil {
			return fmt.Errorf("namespace %s: %w", n.name, err)
		}
	}
	if shared >= 0 {
		if err := mountNamed(shared); err != nil {
			return fmt.Errorf("namespace %s: %w", n.name, err)
		}
	}
	if oneUser() {
		// Without seccomp, only programs that change users fail.
		_ = pretendUsers()
	}
	return cmd.Start()
}

// enter moves the calling thread to the namespace. The file cannot be closed meanwhile: its
// number might already be reused.
func (n *Namespace) enter() error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("namespace %s: %w", n.name, err)
	}
	if raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setns", unix.Setns(int(fd), unix.CLONE_NEWNET))
	}) != nil {
		err = os.ErrClosed // the only possible error
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", n.name, err)
	}
	return nil
}

// Listen listens for TCP connections at an address of the namespace.
func (n *Namespace) Listen(ctx context.Context, at netip.AddrPort) (l net.Listener, err error) {
	// Without Multipath TCP, Go's default for listeners: its handshake would obscure packet
	// captures.
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	err = n.Do(func() error {
		l, err = c.Listen(ctx, "tcp", at.String())
		return err
	})
	return l, err
}

// ListenPacket opens a UDP socket at an address of the namespace.
func (n *Namespace) ListenPacket(ctx context.Context, at netip.AddrPort) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = new(net.ListenConfig).ListenPacket(ctx, "udp", at.String())
		return err
	})
	return c, err
}

// Dial connects from the namespace over "tcp" or "udp". from may be the zero
// AddrPort, or leave only the address or only the port to the kernel.
func (n *Namespace) Dial(ctx context.Context, network string, from, to netip.AddrPort) (c net.Conn, err error) {
	// Addresses, no names: net resolves names on threads of other namespaces.
	var d net.Dialer
	d.SetMultipathTCP(false)
	if from.IsValid() {
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
	}
	err = n.Do(func() error {
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}

// openCurrent opens the network namespace of the calling thread.
func openCurrent() (*os.File, error) {
	return os.Open("/proc/thread-self/ns/net")
}

// onThread runs f on a thread of its own. Unless f returns keep, for a thread in its former
// state, the thread ends with it.
func onThread(f func() (keep bool, err error)) error {
	result := make(chan error, 1)
	go func() {
		// The result if f ends the goroutine, as testing's FailNow does.
		err := errors.New("the function did not return")
		defer func() { result <- err }()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread must not end: /proc/self shows its state. While it waits
			// here, locked, the next goroutine gets another thread.
			err = onThread(f)
			runtime.UnlockOSThread()
			return
		}
		keep, ferr := f()
		if keep {
			runtime.UnlockOSThread()
		}
		err = ferr
	}()
	return <-result
}
