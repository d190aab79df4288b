package serving

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// TestLikeKubeProxy sends the same odd packets through a node with kube-proxy's rules and
// through one with the daemon: what docs/explanation/kube-proxy-rules.md says of each rule is so.
func TestLikeKubeProxy(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-restore")
	netnstest.RequireTool(t, "ip6tables-restore")
	for _, tt := range []struct {
		name   string
		daemon bool
	}{
		{"kube-proxy's rules", false},
		{"nfqproxy", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := proxied{e2etest.NewCluster(t), tt.daemon}
			c.Edit(func(s string) string { return s + oneFamilyServices })
			if !c.daemon {
				useKubeProxysRules(c.Cluster)
			}
			routeVIPs(c.Cluster, "outside", "172.21.0.2", "fd00:172:21::2")
			listenEverywhere(c.Cluster, "node-a", 30090, 30100, 30200, 30300)
			e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
				c.Use(t)
				probeServices(c, at)
				probeInvalid(c.Cluster, at)
			})
			c.Use(t)
			probeLocalhostSCTP(c.Cluster)
			probeDownload(c.Cluster)
			closeForwarding(c.Cluster, "node-a")
			e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
				c.Use(t)
				probeForwarding(c, at)
			})
		})
	}
}

// proxied is a lab whose node-a has a daemon or kube-proxy's rules.
type proxied struct {
	*e2etest.Cluster
	daemon bool
}

// outcome says what becomes of a TCP connection, or of a datagram.
func (c proxied) outcome(from, network, to, want string) string {
	c.T.Helper()
	if want == becomesSilent {
		return silent(c.Cluster, c.daemon, from, to)
	}
	return outcome(c.Cluster, from, network, to)
}

// oneFamilyServices are node ports that only one family has: 30200 in IPv4, 30300 in IPv6. That
// of service far, 30400, leads to another node.
const oneFamilyServices = `
---
apiVersion: v1
kind: Service
metadata: {name: only4, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.0.80, ports: [{name: http, port: 80, nodePort: 30200}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: only4, namespace: default, labels: {kubernetes.io/service-name: only4}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["10.244.0.4"]}]
---
apiVersion: v1
kind: Service
metadata: {name: only6, namespace: default}
spec: {type: NodePort, clusterIP: "fd00:10:96::90", ports: [{name: http, port: 80, nodePort: 30300}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: only6, namespace: default, labels: {kubernetes.io/service-name: only6}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["fd00:10:244::4"]}]
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: default}
spec: {type: NodePort, clusterIP: 10.96.0.91, clusterIPs: [10.96.0.91, "fd00:10:96::91"], ports: [{name: http, port: 80, nodePort: 30400}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far4, namespace: default, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["10.244.1.2"]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far6, namespace: default, labels: {kubernetes.io/service-name: far}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["fd00:10:244:1::2"]}]
`

// useKubeProxysRules puts kube-proxy's rules in the place of node-a's daemon.
func useKubeProxysRules(c *e2etest.Cluster) {
	c.T.Helper()
	node := c.Host("node-a")
	c.Must(c.StopDaemon(c.T.Context(), "node-a"))
	for family, restore := range map[string]string{"ipv4": "iptables-restore", "ipv6": "ip6tables-restore"} {
		code, rules, stderr := e2etest.Run(c.T, nil, "render", "--objects", c.Objects, "--node", "node-a",
			"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--family", family)
		if code != 0 {
			c.T.Fatalf("render: %s", stderr)
		}
		if out, err := node.Run(rules, restore, "-w"); err != nil {
			c.T.Fatalf("%s: %v\n%s", restore, err, out)
		}
	}
	if err := node.SetSysctl("net.ipv4.conf.all.route_localnet", "1"); err != nil {
		c.T.Fatal(err)
	}
}

// theNode is who answers at a port of the node itself.
const theNode = "the node itself"

// listenEverywhere has the node itself answer at TCP ports, at all addresses.
func listenEverywhere(c *e2etest.Cluster, host string, ports ...uint16) {
	c.T.Helper()
	for _, port := range ports {
		l, err := c.Host(host).Listen(c.T.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err != nil {
			c.T.Fatal(err)
		}
		c.T.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = json.NewEncoder(conn).Encode(lab.Answer{Pod: theNode, Client: conn.RemoteAddr().String()})
				_ = conn.Close()
			}
		}()
	}
}

