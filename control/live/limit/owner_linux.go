package limit

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// descriptors is how many files the process may have open. Go's runtime raises the soft
// limit to the hard one when it starts (package os, adjustFileLimit).
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}

// PeerUID returns the user at the other end of a Unix socket.
func PeerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if perr != nil {
		return 0, os.NewSyscallError("SO_PEERCRED", perr)
	}
	return peer.Uid, nil
}

// The layout of struct inet_diag_req_v2 and struct inet_diag_msg in
// include/uapi/linux/inet_diag.h. Both have a struct inet_diag_sockid of 48 bytes.
const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY, include/uapi/linux/sock_diag.h
	diagRequestSize  = unix.NLMSG_HDRLEN + 8 + 48
	diagAnswerSize   = unix.NLMSG_HDRLEN + 4 + 48 + 20
	tcpEstablished   = 1 // TCP_ESTABLISHED, include/net/tcp_states.h
)

// socketUID is the user that owns this machine's established TCP socket with these
// addresses. The kernel looks for one socket, in a hash table, before sendto returns.
func socketUID(local, remote netip.AddrPort) (uid uint32, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, false
	}
	answer := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, false
	}
	return diagUID(answer[:n])
}

// diagRequest requests one socket.
func diagRequest(local, remote netip.AddrPort) []byte {
	b := make([]byte, diagRequestSize)
	binary.NativeEndian.PutUint32(b, diagRequestSize)
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.NLMSG_HDRLEN:]
	r[0], r[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		r[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(r[4:], 1<<tcpEstablished)
	id := r[8:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	for i := 40; i < 48; i++ {
		id[i] = 0xff // INET_DIAG_NOCOOKIE
	}
	return b
}

// diagUID reads the owner. A socket that its owner has closed has no owner and UID 0,
// so only one counts that is established and has an inode.
func diagUID(b []byte) (uid uint32, ok bool) {
	if len(b) < diagAnswerSize || binary.NativeEndian.Uint16(b[4:]) != sockDiagByFamily {
		return 0, false
	}
	m := b[unix.NLMSG_HDRLEN:]
	state, inode := m[1], binary.NativeEndian.Uint32(m[68:])
	return binary.NativeEndian.Uint32(m[64:]), state == tcpEstablished && inode != 0
}
