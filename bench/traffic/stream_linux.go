package traffic

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Stream sends as much as it can over one TCP connection, for a time, and gives the
// bytes per second. began is called when the connection is established, ended before
// it is closed.
func Stream(to netip.AddrPort, d time.Duration, began, ended func()) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, errno := socket(unix.SOCK_STREAM)
	if errno != 0 {
		return 0, fmt.Errorf("socket: %w", errno)
	}
	defer closeFD(fd)
	a := sockaddr4(to)
	if errno := connect(fd, &a); errno != 0 {
		return 0, explain("connect to "+to.String(), errno)
	}
	buffer := make([]byte, 256<<10)
	buffer[0] = sink
	if _, errno := write(fd, buffer[:1]); errno != 0 {
		return 0, explain("write", errno)
	}
	if n, errno := read(fd, buffer[:1]); errno != 0 || n != 1 {
		return 0, explain("read", errno)
	}
	began()
	sent := 0
	start := time.Now()
	for time.Since(start) < d {
		n, errno := write(fd, buffer)
		if errno != 0 {
			return 0, explain("write", errno)
		}
		sent += n
	}
	took := time.Since(start)
	ended()
	return float64(sent) / took.Seconds(), nil
}
