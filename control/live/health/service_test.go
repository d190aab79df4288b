package health

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

type changes = map[types.NamespacedName]*Service

var web, api = types.NamespacedName{Namespace: "shop", Name: "web"}, types.NamespacedName{Namespace: "shop", Name: "api"}

// v4 is an IPv4 Service.
func v4(port uint16, endpoints int) *Service {
	return &Service{Port: port, LocalEndpoints: map[decision.Family]int{decision.IPv4: endpoints}}
}

func addresses(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// fixture is a ServiceServer on a network in memory.
type fixture struct {
	*ServiceServer
	*network
	unhealthy atomic.Bool
	reportsMu sync.Mutex
	reports   []string
}

// withServer runs a test in a bubble with its own clock.
func withServer(t *testing.T, on []netip.Addr, test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{network: newNetwork()}
		f.ServiceServer = newServiceServer(ServiceServerConfig{
			Healthy:     func() bool { return !f.unhealthy.Load() },
			Connections: new(limit.Set).Connections("health check node ports", CheckConnections),
			Report: func(s types.NamespacedName, a netip.AddrPort, err error) {
				what := "ok"
				if errors.Is(err, syscall.EADDRINUSE) {
					what = "taken"
				} else if err != nil {
					what = err.Error()
				}
				f.reportsMu.Lock()
				defer f.reportsMu.Unlock()
				f.reports = append(f.reports, fmt.Sprintf("%s %s %s", s.Name, a, what))
			},
			Log: slog.New(slog.DiscardHandler),
		}, f.network.listen)
		f.SetAddresses(on)
		test(t, f)
		f.ServiceServer.Close()
		if n := f.network.len(); n != 0 {
			t.Errorf("%d ports are still open after Close", n)
		}
	})
}

// expect checks which service answers at the address, with how many endpoints: "web 2",
// or "" if the port is closed.
func (f *fixture) expect(t *testing.T, address, want string) {
	t.Helper()
	got := ""
	if r := f.get(t, address, "/"); r != nil {
		_, name, _ := strings.Cut(readAll(t, r), `"name": "`)
		name, _, _ = strings.Cut(name, `"`)
		got = name + " " + r.Header.Get("X-Load-Balancing-Endpoint-Weight")
	}
	if got != want {
		t.Errorf("%s answers %q, want %q", address, got, want)
	}
}

func (f *fixture) expectReports(t *testing.T, want ...string) {
	t.Helper()
	f.reportsMu.Lock()
	defer f.reportsMu.Unlock()
	slices.Sort(f.reports)
	if !slices.Equal(f.reports, want) {
		t.Errorf("reports\n got %q\nwant %q", f.reports, want)
	}
	f.reports = nil
}

// TestAnswer: as kube-proxy's hcHandler, byte by byte.
func TestAnswer(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: v4(30000, 0)})
		for _, c := range []struct {
			endpoints int
			unhealthy bool
			code      int
		}{{0, false, 503}, {3, false, 200}, {3, true, 503}, {0, true, 503}} {
			f.Update(changes{web: v4(30000, c.endpoints)})
			f.unhealthy.Store(c.unhealthy)
			for _, path := range []string{"/", "/healthz", "/any/path?x=y"} {
				r := f.get(t, "0.0.0.0:30000", path)
				if r == nil {
					t.Fatal("the port is closed")
				}
				want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", c.endpoints, !c.unhealthy)
				if body := readAll(t, r); r.StatusCode != c.code || body != want {
					t.Errorf("%+v: %d\n%s\nwant\n%s", c, r.StatusCode, body, want)
				}
				for name, want := range map[string]string{
					"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
					"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(c.endpoints),
				} {
					if got := r.Header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
			}
		}
	})
}

