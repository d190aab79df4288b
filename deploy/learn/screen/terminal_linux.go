package screen

import (
	"io"

	"github.com/charmbracelet/x/vt"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// terminal is the screen that the student's shell writes to.
type terminal struct {
	*vt.SafeEmulator
	shell labapi.Terminal
}

// openTerminal starts a shell. changed is called after output, and ended after the end of the shell; both by other
// goroutines.
func openTerminal(room session.Room, width, height int, changed func(), ended func(*terminal)) (*terminal, error) {
	shell, err := room.OpenShell("", labapi.TerminalSize{Columns: width, Rows: height})
	if err != nil {
		return nil, err
	}
	t := &terminal{SafeEmulator: vt.NewSafeEmulator(width, height), shell: shell}
	// A shell that does not read must not block the emulator.
	input := make(chan []byte, 1024)
	go func() { // what is typed, and responses of the emulator
		defer close(input)
		b := make([]byte, 4096)
		for {
			n, err := t.Read(b)
			if err != nil {
				return
			}
			select {
			case input <- append([]byte(nil), b[:n]...):
			default: // it has not read for a thousand keys
			}
		}
	}()
	go func() {
		for b := range input {
			_, _ = shell.Write(b) // fails after the end of the shell
		}
	}()
	go func() {
		b := make([]byte, 32<<10)
		for {
			n, err := shell.Read(b)
			_, _ = t.Write(b[:n]) // to the emulator, in memory
			if err != nil {
				break
			}
			changed()
		}
		ended(t)
	}()
	return t, nil
}

// resize sets the size of both the screen and the shell's terminal.
func (t *terminal) resize(width, height int) {
	if t.Width() == width && t.Height() == height {
		return
	}
	t.Resize(width, height)
	_ = t.shell.Resize(labapi.TerminalSize{Columns: width, Rows: height}) // fails after the end of the shell
}

// close ends the shell.
func (t *terminal) close() {
	_ = t.shell.Close()
	// The emulator's own Close has a data race with its Read. The pipe ends Read, too.
	if pipe, ok := t.InputPipe().(io.Closer); ok {
		_ = pipe.Close()
	}
}
