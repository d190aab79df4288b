package hostnet

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
)

// TestCloseWhileAsked: who asks while, or after, it is closed gets an error, and no other
// namespace's answer. (The race detector tells of the first.)
func TestCloseWhileAsked(t *testing.T) {
	for range 20 {
		h, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		var asking sync.WaitGroup
		begun := make(chan struct{})
		var once sync.Once
		for range 4 {
			asking.Go(func() {
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
		asking.Wait()
		if _, err := h.Addresses(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("asked after it was closed: error %v", err)
		}
	}
}