func TestUpdate(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: v4(30000, 1), api: v4(30001, 2)})
		f.expect(t, "0.0.0.0:30000", "web 1")
		f.expect(t, "0.0.0.0:30001", "api 2")
		f.Update(changes{web: v4(30002, 3)}) // another port; api stays as it is
		f.expect(t, "0.0.0.0:30000", "")
		f.expect(t, "0.0.0.0:30002", "web 3")
		f.expect(t, "0.0.0.0:30001", "api 2")
		f.Update(changes{web: v4(30001, 3), api: v4(30002, 2)}) // they swap
		f.expect(t, "0.0.0.0:30001", "web 3")
		f.expect(t, "0.0.0.0:30002", "api 2")
		f.Update(changes{web: v4(0, 3), api: nil})
		f.expect(t, "0.0.0.0:30001", "")
		f.expect(t, "0.0.0.0:30002", "")
		f.Update(changes{web: nil})
		f.expectReports(t)
	})
}

// TestUpdateLeavesConnectionsOpen: a change of the number neither closes the port nor
// cuts off who is connected.
func TestUpdateLeavesConnectionsOpen(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: v4(30000, 1)})
		c, err := f.dial(t.Context(), "0.0.0.0:30000")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for n := 1; n < 3; n++ {
			f.Update(changes{web: v4(30000, n)})
			if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 4096)
			k, err := c.Read(b)
			if want := fmt.Sprintf("Weight: %d\r\n", n); err != nil || !strings.Contains(string(b[:k]), want) {
				t.Fatalf("answer %d: %v\n%s", n, err, b[:k])
			}
		}
	})
}

func TestFamilies(t *testing.T) {
	withServer(t, addresses("::", "0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: {Port: 30000, LocalEndpoints: map[decision.Family]int{decision.IPv4: 1, decision.IPv6: 2}}, api: v4(30001, 5)})
		f.expect(t, "0.0.0.0:30000", "web 1")
		f.expect(t, "[::]:30000", "web 2")
		f.expect(t, "0.0.0.0:30001", "api 5")
		f.expect(t, "[::]:30001", "")
		f.Update(changes{web: {Port: 30000, LocalEndpoints: map[decision.Family]int{decision.IPv6: 3}}})
		f.expect(t, "0.0.0.0:30000", "")
		f.expect(t, "[::]:30000", "web 3")
	})
	withServer(t, addresses("::", "0.0.0.0"), func(t *testing.T, f *fixture) {
		f.network.ipv4 = true
		f.Update(changes{web: {Port: 30000, LocalEndpoints: map[decision.Family]int{decision.IPv4: 1, decision.IPv6: 2}}})
		f.expect(t, "0.0.0.0:30000", "web 1")
		f.expectReports(t) // that there is no IPv6 is no news
		f.SetAddresses(addresses("2001:db8::1"))
		if len(f.reports) != 1 || !strings.Contains(f.reports[0], "[2001:db8::1]:30000") {
			t.Errorf("reports %q, want one of the address that cannot be", f.reports)
		}
	})
}

func TestSetAddresses(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: v4(30000, 1)})
		f.SetAddresses(addresses("192.0.2.1", "192.0.2.2", "2001:db8::1"))
		f.expect(t, "0.0.0.0:30000", "")
		f.expect(t, "192.0.2.1:30000", "web 1")
		f.expect(t, "192.0.2.2:30000", "web 1")
		f.expect(t, "[2001:db8::1]:30000", "")
		f.SetAddresses(addresses("192.0.2.2", "192.0.2.2", "192.0.2.3"))
		f.expect(t, "192.0.2.1:30000", "")
		f.expect(t, "192.0.2.2:30000", "web 1")
		f.Update(changes{api: v4(30001, 2)})
		f.expect(t, "192.0.2.3:30001", "api 2")
		f.SetAddresses(nil)
		f.expect(t, "192.0.2.2:30000", "")
		f.SetAddresses(addresses("0.0.0.0"))
		f.expect(t, "0.0.0.0:30000", "web 1")
		f.expectReports(t)
	})
}

