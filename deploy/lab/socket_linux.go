package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// A running lab is found by an abstract socket: its name is in no file system and disappears
// with its last holder. It is in the network namespace that the lab was started from.
const socketPrefix = "@nfqproxy-lab-"

// insideSocket is where a lab is found from its hosts, which are in other network namespaces: in the lab's own /run.
const insideSocket = "/run/nfqproxy-lab.sock"

func socketName(uid int, lab string) string {
	return fmt.Sprintf("%s%d-%s", socketPrefix, uid, lab)
}

// NotRunningError is the error for a lab that is not running.
type NotRunningError struct {
	Lab     string   // empty: none was named
	Running []string // running labs of this user
	Others  []string // "lab (user uid)"
}

// Error lists the running labs.
func (e *NotRunningError) Error() string {
	var s string
	switch {
	case e.Lab == "" && len(e.Running) > 1:
		s = "several labs are running; choose one with --lab: " + strings.Join(e.Running, ", ")
	case e.Lab == "":
		s = "no lab is running; start one: nfqproxy lab up kind"
	case len(e.Running) > 0:
		s = fmt.Sprintf("lab %s is not running; running labs: %s%s", e.Lab, strings.Join(e.Running, ", "), nearest.Hint(e.Lab, e.Running))
	case slices.Contains(labs.Names(), e.Lab):
		s = fmt.Sprintf("lab %s is not running; start it: nfqproxy lab up %[1]s", e.Lab)
	default:
		s = fmt.Sprintf("lab %s is not running%s; start a lab: nfqproxy lab up FILE", e.Lab, nearest.Hint(e.Lab, labs.Names()))
	}
	if len(e.Others) > 0 {
		s += " (running for other users: " + strings.Join(e.Others, ", ") + ")"
	}
	return s
}

// listen reserves a lab's name for this process. It waits for the end of a killed lab, but
// not of a running one.
func listen(lab string) (*os.File, error) {
	for {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketName(os.Getuid(), lab)})
		if err == nil {
			defer l.Close() // the file is a duplicate
			return l.File()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, err
		}
		// A dying lab does not respond; with its last process the connection ends and the
		// name is free.
		if s, err := StatusOf(lab); err == nil {
			return nil, fmt.Errorf("lab %s is already running: inspect it with \"nfqproxy lab status %[1]s\", stop it with \"nfqproxy lab down %[1]s\"", s.Name)
		} else if _, foreign := errors.AsType[*otherUserError](err); foreign {
			return nil, err
		}
	}
}

// otherUserError is the error for a connection to another user's process.
type otherUserError struct{ uid, want int }

func (e *otherUserError) Error() string {
	return fmt.Sprintf("the other end belongs to user %d, not to user %d", e.uid, e.want)
}

// RunningLabs are the names of this user's running labs; none on an error.
func RunningLabs() []string {
	own, _, _ := running()
	return own
}

// running lists the running labs of this user, and those of others with the user.
func running() (own, others []string, err error) {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, nil, err
	}
	own, others = parseUnixTable(string(table), os.Getuid())
	return own, others, nil
}

// parseUnixTable finds listening sockets of labs in /proc/net/unix.
func parseUnixTable(table string, uid int) (own, others []string) {
	const acceptsConnections = "00010000" // __SO_ACCEPTCON, include/linux/net.h
	for line := range strings.Lines(table) {
		f := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(f) != 8 || f[3] != acceptsConnections {
			continue
		}
		owner, name, ok := strings.Cut(strings.TrimPrefix(f[7], socketPrefix), "-")
		if !ok || !strings.HasPrefix(f[7], socketPrefix) {
			continue
		}
		if owner == strconv.Itoa(uid) {
			own = append(own, name)
		} else {
			others = append(others, fmt.Sprintf("%s (user %s)", name, owner))
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	return own, others
}

// labVariable is the environment variable with the lab of the host that a process is in.
const labVariable = "NFQPROXY_LAB"

// dial connects to a running lab; an empty name selects the only one, or that of the host that this process is in.
func dial(name string) (*net.UnixConn, error) {
	if own := os.Getenv(labVariable); own != "" && (name == "" || name == own) {
		if c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: insideSocket}); err == nil {
			return c, checkPeer(c)
		}
	}
	own, others, err := running()
	if err != nil {
		return nil, err
	}
	notRunning := &NotRunningError{name, own, others}
	if name == "" {
		if len(own) != 1 {
			return nil, notRunning
		}
		name = own[0]
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socketName(os.Getuid(), name)})
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, notRunning
	}
	if err != nil {
		return nil, err
	}
	// Any user can bind the name first.
	if err := checkPeer(c); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", name, err), c.Close())
	}
	return c, nil
}

// checkPeer makes sure that the other end belongs to the same user: abstract sockets have no
// permissions. Inside a user namespace the kernel translates the user ID; a user without a
// mapping there is another user.
func checkPeer(c *net.UnixConn) error {
	uid, err := limit.PeerUID(c)
	if err == nil && int(uid) != os.Getuid() {
		err = &otherUserError{int(uid), os.Getuid()}
	}
	return err
}