// becomesRefused is what can become of a connection, besides the name of who answers and [becomesSilent].
const becomesRefused = "refused"

// outcome says what becomes of a TCP connection, or of a datagram, that is answered or refused.
func outcome(c *e2etest.Cluster, from, network, to string) string {
	c.T.Helper()
	d := net.Dialer{Timeout: e2etest.Timeout}
	var conn net.Conn
	err := c.Host(from).Do(func() (err error) { conn, err = d.DialContext(c.T.Context(), network, to); return err })
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(e2etest.Timeout))
		var a lab.Answer
		if a, err = e2etest.Ask(conn); err == nil {
			return a.Pod + " sees " + e2etest.HostOf(a.Client)
		}
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return becomesRefused
	}
	return err.Error()
}

// probeServices connects by each way that one of kube-proxy's rules is about.
func probeServices(c proxied, at func(v4, v6 string, port int) string) {
	nodeA := func(port int) string { return at("172.21.0.2", "fd00:172:21::2", port) }
	loopback := func(port int) string { return at("127.0.0.1", "::1", port) }
	closed := func(port int) string { return at("10.96.0.40", "fd00:10:96::40", port) }
	gateway, outside := at("10.244.0.1", "fd00:10:244::1", 0), at("172.21.0.100", "fd00:172:21::100", 0)
	v6 := at("0.0.0.0", "::", 0) == "::"
	ofFamily := func(v4, v6is string) string {
		if v6 {
			return v6is
		}
		return v4
	}
	const solo = "default/solo sees "
	for _, p := range []struct{ rule, from, network, to, want string }{
		{"KUBE-SERVICES: ClusterIP", "shell", "tcp", at("10.96.0.30", "fd00:10:96::30", 80), solo + at("10.244.0.9", "fd00:10:244::9", 0)},
		{"KUBE-SEP: hairpin", "solo", "tcp", at("10.96.0.30", "fd00:10:96::30", 80), solo + gateway},
		{"KUBE-NODEPORTS", "outside", "tcp", nodeA(30090), solo + gateway},
		{"KUBE-NODEPORTS at 127.0.0.1, not at ::1", "node-a", "tcp", loopback(30090), ofFamily(solo+gateway, theNode+" sees ::1")},
		{"a node port of IPv4", "outside", "tcp", nodeA(30200), ofFamily(solo+gateway, theNode+" sees "+outside)},
		{"a node port of IPv6", "outside", "tcp", nodeA(30300), ofFamily(theNode+" sees "+outside, solo+gateway)},
		{"KUBE-SERVICES in filter: no endpoints", "shell", "tcp", closed(80), becomesRefused},
		{"KUBE-SERVICES in filter: no endpoints", "shell", "udp", closed(53), becomesRefused},
		{"KUBE-SERVICES in OUTPUT: no endpoints", "node-a", "tcp", closed(80), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no endpoints", "outside", "tcp", nodeA(30100), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no endpoints", "outside", "udp", nodeA(30100), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no endpoints, from the node", "node-a", "tcp", nodeA(30100), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no endpoints, at loopback", "node-a", "tcp", loopback(30100), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no endpoints, at loopback", "node-a", "udp", loopback(30100), becomesRefused},
		{"KUBE-EXTERNAL-SERVICES: no local endpoints", "outside", "tcp", nodeA(30110), becomesSilent},
		{"KUBE-EXT: from a pod, policy Local", "shell", "tcp", nodeA(30110), "default/web-2 sees " + at("10.244.0.9", "fd00:10:244::9", 0)},
		{"KUBE-EXT: from the node, policy Local", "node-a", "tcp", nodeA(30110), "default/web-2 sees " + nodeA(0)},
		{"KUBE-FW: allowed", "outside", "tcp", at("203.0.113.10", "2001:db8:8::8", 80), "default/web-1 sees " + gateway},
		{"KUBE-PROXY-FIREWALL: not allowed", "shell", "tcp", at("203.0.113.10", "2001:db8:8::8", 80), becomesSilent},
		{"KUBE-SERVICES: external IP", "outside", "tcp", at("198.51.100.7", "2001:db8:7::7", 80), "default/web-1 sees " + gateway},
	} {
		if got := c.outcome(p.from, p.network, p.to, p.want); got != p.want {
			c.T.Errorf("%s: %s from %s to %s: %s, want %s", p.rule, p.network, p.from, p.to, got, p.want)
		}
	}
}

// closeForwarding has a node drop what no rule of its firewall accepts, as Docker does, and
// waits for the rules of the proxy.
func closeForwarding(c *e2etest.Cluster, host string) {
	c.T.Helper()
	node := c.Host(host)
	for _, iptables := range []string{"iptables", "ip6tables"} {
		if out, err := node.Run("", iptables, "-w", "-P", "FORWARD", "DROP"); err != nil {
			c.T.Fatalf("%s: %v\n%s", iptables, err, out)
		}
		e2etest.Eventually(c.T, e2etest.Timeout, "the proxy's rules in FORWARD", func() bool {
			out, err := node.Run("", iptables, "-w", "-S", "FORWARD")
			return err == nil && (strings.Contains(out, "-j KUBE-FORWARD") || strings.Contains(out, "-j NFQPROXY-FORWARD"))
		})
	}
}

// probeForwarding connects by way of a node whose policy of FORWARD is DROP: flows that are
// masqueraded pass, others are for the node's firewall to accept.
func probeForwarding(c proxied, at func(v4, v6 string, port int) string) {
	nodeA := func(port int) string { return at("172.21.0.2", "fd00:172:21::2", port) }
	gateway := at("10.244.0.1", "fd00:10:244::1", 0)
	for _, p := range []struct{ rule, from, to, want string }{
		{"KUBE-FORWARD: marked, endpoint on the node", "outside", nodeA(30090), "default/solo sees " + gateway},
		{"KUBE-FORWARD: marked, endpoint on another node", "outside", nodeA(30400), "default/web-2 sees " + nodeA(0)},
		{"KUBE-FORWARD: hairpin", "solo", at("10.96.0.30", "fd00:10:96::30", 80), "default/solo sees " + gateway},
		{"KUBE-FORWARD: from the node itself", "node-a", at("10.96.0.91", "fd00:10:96::91", 80), "default/web-2 sees " + nodeA(0)},
		{"KUBE-FORWARD: not marked", "shell", at("10.96.0.91", "fd00:10:96::91", 80), becomesSilent},
	} {
		if got := c.outcome(p.from, "tcp", p.to, p.want); got != p.want {
			c.T.Errorf("%s: from %s to %s: %s, want %s", p.rule, p.from, p.to, got, p.want)
		}
	}
}

// TCP flags.
const fin, syn, rst, ack = 1, 2, 4, 16

// tcpSegment makes a TCP header without options, with an unfinished checksum where addresses
// are unknown.
func tcpSegment(src, dst netip.AddrPort, seq uint32, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], 1)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 65535)
	sum := uint32(6 + len(b))
	for _, part := range [][]byte{src.Addr().AsSlice(), dst.Addr().AsSlice(), b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// sendTCP sends one segment from a raw socket of a host.
func sendTCP(c *e2etest.Cluster, host string, src, dst netip.AddrPort, seq uint32, flags byte) {
	c.T.Helper()
	network := "ip4:6"
	if src.Addr().Is6() {
		network = "ip6:6"
	}
	c.Must(c.Host(host).Do(func() error {
		conn, err := net.ListenPacket(network, src.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.WriteTo(tcpSegment(src, dst, seq, flags), &net.IPAddr{IP: dst.Addr().AsSlice()})
		return err
	}))
}

// probeInvalid sends packets that are invalid to conntrack by way of the node to a service.
// None may leave it.
func probeInvalid(c *e2etest.Cluster, at func(v4, v6 string, port int) string) {
	c.T.Helper()
	shell := netip.MustParseAddrPort(at("10.244.0.9", "fd00:10:244::9", 45000))
	vip := netip.MustParseAddrPort(at("10.96.0.20", "fd00:10:96::20", 80))
	toVIP, toOutside := countForwarded(c, netip.Addr{}, vip.Addr(), vip.Port()), countForwarded(c, netip.Addr{}, netip.MustParseAddr(at("172.21.0.100", "fd00:172:21::100", 0)), 9)
	for _, flags := range []byte{syn | fin, syn | ack, rst, fin, ack | fin | rst} {
		sendTCP(c, "shell", shell, vip, 1, flags)
	}
	// A datagram behind them on the same way, which passes.
	marker := c.Dial("shell", "udp", e2etest.AnyPort, at("172.21.0.100", "fd00:172:21::100", 9))
	e2etest.Eventually(c.T, e2etest.Timeout, "the datagram behind the invalid packets", func() bool {
		_, err := marker.Write([]byte("behind"))
		return (err == nil || errors.Is(err, syscall.ECONNREFUSED)) && toOutside() > 0
	})
	if n := toVIP(); n > 0 {
		c.T.Errorf("KUBE-FORWARD: %d of 5 invalid packets to %s were forwarded, want none", n, vip)
	}
}

// countForwarded counts the packets to an address and port, from any address or a certain one,
// that leave node-a by way of FORWARD and POSTROUTING.
func countForwarded(c *e2etest.Cluster, from, to netip.Addr, port uint16) (count func() uint64) {
	c.T.Helper()
	name := fmt.Sprintf("test-%x-%d", to.AsSlice(), port)
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	chain := &nftables.Chain{Name: "c", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityLast}
	conn, err := nftables.New(nftables.WithNetNSFd(c.Host("node-a").FD()))
	if err != nil {
		c.T.Fatal(err)
	}
	proto, source, offset, length := byte(unix.NFPROTO_IPV4), uint32(12), uint32(16), uint32(4)
	if to.Is6() {
		proto, source, offset, length = unix.NFPROTO_IPV6, 8, 24, 16
	}
	var isFrom []expr.Any
	if from.IsValid() {
		isFrom = []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: length}, &expr.Cmp{Register: 1, Data: from.AsSlice()},
		}
	}
	conn.AddTable(table)
	conn.AddChain(chain)
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(isFrom, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}, &expr.Cmp{Register: 1, Data: to.AsSlice()},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, &expr.Cmp{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Counter{},
	}...)})
	if err := conn.Flush(); err != nil {
		c.T.Fatal(err)
	}
	return func() uint64 {
		rules, err := conn.GetRules(table, chain)
		if err != nil || len(rules) != 1 {
			c.T.Fatalf("%d rules, error %v", len(rules), err)
		}
		return rules[0].Exprs[len(rules[0].Exprs)-1].(*expr.Counter).Packets
	}
}

