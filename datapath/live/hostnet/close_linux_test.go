package hostnet

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
)

// TestCloseDuringLookups: a lookup while, or after, it is closed gets an error, and no other
// namespace's answer. (The race detector finds the first.)
func TestCloseDuringLookups(t *testing.T) {
	for range 20 {
		h, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		var lookups sync.WaitGroup
		begun := make(chan struct{})
		var once sync.Once
		for range 4 {
			lookups.Go(func() {
				c := h.NewCache()
				for err := error(nil); err == nil; {
					_, err = h.InterfaceAddresses()
					_, _ = c.OutInterface(netip.MustParseAddr("127.0.0.1"))
					once.Do(func() { close(begun) })
				}
			})
		}
		<-begun
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		lookups.Wait()
		if _, err := h.Addresses(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("lookup after it was closed: error %v", err)
		}
	}
}
