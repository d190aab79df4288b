package lab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// request is a request of lab exec, status or down to a running lab, one per connection.
type request struct {
	Exec   *execRequest `json:"exec,omitempty"` // with three files: the standard ones
	Status bool         `json:"status,omitempty"`
	Down   bool         `json:"down,omitempty"`
	// Objects: the lab's Kubernetes objects, as its files have them now.
	Objects bool `json:"objects,omitempty"`
	// Firewall: the rules of a node.
	Firewall *firewallRequest `json:"firewall,omitempty"`
	Change   *Change          `json:"change,omitempty"`
	Fault    *faultRequest    `json:"fault,omitempty"`
}

// faultRequest is about the faults of a lab: it adds one, removes one, or both are nil; it lists them.
type faultRequest struct {
	Add    *Fault `json:"add,omitempty"`
	Remove *int   `json:"remove,omitempty"` // 0: all
}

// firewallRequest is the request for the rules of a node, and its routes to addresses.
type firewallRequest struct {
	Node string       `json:"node"`
	To   []netip.Addr `json:"to"`
}

// execRequest is the request to run a command inside a host.
type execRequest struct {
	Host     string   `json:"host"`
	Command  []string `json:"command"`
	Dir      string   `json:"dir"`
	Env      []string `json:"env"`
	Terminal bool     `json:"terminal"` // the first file becomes the controlling terminal
}

// signalMessage follows an execRequest: a signal for the command.
type signalMessage struct {
	Signal int `json:"signal"`
}

// response answers a request. Exactly one field is set, but for Error and Exit: both are where
// a command could not be started.
type response struct {
	Error    string            `json:"error,omitempty"`
	Exit     *int              `json:"exit,omitempty"`
	Status   *Status           `json:"status,omitempty"`
	Objects  *manifest.Objects `json:"objects,omitempty"`
	Lab      *labfile.Lab      `json:"lab,omitempty"` // that of the Objects
	Firewall *noderules.Rules  `json:"firewall,omitempty"`
	Done     bool              `json:"done,omitempty"`
	Changes  []string          `json:"changes,omitempty"` // with Done
	Faults   []Fault           `json:"faults,omitempty"`  // with Done
}

const (
	maxMessage = 64 << 20 // bytes; the objects of a large lab fit
	maxFiles   = 3
)

// writeMessage sends a message, preceded by its length, with files.
func writeMessage(c *net.UnixConn, message any, files ...*os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("message of %d bytes: the environment or the command line is too large", len(data))
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			// Not Fd: it would make the file a blocking one.
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			// The files stay open while the message is written: the caller has them.
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		rights = syscall.UnixRights(fds...)
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	if _, _, err := c.WriteMsgUnix(header, rights, nil); err != nil {
		return err
	}
	_, err = c.Write(data)
	return err
}

// readMessage receives a message with its files, which the caller has to close. The error is
// io.EOF at the end of the connection.
func readMessage(c *net.UnixConn, into any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeFiles(files)
			files = nil
		}
	}()
	header := make([]byte, 4)
	rights := make([]byte, syscall.CmsgSpace(4*maxFiles))
	for have := 0; have < len(header); {
		n, rn, _, _, err := c.ReadMsgUnix(header[have:], rights)
		if n == 0 && err == nil {
			err = io.EOF
		}
		received, rerr := parseRights(rights[:rn])
		files = append(files, received...)
		if err != nil {
			return files, err
		}
		if rerr != nil {
			return files, rerr
		}
		have += n
	}
	size := binary.BigEndian.Uint32(header)
	if size > maxMessage || len(files) > maxFiles {
		return files, fmt.Errorf("message of %d bytes and %d files: not from this program", size, len(files))
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(c, data); err != nil {
		return files, io.ErrUnexpectedEOF
	}
	return files, json.Unmarshal(data, into)
}

func parseRights(b []byte) ([]*os.File, error) {
	messages, err := syscall.ParseSocketControlMessage(b)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue // something else
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
