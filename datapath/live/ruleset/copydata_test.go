package ruleset

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestHairpinsAreShared: an endpoint of two services stays in the set of its family until the last of them is gone.
func TestHairpinsAreShared(t *testing.T) {
	s := spec()
	for f, addr := range map[decision.Family]string{decision.IPv4: "10.244.0.2", decision.IPv6: "fd00::2"} {
		r := &Ruleset{spec: s, tables: newTables(&s), hairpins: newHairpins()}
		service := func(name string) *decision.ServicePort {
			return &decision.ServicePort{
				Name: decision.ServicePortName{Namespace: "default", Name: name}, Protocol: decision.TCP, Family: f,
				Endpoints: []decision.Endpoint{{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(addr), 8080), Local: true}},
			}
		}
		a, b := service("a"), service("b")
		for i, step := range []struct {
			services []*decision.ServicePort
			want     string
		}{{[]*decision.ServicePort{a, b}, "1 added"}, {[]*decision.ServicePort{b}, ""}, {nil, "1 removed"}, {[]*decision.ServicePort{a}, "1 added"}} {
			table, diff := decision.NewTable(uint64(i+1), time.Time{}, decision.Node{}, step.services), make(difference)
			r.hairpins.add(r.noteHairpins(diff, table))
			r.followed = table
			got := ""
			for _, c := range diff[r.tables.of(f).copy.hairpin] {
				got = fmt.Sprintf("%d %s", len(diff[r.tables.of(f).copy.hairpin]), map[bool]string{true: "added", false: "removed"}[c.has])
			}
			if got != step.want || len(diff) > 1 {
				t.Errorf("%s, table %d: %q, want %q", f, i+1, got, step.want)
			}
		}
	}
}