// probeDownload has packets out of the window come from the server in the middle of a
// connection by a ClusterIP: the connection goes on (kubernetes#74839).
func probeDownload(c *e2etest.Cluster) {
	c.T.Helper()
	conn := c.Dial("shell", "tcp", netip.MustParseAddrPort("0.0.0.0:45001"), "10.96.0.50:80")
	server, client := netip.MustParseAddrPort("10.244.1.2:8080"), netip.MustParseAddrPort("10.244.0.9:45001")
	untranslated, toShell := countForwarded(c, server.Addr(), client.Addr(), client.Port()), countForwarded(c, netip.Addr{}, client.Addr(), 9)
	// Wherever the connection's numbers are, two of these are above the window, and so invalid;
	// those below it are not (nf_conntrack_proto_tcp.c, tcp_in_window).
	for quarter := range uint32(4) {
		sendTCP(c, "web-2", server, client, quarter<<30, ack)
	}
	marker := c.Dial("web-2", "udp", e2etest.AnyPort, "10.244.0.9:9")
	e2etest.Eventually(c.T, e2etest.Timeout, "the datagram behind the packet out of the window", func() bool {
		_, err := marker.Write([]byte("behind"))
		return (err == nil || errors.Is(err, syscall.ECONNREFUSED)) && toShell() > 0
	})
	if n := untranslated(); n > 0 {
		c.T.Errorf("KUBE-FORWARD: %d of 4 packets out of the window were forwarded untranslated", n)
	}
	if a, err := e2etest.Ask(conn); err != nil || a.Pod != "default/web-2" {
		c.T.Errorf("KUBE-FORWARD: after a packet out of the window: answered by %q, error %v", a.Pod, err)
	}
}

