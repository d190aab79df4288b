package ruleset

import (
	"testing"
	"time"

	"github.com/google/nftables"
)

// TestLostEvents: where more happens than the watch hears of, the table may be gone. If it
// is not, it stays as it is, with all that is in it; and it is watched on.
func TestLostEvents(t *testing.T) {
	inNamespace(t, func() error {
		r, err := install(spec())
		if err != nil {
			return err
		}
		defer r.Remove() //nolint:errcheck // the namespace goes anyway
		seen, err := OpenSeen()
		if err != nil {
			return err
		}
		defer seen.Close() //nolint:errcheck // likewise
		remember(t, r, flows(1000, 1))
		for round := range 2 {
			if err := r.watch.conn.SetReadBuffer(1); err != nil {
				return err
			}
			for end := time.Now().Add(time.Minute); !isLost(r); {
				if time.Now().After(end) {
					t.Fatal("no event was lost")
				}
				many := flows(2000, 200)
				remember(t, r, many)
				if err := seen.Forget(many); err != nil {
					return err
				}
			}
			if reinstalled, err := r.Restore(); reinstalled || err != nil {
				t.Fatalf("round %d: the table is there: reinstalled %t, %v", round, reinstalled, err)
			}
			if n, err := r.conn.GetSetElements(r.sets.seen4.nft); len(n) != 1 || err != nil {
				t.Fatalf("round %d: %d elements in the set, %v; want 1", round, len(n), err)
			}
		}

		r.conn.DelTable(&nftables.Table{Name: TableName, Family: nftables.TableFamilyINet})
		if err := r.conn.Flush(); err != nil {
			return err
		}
		<-r.Lost()
		if reinstalled, err := r.Restore(); !reinstalled || err != nil {
			t.Errorf("the table is gone: reinstalled %t, %v", reinstalled, err)
		}
		if chains, _ := kernelRules(t); chains == 0 {
			t.Error("and not there again")
		}
		if isLost(r) {
			t.Error("our own installation is taken for a loss")
		}
		return nil
	})
}

func isLost(r *Ruleset) bool {
	select {
	case <-r.Lost():
		return true
	default:
		return false
	}
}
