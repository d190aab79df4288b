package ruleset

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestLostEvents: where more happens than the watch can receive, the table may be damaged. If it
// is not, it stays as it is, with all that is in it; and it is watched on.
func TestLostEvents(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	installed(t, spec(), func(r *Ruleset) error {
		seen := openSeen(t)
		table := decision.NewTable(1, time.Time{}, decision.Node{}, nil)
		remember(t, r, flows(1000, 1))
		if err := r.watch.SetReadBuffer(1); err != nil {
			return err
		}
		for round := range 2 {
			for end := time.Now().Add(time.Minute); !isChanged(r); {
				if time.Now().After(end) {
					t.Fatal("no event was lost")
				}
				many := flows(2000, 200)
				remember(t, r, many)
				if err := seen.Forget(many); err != nil {
					return err
				}
			}
			if done, err := r.Audit(table, true); !done.None() || err != nil {
				t.Fatalf("round %d: the table is undamaged: %+v, %v", round, done, err)
			}
			if n, err := r.tables[0].readElements(r.tables[0].seen); len(n) != 1 || err != nil {
				t.Fatalf("round %d: %d elements in the set, %v; want 1", round, len(n), err)
			}
		}
		r.watch.SetReadBuffer(1 << 18) // as good as it gets
		changeRules(t, "delete table ip nfqproxy")
		repairs(t, r, table)
		return nil
	})
}

func isChanged(r *Ruleset) bool {
	select {
	case <-r.Changed():
		return true
	default:
		return false
	}
}
