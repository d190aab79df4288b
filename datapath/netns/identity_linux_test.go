package netns_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// shell runs a script in a namespace and returns its output.
func shell(t *testing.T, n *netns.Namespace, script string) string {
	t.Helper()
	out, err := n.Run("", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestIdentity: processes of a namespace see its hostname and its files, whatever the machine has in their place, and
// the machine's own in all other places. Nobody else sees them.
func TestIdentity(t *testing.T) {
	netnstest.Require(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	before, err := os.Hostname()
	do(t, err,
		os.WriteFile(at("other"), []byte("the machine's\n"), 0o600),
		os.Mkdir(at("below"), 0o700), os.WriteFile(at("below/other"), []byte("below\n"), 0o600),
		os.Symlink("below/other", at("relative")))
	for _, tt := range []struct {
		name    string
		prepare func(path string) error // what the machine has
	}{
		{"file", func(path string) error { return os.WriteFile(path, []byte("the machine's\n"), 0o644) }},
		{"missing", func(string) error { return nil }},
		{"link", func(path string) error { return os.Symlink("other", path) }},
		{"dangling link", func(path string) error { return os.Symlink("/run/no-such/file", path) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := at(strings.ReplaceAll(tt.name, " ", "-"))
			do(t, tt.prepare(path))
			there, _ := os.ReadFile(path)
			n, other := newNamespace(t, "a"), newNamespace(t, "b")
			do(t, n.SetIdentity(netns.Identity{Hostname: "pod-1", Files: map[string]string{path: "mine\n", "/etc/hostname": "pod-1\n"}}))
			if got, want := shell(t, n, "hostname; cat /etc/hostname "+path), "pod-1\npod-1\nmine\n"; got != want {
				t.Errorf("processes see %q, want %q", got, want)
			}
			if got, want := shell(t, n, "cd "+dir+"; [ -h other ] || true; cat relative below/other; ls /etc/passwd"), "below\nbelow\n/etc/passwd\n"; got != want {
				t.Errorf("the rest of the machine is %q, want %q", got, want)
			}
			if got := shell(t, other, "hostname"); got != before+"\n" {
				t.Errorf("another namespace has the hostname %q, want %q", got, before)
			}
			if now, _ := os.ReadFile(path); string(now) != string(there) {
				t.Errorf("the machine's file is %q, was %q", now, there)
			}
			if now, err := os.Hostname(); now != before || err != nil {
				t.Errorf("the machine's name is %s, was %s: %v", now, before, err)
			}
		})
	}
}

// TestNamedNamespaces: a network namespace that a process names is there for the host's other processes, earlier and
// later ones, and not on other hosts.
func TestNamedNamespaces(t *testing.T) {
	netnstest.Require(t)
	netnstest.RequireTool(t, "ip")
	n, other := newNamespace(t, "a"), newNamespace(t, "b")
	for _, host := range []*netns.Namespace{n, other} {
		do(t, host.SetIdentity(netns.Identity{Files: map[string]string{"/etc/hostname": "x\n"}}))
	}
	earlier := exec.Command("sh", "-c", "read go; ip netns list; ip netns exec red ip -o link show lo | wc -l")
	in, err := earlier.StdinPipe()
	do(t, err)
	var out strings.Builder
	earlier.Stdout, earlier.Stderr = &out, &out
	do(t, n.Start(earlier))
	shell(t, n, "ip netns add red")
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	do(t, earlier.Wait())
	if got := out.String(); got != "red\n1\n" {
		t.Errorf("an earlier process sees %q", got)
	}
	if got := shell(t, n, "ip netns list; ip netns exec red true && ip netns del red; ip netns list"); got != "red\n" {
		t.Errorf("a later process sees %q, and nothing after removing it", got)
	}
	shell(t, n, "ip netns add red")
	if got := shell(t, other, "ip netns list"); got != "" {
		t.Errorf("another host sees %q", got)
	}
}

// TestIdentityChanges: a process sees new contents of its files; later ones see other files. Nothing is left.
func TestIdentityChanges(t *testing.T) {
	n := newNamespace(t, "a")
	left := func() []string {
		all, err := filepath.Glob("/run/nfqproxy-host-*")
		do(t, err)
		return all
	}
	files := len(left())
	const path = "/etc/hosts"
	do(t, n.SetIdentity(netns.Identity{Files: map[string]string{path: "first\n"}}))
	cmd := exec.Command("sh", "-c", "echo ready; read _; cat "+path)
	in, err := cmd.StdinPipe()
	do(t, err)
	out, err := cmd.StdoutPipe()
	do(t, err, n.Start(cmd))
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	do(t, err, n.SetIdentity(netns.Identity{Hostname: "later", Files: map[string]string{path: "second\n", "/etc/no-such-file": "new\n"}}))
	_, err = io.WriteString(in, "\n")
	do(t, err)
	if line, err := lines.ReadString('\n'); line != "second\n" {
		t.Errorf("a running process sees %q, %v", line, err)
	}
	do(t, cmd.Wait())
	if got := shell(t, n, "hostname; cat /etc/no-such-file "+path); got != "later\nnew\nsecond\n" {
		t.Errorf("a new process sees %q", got)
	}
	// What a process writes stays, until there is something new.
	shell(t, n, "echo written > "+path)
	do(t, n.SetIdentity(netns.Identity{Files: map[string]string{path: "second\n"}}))
	if got := shell(t, n, "cat "+path); got != "written\n" {
		t.Errorf("the contents have not changed: %q", got)
	}
	do(t, n.SetIdentity(netns.Identity{Files: map[string]string{path: "third\n"}}))
	if got := shell(t, n, "cat "+path); got != "third\n" {
		t.Errorf("the contents have changed: %q", got)
	}
	do(t, n.SetIdentity(netns.Identity{}))
	if got := shell(t, n, "cat "+path); strings.Contains(got, "second") {
		t.Errorf("without an identity: %q", got)
	}
	do(t, n.Close())
	if now := left(); len(now) != files {
		t.Errorf("left: %v", now)
	}
	if err := n.SetIdentity(netns.Identity{Files: map[string]string{path: ""}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestIdentityErrors: they name the namespace and the path.
func TestIdentityErrors(t *testing.T) {
	n := newNamespace(t, "pod-a")
	for _, path := range []string{"", "/", "hosts", "/etc/../hosts", "/etc/"} {
		if err := n.SetIdentity(netns.Identity{Files: map[string]string{path: ""}}); err == nil || !strings.Contains(err.Error(), "pod-a") || !strings.Contains(err.Error(), `"`+path+`"`) {
			t.Errorf("path %q: %v", path, err)
		}
	}
	do(t, n.SetIdentity(netns.Identity{Files: map[string]string{"/no/such/directory/file": ""}}))
	if err := n.Start(exec.Command("true")); err == nil || !strings.Contains(err.Error(), "/no/such/directory") || !strings.Contains(err.Error(), "pod-a") {
		t.Errorf("no such directory: %v", err)
	}
}
