package diagnose

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// TestWrongNeighbours: only what nobody but a wrong entry explains is one.
func TestWrongNeighbours(t *testing.T) {
	host := func(eth0, docker0, last string, neighbours ...string) *netfilter.Host {
		h := new(netfilter.Host)
		text := fmt.Sprintf(`[{"ifname":"eth0","address":"02:00:00:00:00:%s","addr_info":[{"local":%q,"prefixlen":24}]},
{"ifname":"docker0","address":"02:42:00:00:00:%[1]s","addr_info":[{"local":%[3]q,"prefixlen":16},{"local":"fe80::1","prefixlen":64}]}][%s]`, last, eth0, docker0, strings.Join(neighbours, ","))
		if err := h.Read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		return h
	}
	entry := func(to, mac, state string) string {
		return fmt.Sprintf(`{"dst":%q,"dev":"eth0","lladdr":%q,"state":[%q]}`, to, mac, state)
	}
	hosts := map[string]*netfilter.Host{
		"a": host("192.0.2.1", "172.17.0.1", "01",
			entry("192.0.2.2", "02:00:00:00:00:03", "STALE"),       // the device of c
			entry("192.0.2.3", "02:42:00:00:00:03", "REACHABLE"),   // another device of c
			entry("192.0.2.1", "02:00:00:00:00:02", "PERMANENT"),   // its own address
			entry("172.17.0.1", "02:42:00:00:00:02", "PERMANENT"),  // an address of all nodes
			entry("fe80::1", "02:00:00:00:00:03", "PERMANENT"),     // of one link
			entry("192.0.2.254", "02:00:00:00:00:fe", "REACHABLE"), // no node
		),
		"b": host("192.0.2.2", "172.17.0.1", "02",
			entry("192.0.2.1", "02:00:00:00:00:99", "REACHABLE"), // the network may answer
			entry("192.0.2.3", "02:00:00:00:00:99", "PERMANENT"),
			`{"dst":"192.0.2.1","dev":"docker0","state":["FAILED"]}`,
		),
		"c": host("192.0.2.3", "172.17.0.1", "03", entry("192.0.2.1", "02:00:00:00:00:01", "REACHABLE")),
	}
	var got []string
	for _, of := range WrongNeighbours(hosts) {
		for _, f := range of.Findings {
			got = append(got, of.Node+": "+f.Text)
		}
	}
	want := []string{
		"a: packets for 192.0.2.2, the address of b (eth0), go to eth0 of c (02:00:00:00:00:03) by eth0",
		"b: packets for 192.0.2.3, the address of c (eth0), go to 02:00:00:00:00:99 by eth0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