// probeLocalhostSCTP sends an INIT to a node port at 127.0.0.1.
func probeLocalhostSCTP(c *e2etest.Cluster) {
	c.T.Helper()
	client, server := rawSCTP(c, "node-a", "127.0.0.1"), rawSCTP(c, "solo", "10.244.0.4")
	if _, err := client.WriteTo(sctpPacket(41000, 30090, 0, chunkInit), &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		c.T.Fatal(err)
	}
	b := make([]byte, 1500)
	n, from, err := server.ReadFrom(b)
	if err != nil {
		c.T.Fatalf("KUBE-NODEPORTS at 127.0.0.1, SCTP: the endpoint got no INIT: %v", err)
	}
	if n < 32 || from.String() != "10.244.0.1" || binary.BigEndian.Uint16(b[2:]) != 9999 {
		c.T.Errorf("KUBE-NODEPORTS at 127.0.0.1, SCTP: the endpoint got % x from %s", b[:n], from)
	}
}

// TestForeignMarks: marks of other software on packets do not have them refused.
func TestForeignMarks(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for _, mark := range []int{51820, 0x8000, 0xffff} { // wg-quick's default is the first
		for _, to := range []string{"10.244.1.2:8080", "10.96.0.50:80"} {
			d := net.Dialer{Timeout: e2etest.Timeout, Control: func(_, _ string, raw syscall.RawConn) error {
				var err error
				return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }), err)
			}}
			if err := c.Host("node-a").Do(func() error {
				conn, err := d.DialContext(t.Context(), "tcp", to)
				if err != nil {
					return err
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(e2etest.Timeout))
				a, err := e2etest.Ask(conn)
				if err == nil && a.Pod != "default/web-2" {
					err = fmt.Errorf("answered by %+v", a)
				}
				return err
			}); err != nil {
				t.Errorf("mark %#x, to %s: %v", mark, to, err)
			}
		}
	}
}

