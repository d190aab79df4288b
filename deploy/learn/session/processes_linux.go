package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// networkNamespaces are the network namespaces of the lab's hosts, by their inodes.
func (w *work) networkNamespaces() map[uint64]bool {
	all := make(map[uint64]bool)
	for _, name := range w.lab.Spec().Hosts() {
		var st unix.Stat_t
		if ns, err := w.lab.Namespace(name); err == nil && unix.Fstat(ns.FD(), &st) == nil {
			all[st.Ino] = true
		}
	}
	return all
}

// killTimeout is how long killed processes may take to end.
const killTimeout = 5 * time.Second

// killIn kills what scripts and shells have left running in the namespaces of a lab that has ended, and waits for its end.
func killIn(places map[uint64]bool) error {
	// A /proc of other namespaces has other processes by these numbers.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return err
	}
	for end := time.Now().Add(killTimeout); ; { // a process may have started another one before it ended
		left, err := processesIn(places)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes of the unit do not end: %d", left)
		}
		for _, pid := range left {
			if err := kill(pid, time.Until(end)); err != nil {
				return fmt.Errorf("killing process %d of the unit: %w", pid, err)
			}
		}
	}
}

// kill kills a process, and waits for its end: at most for a time.
func kill(pid int, wait time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(wait, 0).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

// processesIn lists the processes in network namespaces. Those that have ended are in none.
func processesIn(places map[uint64]bool) (pids []int, _ error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && pid != os.Getpid() && unix.Stat(filepath.Join(dir, "ns/net"), &st) == nil && places[st.Ino] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
