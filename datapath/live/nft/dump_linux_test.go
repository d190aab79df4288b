package nft

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestReadSetOfNone: a set that is not there, or not any more, is read once.
func TestReadSetOfNone(t *testing.T) {
	netnstest.Require(t)
	reads := 0
	err := ReadSet(unix.NFPROTO_IPV4, "none", "none", func() (int, error) {
		reads++
		return 1000, nil
	})
	if err != nil || reads != 1 {
		t.Errorf("%d reads: %v", reads, err)
	}
}