// TestUntrackedFlows: what the host's own rules exempt from connection tracking is not
// decided, as with the rules of NodeLocal DNSCache for the address of the cluster's DNS.
func TestUntrackedFlows(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-restore")
	c := e2etest.NewCluster(t)
	node := c.Host("node-a")
	const vip, port = "10.96.0.30", 53
	// As node-cache sets them up (kubernetes/dns, cmd/node-cache/app/cache_app.go).
	rules := strings.ReplaceAll(`*raw
-A PREROUTING -d VIP/32 -p udp -m udp --dport 53 -j NOTRACK
-A OUTPUT -s VIP/32 -p udp -m udp --sport 53 -j NOTRACK
-A OUTPUT -d VIP/32 -p udp -m udp --dport 53 -j NOTRACK
COMMIT
`, "VIP", vip)
	if out, err := node.Run(rules, "iptables-restore", "-w", "--noflush"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := node.AddAddress("lo", netip.MustParsePrefix(vip+"/32")); err != nil {
		t.Fatal(err)
	}
	cache, err := node.ListenPacket(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(vip), port))
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	go func() {
		b := make([]byte, 1500)
		for {
			_, from, err := cache.ReadFrom(b)
			if err != nil {
				return
			}
			answer, _ := json.Marshal(lab.Answer{Pod: theNode, Client: from.String()})
			_, _ = cache.WriteTo(append(answer, '\n'), from)
		}
	}()
	for _, from := range []string{"shell", "node-a"} {
		conn := c.Dial(from, "udp", e2etest.AnyPort, vip+":53")
		for range 3 {
			if a := c.Ask(conn); a.Pod != theNode {
				t.Errorf("%s was answered by %+v", from, a)
			}
		}
		c.Sync(from)
		source := conn.LocalAddr().String()
		for _, r := range c.Records() {
			if r.Source == source || r.Destination == source {
				t.Errorf("a record about an untracked flow: %s %s -> %s, %s %s", r.Verdict, r.Source, r.Destination, r.Endpoint, r.Conntrack)
			}
		}
	}
}
