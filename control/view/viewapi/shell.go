package viewapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// shellProtocol is the subprotocol of a shell's WebSocket; see also tokenProtocol.
const shellProtocol = "nfqproxy.shell"

// shells are the limits of shells at the same time.
var shells = limit.Numbers{Total: 4, Each: 4}

const (
	// maxShellMessage is the maximum size of a message of a client, in bytes.
	maxShellMessage = 64 << 10
	// shellWindow is how much output may be sent that the client has not shown yet: a shell can print faster than a browser
	// draws.
	shellWindow = 512 << 10
	// maxTerminal is the maximum number of columns, and of rows.
	maxTerminal = 1000
	// maxReason is the maximum length of the reason in a close frame (RFC 6455, 5.5).
	maxReason = 123
)

// shellMessage is a text message of a client. Its binary messages are what is typed, those of the server what is printed.
type shellMessage struct {
	labapi.TerminalSize     // of the terminal from now on; 0 is as before
	Shown               int `json:"shown"` // bytes of output that the client has shown since the last such message
}

// lessonShell opens a shell in the unit's lab for a WebSocket.
func (v *views) lessonShell(a *flowapi.API, w http.ResponseWriter, r *http.Request) error {
	if err := flowapi.NoParameters(r); err != nil {
		return err
	}
	t, err := v.teacher()
	if err != nil {
		return err
	}
	opener, ok := t.(labapi.ShellOpener)
	if !ok {
		return flowapi.NotFound("this course has no shells here: use \"nfqproxy learn shell\"")
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !local.IP.IsLoopback() {
		return flowapi.Forbidden("shells are for this machine only: use a loopback address")
	}
	if r.Method != http.MethodGet || !websocket.IsWebSocketUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		return &observe.Error{Status: http.StatusUpgradeRequired, Message: r.URL.Path + " is a WebSocket: want the headers \"Connection: Upgrade\" and \"Upgrade: websocket\""}
	}
	release, err := flowapi.Take(v.shells, r)
	if err != nil {
		return err
	}
	defer release()
	upgrader := websocket.Upgrader{
		HandshakeTimeout: a.Timing.Write, Subprotocols: []string{shellProtocol},
		CheckOrigin: func(*http.Request) bool { return true }, // admit has checked it
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			a.Fail(w, r, &observe.Error{Status: status, Message: reason.Error()})
		},
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil // the response is written
	}
	defer conn.Close()
	b := &shellBridge{Timing: *a.Timing, conn: conn, changed: make(chan struct{}, 1)}
	code, reason := b.run(r.Context(), opener)
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason[:min(len(reason), maxReason)]), time.Now().Add(a.Timing.Write))
	return nil
}

// tokenProtocol is followed by the token in base64url without padding, as a subprotocol of a WebSocket: browsers cannot set
// other headers of such a request.
const tokenProtocol = "nfqproxy.token."

// protocolToken is the token of a request for a WebSocket; empty: none.
func protocolToken(r *http.Request) string {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return ""
	}
	for p := range strings.SplitSeq(r.Header.Get("Sec-Websocket-Protocol"), ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol); ok {
			token, err := base64.RawURLEncoding.DecodeString(text)
			if err != nil {
				return ""
			}
			return string(token)
		}
	}
	return ""
}

// shellBridge connects a WebSocket with a shell.
type shellBridge struct {
	flowapi.Timing
	conn     *websocket.Conn
	terminal labapi.Terminal
	unshown  atomic.Int64  // bytes of output that the client has not shown yet
	changed  chan struct{} // unshown has become less
}

// run opens the shell, and returns at the end of the shell, of the connection or of the context, with the code and the
// reason for the client.
func (b *shellBridge) run(ctx context.Context, opener labapi.ShellOpener) (code int, reason string) {
	b.conn.SetReadLimit(maxShellMessage)
	_ = b.conn.SetReadDeadline(time.Now().Add(b.Read))
	m, _, err := b.read()
	if err != nil || m == nil || m.Columns == 0 || m.Rows == 0 {
		return websocket.ClosePolicyViolation, `the first message must be the size of the terminal, as {"columns":80,"rows":24}`
	}
	_ = b.conn.SetReadDeadline(time.Time{})
	if b.terminal, err = opener.OpenShell("", m.TerminalSize); err != nil {
		return websocket.CloseInternalServerErr, err.Error()
	}
	stop := context.AfterFunc(ctx, func() { _ = b.terminal.Close() })
	defer stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		b.input()
		_ = b.terminal.Close()
	}()
	pings := time.NewTicker(b.KeepAlive)
	defer pings.Stop()
	go func() { // a client that is gone without a word, while its shell reads nothing
		for {
			select {
			case <-gone:
				return
			case <-pings.C:
				if b.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(b.Write)) != nil {
					_ = b.terminal.Close()
					return
				}
			}
		}
	}()
	b.output(gone)
	_ = b.terminal.Close()
	if ctx.Err() != nil {
		return websocket.CloseGoingAway, "the unit has ended"
	}
	return websocket.CloseNormalClosure, "the shell has ended"
}

// read returns the client's next message: a text message, or input.
func (b *shellBridge) read() (*shellMessage, []byte, error) {
	kind, data, err := b.conn.ReadMessage()
	if err != nil || kind == websocket.BinaryMessage {
		return nil, data, err
	}
	m := new(shellMessage)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, nil, err
	}
	if min(m.Columns, m.Rows, m.Shown) < 0 || max(m.Columns, m.Rows) > maxTerminal {
		return nil, nil, errors.New("a number is out of range")
	}
	return m, nil, nil
}

// input types what the client sends, until the connection ends.
func (b *shellBridge) input() {
	for {
		m, typed, err := b.read()
		if err != nil {
			return
		}
		if m == nil {
			if _, err := b.terminal.Write(typed); err != nil {
				return
			}
			continue
		}
		if m.Columns > 0 && m.Rows > 0 {
			_ = b.terminal.Resize(m.TerminalSize) // fails after the end of the shell
		}
		if m.Shown > 0 {
			b.unshown.Add(-int64(m.Shown))
			select {
			case b.changed <- struct{}{}:
			default:
			}
		}
	}
}

// output sends what the shell prints, until its end or that of the connection.
func (b *shellBridge) output(gone <-chan struct{}) {
	data := make([]byte, 32<<10)
	for {
		for b.unshown.Load() >= shellWindow {
			select {
			case <-b.changed:
			case <-gone:
				return
			}
		}
		n, err := b.terminal.Read(data)
		if n > 0 {
			b.unshown.Add(int64(n))
			_ = b.conn.SetWriteDeadline(time.Now().Add(b.Write))
			if b.conn.WriteMessage(websocket.BinaryMessage, data[:n]) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
