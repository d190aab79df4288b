package limit

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
)

var (
	podA = Address(netip.MustParseAddr("10.244.0.1"))
	podB = Address(netip.MustParseAddr("10.244.0.2"))
	root = User(0)
)

func TestQuota(t *testing.T) {
	q := new(Set).New("health", "connections", Numbers{Total: 6, Each: 3, Reserved: 2})
	var releases []func()
	take := func(c Client, want string) {
		t.Helper()
		release, err := q.Take(c)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			releases = append(releases, release)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", c, got, want)
		}
	}
	for range 3 {
		take(podA, "")
	}
	take(podA, "too many connections: 10.244.0.1 has 3, the limit for one client: close one, or try again later")
	take(podB, "")
	take(podB, "too many connections: all clients together have 4, the limit of this server: try again later")
	take(root, "")
	take(root, "")
	take(root, "too many connections: all clients together have 6, the limit of this server: try again later")
	if got, want := q.Count(), (Count{"health", "connections", 6, 6, 2, 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, release := range releases {
		release()
		release() // a second time counts for nothing
	}
	if got := q.Count().Taken; got != 0 || len(q.by) != 0 || q.others != 0 {
		t.Errorf("%d are left, of clients %v, others %d", got, q.by, q.others)
	}
	take(podA, "")
}

// TestPrivilegedUseAll: the reserve bounds others, not those it is for.
func TestPrivilegedUseAll(t *testing.T) {
	q := new(Set).New("s", "questions", Numbers{Total: 4, Each: 1, Reserved: 2})
	for i := range 4 {
		if _, err := q.Take(root); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	_, err := q.Take(podA)
	if e, ok := errors.AsType[*Exceeded](err); !ok || e.Each || e.Max != 4 {
		t.Errorf("error %v", err)
	}
}

func TestWithin(t *testing.T) {
	n := Numbers{Total: 256, Each: 64, Reserved: 32}
	for total, want := range map[int]Numbers{1000: n, 256: n, 128: {128, 32, 16}, 3: {3, 1, 1}} {
		if got := n.within(total); got != want {
			t.Errorf("within %d: %+v, want %+v", total, got, want)
		}
	}
}

func TestClients(t *testing.T) {
	for c, want := range map[Client]string{
		User(1000): "uid 1000", Address(netip.MustParseAddr("::ffff:10.0.0.1")): "10.0.0.1",
		Address(netip.MustParseAddr("fe80::1%eth0")): "fe80::1", {}: "a client without an address",
	} {
		if got := c.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if own := User(uint32(os.Geteuid())); !own.privileged || !root.privileged || User(4294967294).privileged {
		t.Error("root and the server's own user are privileged, others are not")
	}
}

func TestConcurrently(t *testing.T) {
	s := new(Set)
	q := s.New("s", "questions", Numbers{Total: 4, Each: 2})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 1000 {
				if release, err := q.Take([]Client{podA, podB, root}[i%3]); err == nil {
					release()
				}
				s.Counts()
			}
		})
	}
	all.Wait()
	if c := s.Counts(); len(c) != 1 || c[0].Taken != 0 {
		t.Errorf("%+v", c)
	}
	if (*Set)(nil).Counts() != nil {
		t.Error("no set counts something")
	}
}
