package hostnet

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestWatchReversePath: sysctls, interfaces and routing rules are followed as they change.
func TestWatchReversePath(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New("host")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(ns.SetSysctl("net.ipv4.conf.all.rp_filter", "0"), ns.SetSysctl("net.ipv4.conf.default.rp_filter", "0"))
	index := func(name string) (i uint32) {
		must(ns.Do(func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				i = uint32(l.Attrs().Index)
			}
			return err
		}))
		return i
	}
	var w *ReversePathWatch
	must(ns.Do(func() (err error) {
		w, err = WatchReversePath()
		return err
	}))
	await := func(what string, want ReversePath) {
		t.Helper()
		timeout := time.After(3 * time.Minute)
		for {
			select {
			case p := <-w.Changes:
				if p.equal(want) {
					return
				}
			case err := <-w.Failed:
				t.Fatal(err)
			case <-timeout:
				t.Fatalf("%s: waited for %+v", what, want)
			}
		}
	}
	await("at first", ReversePath{})
	must(ns.AddVeth("a", other, "a"), ns.AddVeth("b", other, "b"), ns.SetSysctl("net.ipv4.conf.a.rp_filter", "1"))
	a, b, lo := index("a"), index("b"), uint32(1)
	await("an interface", ReversePath{Strict: []uint32{a}})
	must(ns.SetSysctl("net.ipv4.conf.all.rp_filter", "2"))
	await("all interfaces", ReversePath{Loose: []uint32{lo, a, b}})
	must(ns.SetSysctl("net.ipv4.conf.all.rp_filter", "0"))
	await("not all", ReversePath{Strict: []uint32{a}})

	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Family = 100, 50, netlink.FAMILY_V4
	must(ns.Do(func() error { return netlink.RuleAdd(rule) })) // another table for all
	must(ns.SetSysctl("net.ipv4.conf.b.rp_filter", "1"))
	await("a rule without selectors", ReversePath{Strict: []uint32{a, b}})
	selective := netlink.NewRule()
	selective.Table, selective.Priority, selective.Family = 100, 51, netlink.FAMILY_V4
	selective.Src = &net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32)}
	must(ns.Do(func() error { return netlink.RuleAdd(selective) }))
	await("a rule with a selector", ReversePath{Selective: true})
	must(ns.Do(func() error { return netlink.RuleDel(selective) }))
	await("without it", ReversePath{Strict: []uint32{a, b}})
	must(ns.SetSysctl("net.ipv4.conf.b.ignore_routes_with_linkdown", "1"))
	await("routes that do not count", ReversePath{Loose: []uint32{a, b}})
	must(w.Close())
}

func TestReversePathOf(t *testing.T) {
	for _, tt := range []struct {
		name          string
		confs         []interfaceConf
		selective     bool
		strict, loose []uint32
	}{
		{"off", []interfaceConf{{index: allInterfaces}, {index: defaultInterfaces, rpFilter: 1}, {index: 2}}, false, nil, nil},
		{"of one", []interfaceConf{{index: 3, rpFilter: 1}, {index: 2, rpFilter: 2}, {index: allInterfaces}}, false, []uint32{3}, []uint32{2}},
		{"of all", []interfaceConf{{index: allInterfaces, rpFilter: 1}, {index: 4}, {index: 3, rpFilter: 2}, {index: 2, rpFilter: 1}}, false, []uint32{2, 4}, []uint32{3}},
		{"loose of all", []interfaceConf{{index: allInterfaces, rpFilter: 2}, {index: 2, rpFilter: 1}}, false, nil, []uint32{2}},
		{"links without routes", []interfaceConf{{index: 2, rpFilter: 1}, {index: 3, ignoreLinkDown: true}}, false, nil, []uint32{2}},
		{"links without routes by default", []interfaceConf{{index: 2, rpFilter: 1}, {index: defaultInterfaces, ignoreLinkDown: true}}, false, []uint32{2}, nil},
		{"selectors", []interfaceConf{{index: 2, rpFilter: 1}}, true, nil, nil},
	} {
		want := ReversePath{Strict: tt.strict, Loose: tt.loose, Selective: tt.selective}
		if got := reversePathOf(tt.confs, tt.selective); !got.equal(want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
}
