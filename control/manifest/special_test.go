//go:build unix

package manifest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// within fails the test if f takes longer than any machine needs for it.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		t.Fatal("hangs")
	}
}

func mkfifo(t *testing.T, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestSpecialFilesAreErrors(t *testing.T) {
	dir, inside := t.TempDir(), t.TempDir()
	fifo := mkfifo(t, dir, "fifo")
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nested := mkfifo(t, inside, "pipe.yaml")
	write(t, node("a"), inside, "a.yaml")
	for _, tt := range []struct{ path, want string }{
		{fifo, fifo + ": is a pipe, which can be read only once: want a file"},
		{socket, socket + ": is a socket: want a file"},
		{"/dev/zero", "/dev/zero: is a device: want a file"},
		{"/dev/null", "/dev/null: is a device: want a file"},
		{inside, nested + ": is a pipe, which can be read only once: want a file"},
		{"-", "standard input: can be read only once: want a file"},
		{"", `"": the path is empty: want a file or a directory`},
	} {
		within(t, func() {
			o, err := Load([]string{tt.path})
			if o != nil || err == nil || err.Error() != tt.want {
				t.Errorf("Load(%s): %+v, %v; want %s", tt.path, o, err, tt.want)
			}
		})
	}
	within(t, func() {
		want := fifo + ": is a pipe that nothing writes to: want a file, or - for standard input"
		if o, err := (Options{Once: true, Stdin: strings.NewReader("")}).Load([]string{fifo}); o != nil || err == nil || err.Error() != want {
			t.Errorf("LoadOnce: %+v, %v; want %s", o, err, want)
		}
	})
}

// TestAPipeIsReadOnce is what a shell's <(command) gives.
func TestAPipeIsReadOnce(t *testing.T) {
	fifo := mkfifo(t, t.TempDir(), "fifo")
	hold, err := os.OpenFile(fifo, os.O_RDWR, 0) // a writer, so that opening does not wait
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.WriteString(node("a")); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = hold.Close() })
	within(t, func() {
		if o, err := (Options{Once: true, Stdin: strings.NewReader("")}).Load([]string{fifo}); err != nil || len(o.Nodes) != 1 {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

func TestASilentPipeIsNotWaitedForForever(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	within(t, func() {
		if _, err := readAll(r, 10, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no data for 20ms") {
			t.Errorf("error %v", err)
		}
	})
}

func TestStandardInput(t *testing.T) {
	o, err := Options{Once: true, Stdin: strings.NewReader(node("a"))}.Load([]string{"-"})
	if err != nil || len(o.Nodes) != 1 || len(o.Files) != 1 || o.Files[0] != "standard input" {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := (Options{Once: true, Stdin: strings.NewReader("a: b")}).Load([]string{"-"}); err == nil || !strings.HasPrefix(err.Error(), "standard input:1: document 1: ") {
		t.Errorf("error %v", err)
	}
}