func TestPortThatIsTaken(t *testing.T) {
	withServer(t, addresses("192.0.2.1", "192.0.2.2"), func(t *testing.T, f *fixture) {
		other, err := f.network.listen("tcp4", "192.0.2.1:30000")
		if err != nil {
			t.Fatal(err)
		}
		f.Update(changes{web: v4(30000, 1), api: v4(30001, 2)})
		f.expectReports(t, "web 192.0.2.1:30000 taken")
		f.expect(t, "192.0.2.2:30000", "web 1")
		f.expect(t, "192.0.2.1:30001", "api 2")

		time.Sleep(3 * RebindInterval) // fails again and again: logged once
		f.Update(changes{web: v4(30000, 4)})
		f.expectReports(t)
		_ = other.Close()
		time.Sleep(RebindInterval)
		synctest.Wait()
		f.expectReports(t, "web 192.0.2.1:30000 ok")
		f.expect(t, "192.0.2.1:30000", "web 4")
		time.Sleep(3 * RebindInterval)
		f.expectReports(t)
	})
}

// TestTakenPortOfARemovedService is not tried again.
func TestTakenPortOfARemovedService(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		other, err := f.network.listen("tcp4", "0.0.0.0:30000")
		if err != nil {
			t.Fatal(err)
		}
		f.Update(changes{web: v4(30000, 1)})
		f.expectReports(t, "web 0.0.0.0:30000 taken")
		f.Update(changes{web: nil})
		_ = other.Close()
		time.Sleep(3 * RebindInterval)
		synctest.Wait()
		f.expect(t, "0.0.0.0:30000", "")
		f.expectReports(t)
	})
}

// TestListenerThatFails is bound again.
func TestListenerThatFails(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.Update(changes{web: v4(30000, 1)})
		synctest.Wait()
		f.network.mu.Lock()
		l := f.network.bound[netip.MustParseAddrPort("0.0.0.0:30000")]
		f.network.mu.Unlock()
		_ = l.Close()
		synctest.Wait()
		f.expectReports(t, "web 0.0.0.0:30000 "+net.ErrClosed.Error())
		time.Sleep(RebindInterval)
		synctest.Wait()
		f.expectReports(t, "web 0.0.0.0:30000 ok")
		f.expect(t, "0.0.0.0:30000", "web 1")
	})
}

func TestAfterClose(t *testing.T) {
	withServer(t, addresses("0.0.0.0"), func(t *testing.T, f *fixture) {
		f.ServiceServer.Close()
		f.Update(changes{web: v4(30000, 1)})
		f.SetAddresses(addresses("192.0.2.1"))
		f.expect(t, "0.0.0.0:30000", "")
		f.expect(t, "192.0.2.1:30000", "")
	})
}

// TestRealPorts: on the kernel's loopback, with updates, questions and Close all at once.
func TestRealPorts(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	var reports atomic.Int32
	s := NewServiceServer(ServiceServerConfig{
		Healthy:     func() bool { return true },
		Connections: new(limit.Set).Connections("health check node ports", CheckConnections),
		Report: func(name types.NamespacedName, a netip.AddrPort, err error) {
			if name != web || a != netip.AddrPortFrom(addresses("127.0.0.1")[0], port) || !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("reported %s %s: %v", name, a, err)
			}
			reports.Add(1)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	s.SetAddresses(addresses("127.0.0.1", "127.0.0.2"))
	defer s.Close()
	s.Update(changes{web: v4(port, 7)})
	if n := reports.Load(); n != 1 {
		t.Errorf("%d reports, want one of the address that is taken", n)
	}
	url := fmt.Sprintf("http://127.0.0.2:%d/", port)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for n := range 20 {
				s.Update(changes{web: v4(port, n+1)})
				r, err := client.Get(url)
				if err != nil {
					t.Error(err)
					return
				}
				if body := readAll(t, r); r.StatusCode != http.StatusOK {
					t.Errorf("%d %s", r.StatusCode, body)
				}
			}
		})
	}
	group.Wait()
	s.Close()
	if _, err := client.Get(url); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Close: %v", err)
	}
}

