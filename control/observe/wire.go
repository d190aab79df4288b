package observe

import (
	"net/netip"
	"strings"
)

// Limits of the flow API for both client and server.
const (
	// KeepAliveSeconds is the interval of keepalives in a stream.
	KeepAliveSeconds = 15
	// PollSeconds is the maximum time that a request for a hold's next generation waits.
	PollSeconds = 30
	// NodeRecords is a node's limit of records per second for all readers together.
	NodeRecords = 5000
)

// EventMissed is the event of a [MissedLine].
const EventMissed = "missed"

// MissedLine is [Missed] as a line between records.
type MissedLine struct {
	Version int    `json:"version"` // flow.Version
	Event   string `json:"event"`   // EventMissed
	Missed
}

// EventJoined is the event of a [JoinedLine].
const EventJoined = "joined"

// JoinedLine is [Joined] as a line between records.
type JoinedLine struct {
	Version int    `json:"version"` // flow.Version
	Event   string `json:"event"`   // EventJoined
	Joined
}

// TableList is the flow API's response with tables.
type TableList struct {
	Tables []Table `json:"tables"`
}

// StatsList is the flow API's response with counters.
type StatsList struct {
	Nodes []Stats `json:"nodes"`
}

// StatusList is the flow API's response with the nodes' daemons.
type StatusList struct {
	Nodes []Status `json:"nodes"`
}

// HoldList is the flow API's response with holds.
type HoldList struct {
	Holds []Hold `json:"holds"`
}

// SocketPath returns the path of a Unix socket's address: unix:/PATH, unix:///PATH or /PATH. false:
// it is another address. The path may be relative, which is an error of the user.
func SocketPath(address string) (path string, ok bool) {
	if path, ok = strings.CutPrefix(address, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return address, strings.HasPrefix(address, "/")
}

// IsLoopback reports whether a host, of an address to connect to or to listen at, is this machine
// only.
func IsLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}
