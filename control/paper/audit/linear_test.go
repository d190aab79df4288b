package audit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// searches are the functions that search a list from its beginning, and how often at most
// they do so, or how long the list is.
var searches = map[string]string{
	"laterType":         "three types",
	"check":             "once",
	"checkHooks":        "three chains",
	"marksDrop":         "a chain for each way to balance",
	"checkNodePortJump": "once",
	"balances":          "once",
	"bare":              "twice",
	"checkElements":     "once",
	"nodeWithin":        "once for each service, its own ranges",
}

// TestListsAreLookedUp: no other function searches a list, which in a loop over a file's rules
// takes quadratic time.
func TestListsAreLookedUp(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(function, func(n ast.Node) bool {
				call, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				of, _ := call.X.(*ast.Ident)
				if of == nil || of.Name != "slices" || !slices.Contains([]string{"Contains", "ContainsFunc", "Index", "IndexFunc"}, call.Sel.Name) {
					return true
				}
				used[function.Name.Name] = true
				if searches[function.Name.Name] == "" {
					t.Errorf("%s: %s calls slices.%s; look the value up in a map", f.Name(), function.Name.Name, call.Sel.Name)
				}
				return true
			})
		}
	}
	for name := range searches {
		if !used[name] {
			t.Errorf("%s searches nothing", name)
		}
	}
}

// crowded are the rules of one service that has n of everything, each twice.
func crowded(n int) string {
	var chains, nat, filter strings.Builder
	rule := func(b *strings.Builder, format string, args ...any) {
		for range 2 {
			fmt.Fprintf(b, "-A "+format+"\n", args...)
		}
	}
	service := func(i int, words, chain string) {
		rule(&nat, `KUBE-SERVICES -d %s/32 -p tcp -m comment --comment "default/one:http %s" -m tcp --dport 80 -j %s`, numbered(12, i), words, chain)
	}
	service(0, "cluster IP", "KUBE-SVC-ONE")
	for i := range n {
		service(1+i, "external IP", "KUBE-EXT-ONE")
		service(1+n+i, "loadbalancer IP", "KUBE-FW-ONE")
		rule(&nat, "KUBE-FW-ONE -s %s/32 -j KUBE-EXT-ONE", numbered(13, i))
		fmt.Fprintf(&chains, ":KUBE-SEP-%d - [0:0]\n", i)
		rule(&nat, "KUBE-SVC-ONE -j KUBE-SEP-%d", i)
		rule(&nat, "KUBE-SEP-%d -p tcp -m tcp -j DNAT --to-destination %s:%d", i, numbered(10, i), 1+i%60000)
		rule(&filter, `KUBE-EXTERNAL-SERVICES -d %s/32 -p tcp -m comment --comment "default/one:other has no endpoints" -m tcp --dport 81 -j REJECT`, numbered(12, 1+n+i))
	}
	for i := range n { // those of the load balancer come last
		rule(&nat, "KUBE-FW-ONE -s %s/32 -j KUBE-EXT-ONE", numbered(12, 1+n+i))
	}
	rule(&nat, "KUBE-EXT-ONE -j KUBE-SVC-ONE")
	return "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ONE - [0:0]\n:KUBE-EXT-ONE - [0:0]\n:KUBE-FW-ONE - [0:0]\n" + chains.String() + nat.String() + "COMMIT\n*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\n" + filter.String() + "COMMIT\n"
}

func numbered(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestCrowdedService: lists keep the order of the rules, and each value once.
func TestCrowdedService(t *testing.T) {
	const n = 3000
	node := audit.Read(parse(t, crowded(n), decision.IPv4))
	if len(node.Services) != 2 {
		t.Fatalf("%d services", len(node.Services))
	}
	s, other := node.Services[0], node.Services[1]
	if s.ClusterIP == (netip.Addr{}) {
		s, other = other, s
	}
	if len(s.ExternalIPs) != n || len(s.LoadBalancerIPs) != n || len(s.SourceRanges) != n || len(s.Endpoints) != n || !s.NodeAllowed {
		t.Fatalf("%d external IPs, %d load balancer IPs, %d ranges, %d endpoints, node allowed %v", len(s.ExternalIPs), len(s.LoadBalancerIPs), len(s.SourceRanges), len(s.Endpoints), s.NodeAllowed)
	}
	for i := range n {
		if s.ExternalIPs[i] != numbered(12, 1+i) || s.LoadBalancerIPs[i] != numbered(12, 1+n+i) || s.SourceRanges[i].Addr() != numbered(13, i) {
			t.Fatalf("%d: %s, %s, %s", i, s.ExternalIPs[i], s.LoadBalancerIPs[i], s.SourceRanges[i])
		}
	}
	if len(other.ExternalIPs) != 0 || len(other.LoadBalancerIPs) != n {
		t.Errorf("the refused port has %d external IPs and %d load balancer IPs", len(other.ExternalIPs), len(other.LoadBalancerIPs))
	}
	c := audit.Compare(parse(t, crowded(n), decision.IPv4), parse(t, crowded(n-1), decision.IPv4), false)
	if len(c.Services) != 2 {
		t.Errorf("%d services differ", len(c.Services))
	}
	if o := audit.NewObjects("", node); len(o.Services) != 1 || len(o.Services[0].Spec.ExternalIPs) != n {
		t.Errorf("%d objects", len(o.Services))
	}
}
