package replay

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

// cluster makes the table of node-a in the cluster that the stories of package flow are
// about, after a change of its objects.
func cluster(t testing.TB, change func(*manifest.Objects)) *decision.Table {
	t.Helper()
	objects, err := manifest.Load([]string{"../../flow/testdata/cluster.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(objects)
	}
	config := proxyconfig.Default().Node
	config.Name = "node-a"
	config.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	table, warnings := servicetable.Table(&objects.Objects, config)
	if len(warnings) > 0 {
		t.Fatal(warnings)
	}
	return table
}

func draws() *rand.Rand { return rand.New(rand.NewPCG(1, 0)) }

// capture makes a capture of a text.
func capture(t testing.TB, format, text string) []byte {
	t.Helper()
	f, err := capturetest.ParseFormat(strings.Fields(format))
	if err != nil {
		t.Fatal(err)
	}
	b, err := capturetest.Write(f, text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run replays a capture and gives its records, each as a line with the seconds since the
// beginning, and the capture that comes out.
func run(t testing.TB, r *Replay, capture []byte) (lines []string, out []byte) {
	t.Helper()
	c, err := NewCapture(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = r.Run(c, &b, func(r *flow.Record) error {
		at := r.Time.Sub(capturetest.Epoch)
		copied := *r
		copied.Time, copied.Node = nil, ""
		lines = append(lines, fmt.Sprintf("%s %s", at, text.Style{}.Line(&copied)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, b.Bytes()
}

// decided replays a text by the cluster's table.
func decided(t testing.TB, text string) ([]string, *Summary) {
	t.Helper()
	r := New(ByTable(cluster(t, nil), draws(), false))
	lines, _ := run(t, r, capture(t, "pcap", text))
	return lines, r.Summary()
}

// wantLines compares from the beginning of each line.
func wantLines(t testing.TB, got []string, want ...string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		t.Errorf("have\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