func TestListenAddresses(t *testing.T) {
	for _, c := range []struct{ restricted, want string }{
		{"", "0.0.0.0 ::"},
		{"192.0.2.0/24", "192.0.2.1 ::"},
		{"192.0.2.0/24 2001:db8::/32", "192.0.2.1 2001:db8::1"},
		{"127.0.0.0/8 ::1/128", "127.0.0.1 ::1"},
		{"10.0.0.0/8", "::"},
		{"0.0.0.0/0 192.0.2.0/24", "0.0.0.0 ::"},
		{"fe80::/10", "0.0.0.0"},
	} {
		node := decision.Node{Addresses: addresses("192.0.2.1", "198.51.100.1", "2001:db8::1", "fe80::1")}
		for p := range strings.FieldsSeq(c.restricted) {
			node.NodePortAddresses = append(node.NodePortAddresses, netip.MustParsePrefix(p))
		}
		table := decision.NewTable(1, time.Time{}, node, nil)
		if got := strings.Trim(fmt.Sprint(ListenAddresses(table)), "[]"); got != c.want {
			t.Errorf("restricted to %q: %s, want %s", c.restricted, got, c.want)
		}
	}
}

func TestChanges(t *testing.T) {
	name := func(n string) decision.ServiceName { return decision.ServiceName{Namespace: "default", Name: n} }
	port := func(n, portName, clusterIP string, check uint16, endpoints ...decision.Endpoint) *decision.ServicePort {
		a := netip.MustParseAddr(clusterIP)
		return &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: n, Port: portName}, Protocol: decision.TCP,
			Family: decision.FamilyOf(a), ClusterIP: a, Port: 80, HealthCheckNodePort: check, Endpoints: endpoints,
		}
	}
	endpoint := func(at string, local, ready bool) decision.Endpoint {
		return decision.Endpoint{AddrPort: netip.MustParseAddrPort(at), Local: local, Ready: ready}
	}
	next := func(from *decision.Table, changes ...decision.Change) *decision.Table {
		return from.Next(time.Time{}, decision.Node{}, changes...)
	}
	first := next(new(decision.Table),
		decision.Change{Service: name("web"), Ports: []*decision.ServicePort{
			port("web", "http", "10.96.0.1", 30000, endpoint("10.0.0.1:80", true, true), endpoint("10.0.0.2:80", true, false), endpoint("10.0.0.3:80", false, true), endpoint("[fd00::1]:80", true, true)),
			// The same pod by another port counts once, another one besides.
			port("web", "admin", "10.96.0.1", 30000, endpoint("10.0.0.1:81", true, true), endpoint("10.0.0.4:81", true, true)),
			port("web", "http", "fd96::1", 30000, endpoint("[fd00::1]:80", false, true)),
		}},
		decision.Change{Service: name("plain"), Ports: []*decision.ServicePort{port("plain", "", "10.96.0.2", 0, endpoint("10.0.0.1:80", true, true))}},
		decision.Change{Service: name("gone"), Ports: []*decision.ServicePort{port("gone", "", "10.96.0.3", 30001)}})
	key := func(n string) types.NamespacedName { return types.NamespacedName(name(n)) }
	want := map[types.NamespacedName]*Service{
		key("web"):  {Port: 30000, LocalEndpoints: map[decision.Family]int{decision.IPv4: 2, decision.IPv6: 0}},
		key("gone"): {Port: 30001, LocalEndpoints: map[decision.Family]int{decision.IPv4: 0}},
	}
	if got := Changes(first, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("at first: %v, want %v", got, want)
	}
	second := next(first, decision.Change{Service: name("gone")}, decision.Change{Service: name("plain")})
	if got := Changes(second, first); !reflect.DeepEqual(got, map[types.NamespacedName]*Service{key("gone"): nil}) {
		t.Errorf("then: %v", got)
	}
}
