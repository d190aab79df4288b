package audit_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// services compares services by their contents.
var services = cmp.Options{
	cmpopts.IgnoreUnexported(audit.Service{}, audit.Proxy{}),
	cmpopts.EquateEmpty(), cmpopts.EquateApprox(0, 1e-8),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	// Rules of addresses that several services claim stand behind the others.
	cmpopts.SortSlices(netip.Addr.Less),
	cmpopts.SortSlices(func(a, b netip.Prefix) bool { return a.String() < b.String() }), // nft sorts them
}

// TestGeneratedServicesAreFound: of rules rendered for random clusters, all services are
// read as they are, the configuration too, and nothing is inconsistent.
func TestGeneratedServicesAreFound(t *testing.T) {
	for seed := range uint64(netnstest.Cases(300, 100)) {
		c := newCluster(seed)
		table, _ := servicetable.Table(c.objects, c.config)
		for _, f := range families {
			text := renderFor(t, table, f, c.kernel)
			node := audit.Read(parse(t, text, f))
			var want []*audit.Service
			where := localities(table.Services(), f)
			for _, s := range table.Services() {
				if s.Family == f {
					var siblings []*decision.ServicePort
					for _, other := range table.Service(s.Name.Service()) {
						if other.Family == f {
							siblings = append(siblings, other)
						}
					}
					want = append(want, shown(s, siblings, table.Node().IP(f), where))
				}
			}
			if diff := cmp.Diff(want, node.Services, services); diff != "" {
				t.Fatalf("seed %d, %s: (-want +have)\n%s\nin\n%s", seed, f, diff, text)
			}
			if len(node.Problems) > 0 || len(node.Gaps) > 0 {
				t.Fatalf("seed %d, %s: problems %q, gaps %q in\n%s", seed, f, node.Problems, node.Gaps, text)
			}
			p := node.Proxy
			if p.MasqueradeMark != table.Node().Mark() || p.Version != "1.25 or later" || f == decision.IPv4 && p.LocalhostNodePorts != table.Node().LocalhostNodePorts ||
				p.PassesInvalid != c.kernel.TCPLiberal || !c.kernel.TCPLiberal && p.NFAcct != c.kernel.NFAcct {
				t.Fatalf("seed %d, %s: %+v of %+v", seed, f, p, c.config)
			}
			if c.config.PrimaryNodePorts != (len(p.NodePortAddresses) == 1 && p.NodePortAddresses[0] == table.Node().IP(f)) {
				t.Fatalf("seed %d, %s: node ports on %v", seed, f, p.NodePortAddresses)
			}
		}
	}
}

// TestObjectsGiveTheSameRules: the objects made of what was read, through YAML, are
// rendered to the rules they were read from, in an order that means the same.
func TestObjectsGiveTheSameRules(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(300) {
		c := newCluster(seed)
		table, _ := servicetable.Table(c.objects, c.config)
		var nodes []*audit.Node
		var before []string
		for _, f := range families {
			text := renderFor(t, table, f, c.kernel)
			before = append(before, text)
			nodes = append(nodes, audit.Read(parse(t, text, f)))
		}
		objects := audit.NewObjects("node-1", nodes...)
		again := throughYAML(t, dir, objects)
		table, _ = servicetable.Table(again, audit.Config("node-1", nodes...))
		for i, f := range families {
			again := renderFor(t, table, f, audit.Kernel(nodes...))
			same := audit.Compare(parse(t, before[i], f), parse(t, again, f), false).Same()
			if diff := cmp.Diff(sorted(before[i]), sorted(again)); diff != "" || !same {
				t.Fatalf("seed %d, %s: same %t, (-before +again)\n%s\nnotes %q", seed, f, same, diff, objects.Notes)
			}
		}
	}
}

func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

// throughYAML writes objects to a file, and reads them as the commands do.
func throughYAML(t *testing.T, dir string, objects *audit.Objects) *kube.Objects {
	t.Helper()
	var b bytes.Buffer
	if err := objects.WriteYAML(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := manifest.Load([]string{path})
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, b.String())
	}
	return &again.Objects
}
