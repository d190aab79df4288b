package ruleset

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// withReversePath is the spec that checks the way back to sources.
func withReversePath() Spec {
	s := spec()
	s.ReversePath = true
	return s
}

func TestReversePathText(t *testing.T) { testText(t, withReversePath(), "testdata/reversepath.nft") }

// TestReversePathSets: the sets follow, also after the ruleset was lost, and nft, a program that does not share
// our encoding, reads the rules.
func TestReversePathSets(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	inNamespace(t, func() error {
		if err := ProbeReversePath(); err != nil {
			netnstest.Missing(t, err.Error())
		}
		r, err := install(t, withReversePath())
		if err != nil {
			return err
		}
		follow := func(p hostnet.ReversePath, strict, loose int) {
			t.Helper()
			if err := r.FollowReversePath(p); err != nil {
				t.Fatal(err)
			}
			if got := elements(t, r); got["rp_strict4"] != strict || got["rp_loose4"] != loose {
				t.Errorf("after %v: %v", p, got)
			}
		}
		follow(hostnet.ReversePath{}, 0, 0)
		follow(hostnet.ReversePath{Strict: []uint32{1, 2}, Loose: []uint32{3}}, 2, 1)
		follow(hostnet.ReversePath{Strict: []uint32{2, 3}, Loose: []uint32{1}}, 2, 1)
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
		for _, want := range []string{
			"iif @rp_strict meta ipsec missing fib saddr type != local fib saddr . iif oif 0 counter",
			"iif @rp_loose meta ipsec missing fib saddr type != local fib saddr oif 0 counter",
			"ip saddr 127.0.0.0/8 accept",
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("nft does not show %q in\n%s", want, out)
			}
		}

		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		if err := r.FollowReversePath(hostnet.ReversePath{Strict: []uint32{5}}); err == nil {
			t.Error("no error while the ruleset is lost")
		}
		table := decision.NewTable(1, time.Time{}, decision.Node{}, nil)
		if done, err := r.Audit(table, true); !done.Reinstalled || err != nil {
			return fmt.Errorf("the audit did %+v, %w", done, err)
		}
		if got := elements(t, r); got["rp_strict4"] != 1 {
			t.Errorf("after the audit: %v", got)
		}
		follow(hostnet.ReversePath{Strict: []uint32{2}}, 1, 0)
		return r.Remove()
	})
}
