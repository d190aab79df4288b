package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// supervisor is the service manager that started the process, systemd for example; see sd_notify(3).
// A nil supervisor takes no messages.
type supervisor struct {
	conn     net.Conn
	watchdog time.Duration // within which it wants a sign of life; 0: it wants none
}

// findSupervisor connects to the service manager, if the environment names one.
func findSupervisor() (*supervisor, error) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil, nil
	}
	// Connected at once: a confined process cannot reach an abstract socket.
	conn, err := net.Dial("unixgram", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the service manager: %w (unset NOTIFY_SOCKET to start without it)", err)
	}
	s := &supervisor{conn: conn}
	if pid := os.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseUint(os.Getenv("WATCHDOG_USEC"), 10, 32); err == nil {
			s.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	return s, nil
}

// run reports that the process serves, and then that it makes progress: as long as it is not stuck, and
// until the context ends.
func (s *supervisor) run(ctx context.Context, stuck func() bool, log *slog.Logger) {
	if s == nil {
		return
	}
	notify := func(state string) {
		if _, err := s.conn.Write([]byte(state)); err != nil {
			log.Warn("cannot notify the service manager", "state", state, "error", err)
		}
	}
	notify("READY=1")
	var tick <-chan time.Time
	if s.watchdog > 0 {
		// One message in four is enough, so a worker may be slow for a moment.
		ticker := time.NewTicker(s.watchdog / 4)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			notify("STOPPING=1")
			_ = s.conn.Close() // nothing is lost
			return
		case <-tick:
			if !stuck() {
				notify("WATCHDOG=1")
			}
		}
	}
}
