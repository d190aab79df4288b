package ruleset

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestExpiredAlive: queueing can begin again at once after the switch's element has expired, before the
// kernel has collected it.
func TestExpiredAlive(t *testing.T) {
	inNamespace(t, func() error {
		s := spec()
		s.Alive = Alive{Mark: 1, Timeout: 20 * time.Millisecond, IPv4: true}
		for range 10 {
			r := again(t, s, new(decision.Table), false)
			for deadline := time.Now().Add(time.Minute); ; {
				alive, err := r.IsAlive(decision.IPv4)
				if err != nil {
					return err
				}
				if !alive {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("packets are queued without a heartbeat")
				}
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}
