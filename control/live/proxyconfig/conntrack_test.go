package proxyconfig

import (
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMax(t *testing.T) {
	for _, c := range []struct{ perCore, min, cores, want int }{
		{32768, 131072, 1, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 8, 262144},
		{32768, 131072, 64, 1 << 20},
		{1<<31 - 1, 1<<31 - 1, 1024, 1 << 20},
		{1, 1<<31 - 1, 1, 1<<31 - 1},
		{0, 131072, 8, 0},
		{1000, 0, 2, 2000},
	} {
		if got := (Conntrack{MaxPerCore: c.perCore, Min: c.min}).Max(c.cores); got != c.want {
			t.Errorf("%d for each of %d cores, at least %d: %d, want %d", c.perCore, c.cores, c.min, got, c.want)
		}
	}
}

// fakeFiles are files with numbers; those that are locked cannot be written.
type fakeFiles struct {
	values map[string]int
	locked map[string]error
}

func (f fakeFiles) Read(path string) (int, error) {
	v, ok := f.values[path]
	if !ok {
		return 0, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return v, nil
}

func (f fakeFiles) Write(path string, value int) error {
	if err := f.locked[path]; err != nil {
		return err
	}
	f.values[path] = value
	return nil
}

const (
	established = netfilterDir + "nf_conntrack_tcp_timeout_established"
	closeWait   = netfilterDir + "nf_conntrack_tcp_timeout_close_wait"
	udpTimeout  = netfilterDir + "nf_conntrack_udp_timeout"
	udpStream   = netfilterDir + "nf_conntrack_udp_timeout_stream"
	liberal     = netfilterDir + "nf_conntrack_tcp_be_liberal"
)

func kernelDefaults() map[string]int {
	return map[string]int{maxFile: 65536, hashsizeFile: 16384, established: 432000, closeWait: 60, udpTimeout: 30, udpStream: 120, liberal: 0}
}

func TestApply(t *testing.T) {
	for name, c := range map[string]struct {
		conntrack Conntrack
		before    map[string]int // that differ from kernelDefaults
		want      map[string]int // likewise
		changes   []string
	}{
		"defaults": {Default().Conntrack, nil,
			map[string]int{maxFile: 131072, hashsizeFile: 32768, established: 86400, closeWait: 3600},
			[]string{"nf_conntrack_max from 65536 to 131072", "hashsize from 16384 to 32768", "nf_conntrack_tcp_timeout_established from 432000 to 86400", "nf_conntrack_tcp_timeout_close_wait from 60 to 3600"}},
		"nothing": {Conntrack{Min: 1 << 20}, nil, nil, nil},
		"all": {Conntrack{MaxPerCore: 100000, TCPEstablishedTimeout: time.Second, TCPCloseWaitTimeout: 1500 * time.Millisecond, TCPBeLiberal: true, UDPTimeout: time.Millisecond, UDPStreamTimeout: time.Minute}, nil,
			map[string]int{maxFile: 200000, hashsizeFile: 50000, established: 1, closeWait: 2, liberal: 1, udpTimeout: 1, udpStream: 60},
			[]string{"nf_conntrack_max from 65536 to 200000", "hashsize from 16384 to 50000", "nf_conntrack_tcp_timeout_established from 432000 to 1", "nf_conntrack_tcp_timeout_close_wait from 60 to 2", "nf_conntrack_udp_timeout from 30 to 1", "nf_conntrack_udp_timeout_stream from 120 to 60", "nf_conntrack_tcp_be_liberal from 0 to 1"}},
		"never lower": {Conntrack{MaxPerCore: 1000}, nil, nil, nil},
		"large hash":  {Conntrack{MaxPerCore: 100000}, map[string]int{hashsizeFile: 65536}, map[string]int{maxFile: 200000, hashsizeFile: 65536}, []string{"nf_conntrack_max from 65536 to 200000"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := fakeFiles{values: with(c.before), locked: nil}
			changes, err := c.conntrack.Apply(files, 2)
			if err != nil || !slices.Equal(changes, c.changes) {
				t.Errorf("changes %q, error %v, want %q", changes, err, c.changes)
			}
			if diff := cmp.Diff(with(c.want), files.values); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if changes, err := c.conntrack.Apply(files, 2); err != nil || changes != nil {
				t.Errorf("again: changes %q, error %v", changes, err)
			}
		})
	}
}

func with(changes map[string]int) map[string]int {
	values := kernelDefaults()
	for k, v := range changes {
		values[k] = v
	}
	return values
}

// TestApplyReadOnly: one error for each setting that cannot be made, with the
// remedy; the others are made.
func TestApplyReadOnly(t *testing.T) {
	files := fakeFiles{values: kernelDefaults(), locked: map[string]error{
		maxFile:   &fs.PathError{Op: "open", Path: maxFile, Err: syscall.EROFS},
		closeWait: &fs.PathError{Op: "open", Path: closeWait, Err: syscall.EACCES},
	}}
	delete(files.values, udpTimeout)
	c := Default().Conntrack
	c.UDPTimeout = time.Minute
	changes, err := c.Apply(files, 1)
	if want := []string{"nf_conntrack_tcp_timeout_established from 432000 to 86400"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		"nf_conntrack_max is 65536, want 131072: open " + maxFile + ": read-only file system; set it on the node: echo 131072 > " + maxFile,
		"nf_conntrack_tcp_timeout_close_wait is 60, want 3600: open " + closeWait + ": permission denied; set it on the node: echo 3600 > " + closeWait,
		"nf_conntrack_udp_timeout: cannot set it to 60: " + udpTimeout + " not found: the module nf_conntrack is not loaded, or this kernel lacks the setting",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("errors:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	// As wanted already: nothing to write, nothing wrong.
	files.values[maxFile], files.values[closeWait], files.values[udpTimeout], files.values[hashsizeFile] = 131072, 3600, 60, 32768
	if changes, err := c.Apply(files, 1); err != nil || changes != nil {
		t.Errorf("changes %q, error %v", changes, err)
	}
}

func TestCores(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-3,8,10-11": 7, "": 0, "x": 0, "3-1": 0, "-": 0} {
		if got := countRanges(list); got != want {
			t.Errorf("%q: %d cores, want %d", list, got, want)
		}
	}
	if _, err := os.Stat("/sys/devices/system/cpu/online"); err == nil && Cores() < runtime.NumCPU() {
		t.Errorf("%d cores, fewer than the %d this process may use", Cores(), runtime.NumCPU())
	}
}

func TestEnsureRouteLocalnet(t *testing.T) {
	files := fakeFiles{values: map[string]int{routeLocalnet: 0}, locked: map[string]error{routeLocalnet: syscall.EROFS}}
	if err := EnsureRouteLocalnet(files); err == nil || !strings.Contains(err.Error(), "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet") {
		t.Errorf("read-only: %v", err)
	}
	delete(files.locked, routeLocalnet)
	if err := EnsureRouteLocalnet(files); err != nil || files.values[routeLocalnet] != 1 {
		t.Errorf("writable: %v, %v", err, files.values)
	}
	files.locked[routeLocalnet] = syscall.EROFS // and right already
	if err := EnsureRouteLocalnet(files); err != nil {
		t.Errorf("as it should be: %v", err)
	}
}
