package takeover

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

// node is a network namespace with rules in it.
type node struct{ xtablestest.Node }

func newNode(t *testing.T) node {
	t.Helper()
	return node{xtablestest.New(t)}
}

func (n node) load(b xtables.Backend, f decision.Family, text string) {
	n.Helper()
	netnstest.RequireTool(n, xtablestest.Tool(b, f, "restore"))
	n.Exec(text, xtablestest.Tool(b, f, "restore"), "--noflush", "--counters")
}

// save is what iptables-save tells, counters included, without its remarks.
func (n node) save(b xtables.Backend, f decision.Family) string {
	n.Helper()
	return xtablestest.WithoutRemarks(n.Exec("", xtablestest.Tool(b, f, "save"), "--counters"))
}

func (n node) find() *Rules {
	n.Helper()
	var l *Rules
	n.Do(func() (err error) { l, err = Find(); return err })
	return l
}

func (n node) remove(l *Rules) {
	n.Helper()
	n.Do(l.Remove)
}

var (
	ownName   = `KUBE-(?:SERVICES|EXTERNAL-SERVICES|NODEPORTS|FORWARD|PROXY-FIREWALL|PROXY-CANARY|POSTROUTING|MARK-MASQ|(?:SVC|SVL|SEP|FW|EXT)-[A-Z0-9]+)`
	ownLine   = regexp.MustCompile(`(?m)^(?::` + ownName + ` .*|\[\d+:\d+\] -A ` + ownName + ` .*)\n`)
	ownJump   = regexp.MustCompile(`(?m)^\[\d+:\d+\] -A (?:INPUT|FORWARD|OUTPUT|PREROUTING|POSTROUTING) .*-j ` + ownName + `\n`)
	ownAnyhow = regexp.MustCompile(ownName)
)

// withoutOwn is what is to stay of the text.
func withoutOwn(text string) string {
	return ownJump.ReplaceAllString(ownLine.ReplaceAllString(text, ""), "")
}

// others are rules of others, of all kinds, before, between and after those of
// kube-proxy. Addresses are put in for % and ports need none.
const others = `*mangle
:PREROUTING ACCEPT [11:1100]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
[1:40] -A PREROUTING -p tcp -m tcp --tcp-flags SYN,RST SYN -m comment --comment "KUBE-SERVICES" -j MARK --set-xmark 0x1/0xffffffff
COMMIT
*filter
:INPUT ACCEPT [21:2100]
:FORWARD DROP [22:2200]
:OUTPUT ACCEPT [23:2300]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NWPLCY-7YQWQ3FX2FTFT5QI - [0:0]
:KUBE-POD-FW-SVC7RBFQ4YQ7XFAK - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-SVC-of-filter - [0:0]
:admin - [0:0]
[2:80] -I INPUT 1 -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT
[3:120] -A INPUT -j KUBE-FIREWALL
[4:160] -A INPUT -p tcp -m multiport --dports 22,443 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT
[5:200] -A INPUT -p udp -m udp --sport 53 -g admin
[6:240] -A INPUT -s %1 -d %2
[7:280] -A FORWARD -m limit --limit 5/min -j KUBE-POD-FW-SVC7RBFQ4YQ7XFAK
[8:320] -A FORWARD -i eth+ ! -o docker0 -j admin
[9:360] -A OUTPUT -j KUBE-FIREWALL
[10:400] -A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
[12:440] -A KUBE-POD-FW-SVC7RBFQ4YQ7XFAK -j KUBE-NWPLCY-7YQWQ3FX2FTFT5QI
[13:480] -A KUBE-POD-FW-SVC7RBFQ4YQ7XFAK -m mark ! --mark 0x10000/0x10000 -j REJECT
[14:520] -A KUBE-NWPLCY-7YQWQ3FX2FTFT5QI -s %1 -j MARK --set-xmark 0x10000/0x10000
[15:560] -A KUBE-NWPLCY-7YQWQ3FX2FTFT5QI -j RETURN
[16:600] -A KUBE-ROUTER-INPUT -d %2 -j RETURN
[17:640] -A KUBE-SVC-of-filter -j ACCEPT
[18:680] -A admin -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [31:3100]
:INPUT ACCEPT [32:3200]
:OUTPUT ACCEPT [33:3300]
:POSTROUTING ACCEPT [34:3400]
:CNI-HOSTPORT-DNAT - [0:0]
:DOCKER - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
[19:720] -I PREROUTING 1 -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
[20:760] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
[21:800] -A OUTPUT -d %2 -j DOCKER
[22:840] -A POSTROUTING -s %1 ! -o docker0 -j MASQUERADE
[23:880] -A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8080 -j DNAT --to-destination %3
[24:920] -A DOCKER -i docker0 -j RETURN
[25:960] -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
`

func othersOf(f decision.Family) string {
	with := strings.NewReplacer("%1", "192.0.2.0/24", "%2", "198.51.100.7/32", "%3", "192.0.2.5:80")
	if f == decision.IPv6 {
		with = strings.NewReplacer("%1", "2001:db8::/64", "%2", "2001:db8:1::7/128", "%3", "[2001:db8::5]:80")
	}
	return with.Replace(others)
}

// kubeProxy gives rules as kube-proxy makes them for so many services.
func kubeProxy(t *testing.T, f decision.Family, services int) string {
	t.Helper()
	address := func(network byte, i int) netip.Addr {
		a := [16]byte{0xfd, network, 14: byte(i >> 8), 15: byte(i)}
		if f == decision.IPv4 {
			return netip.AddrFrom4([4]byte{10, network, byte(i >> 8), byte(i)})
		}
		return netip.AddrFrom16(a)
	}
	var ports []*decision.ServicePort
	for i := range services {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: fmt.Sprint("web-", i)}, Protocol: decision.TCP,
			ClusterIP: address(96, i), Port: 80, NodePort: uint16(30000 + i%2000), HasEndpoints: i%10 != 0,
		}
		if s.HasEndpoints {
			for k := range 2 {
				s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(address(244, 2*i+k), 8080)})
			}
			s.Usable = [2][]uint32{{0, 1}, {0, 1}}
		}
		ports = append(ports, s)
	}
	table := decision.NewTable(1, time.Time{}, decision.Node{Name: "node", IPs: []netip.Addr{address(0, 1)}, Detector: decision.Detector{CIDRs: []netip.Prefix{netip.PrefixFrom(address(244, 0), 16)}}}, ports)
	var b bytes.Buffer
	if err := kubesave.Render(&b, kubechains.Rules(table, f, kubechains.Kernel{})); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// String joins Lines and Notes; "no rules of kube-proxy" if there is neither.
func (l *Rules) String() string {
	lines := append(l.Lines(), l.notes...)
	if len(lines) == 0 {
		return "no rules of kube-proxy"
	}
	return strings.Join(lines, "\n")
}
