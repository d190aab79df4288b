package netfilter

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// TestSets: the kernel's own sets cannot be compared where it has none; these are the
// rules of ip_set_hash_*.c and ip_set_list_set.c.
func TestSets(t *testing.T) {
	sets, err := iptables.ParseSets(strings.NewReader(`create addresses hash:ip family inet
add addresses 10.0.0.1
add addresses 10.0.0.8/30
create networks hash:net family inet
add networks 10.0.0.0/8
add networks 10.1.0.0/16 nomatch
add networks 10.1.2.0/24
create services hash:ip,port family inet
add services 10.96.0.10,udp:53
add services 10.96.0.11,tcp:8000-8010
add services 10.96.0.12,icmp:echo-request
create pairs hash:ip,port,net family inet
add pairs 10.96.0.10,tcp:80,192.0.2.0/24
create ports bitmap:port range 0-65535
add ports 80
create devices hash:net,iface family inet
add devices 10.0.0.0/8,eth0
create range bitmap:ip range 192.168.0.0/24
add range 192.168.0.5-192.168.0.9
create any list:set size 8
add any addresses
add any ports
create marks hash:ip,mark family inet
add marks 10.0.0.1,0x1
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		match               string
		protocol            uint8
		source, destination string
		want                string // yes, no, or unknown
	}{
		{"addresses src", protoTCP, "10.0.0.1:1", "10.9.9.9:1", "yes"},
		{"addresses dst", protoTCP, "10.0.0.1:1", "10.9.9.9:1", "no"},
		{"addresses src", protoTCP, "10.0.0.10:1", "10.9.9.9:1", "yes"},
		{"addresses src", protoTCP, "10.0.0.12:1", "10.9.9.9:1", "no"},
		{"! addresses src", protoTCP, "10.0.0.12:1", "10.9.9.9:1", "yes"},
		{"networks dst", protoTCP, "192.0.2.1:1", "10.2.0.1:1", "yes"},
		{"networks dst", protoTCP, "192.0.2.1:1", "10.1.0.1:1", "no"}, // nomatch
		{"networks dst", protoTCP, "192.0.2.1:1", "10.1.2.1:1", "yes"},
		{"networks dst", protoTCP, "192.0.2.1:1", "11.1.2.1:1", "no"},
		{"services dst,dst", protoUDP, "192.0.2.1:1", "10.96.0.10:53", "yes"},
		{"services dst,dst", protoTCP, "192.0.2.1:1", "10.96.0.10:53", "no"},
		{"services dst,dst", protoTCP, "192.0.2.1:1", "10.96.0.11:8005", "yes"},
		{"services dst,dst", protoTCP, "192.0.2.1:1", "10.96.0.11:8011", "no"},
		{"services dst,src", protoTCP, "192.0.2.1:8005", "10.96.0.11:1", "yes"},
		{"services dst,dst", protoICMP, "192.0.2.1:0", "10.96.0.12:0", "yes"},
		{"pairs dst,dst,src", protoTCP, "192.0.2.7:1", "10.96.0.10:80", "yes"},
		{"pairs dst,dst,src", protoTCP, "192.0.3.7:1", "10.96.0.10:80", "no"},
		{"ports dst", protoUDP, "192.0.3.7:1", "10.96.0.10:80", "yes"},
		{"ports src", protoUDP, "192.0.3.7:1", "10.96.0.10:80", "no"},
		{"devices src,src", protoTCP, "10.0.0.1:1", "192.0.2.1:1", "yes"},
		{"devices src,dst", protoTCP, "10.0.0.1:1", "192.0.2.1:1", "no"},
		{"range dst", protoTCP, "10.0.0.1:1", "192.168.0.7:1", "yes"},
		{"range dst", protoTCP, "10.0.0.1:1", "192.168.0.4:1", "no"},
		{"any dst", protoTCP, "10.0.0.5:1", "10.0.0.1:1", "yes"},
		{"any dst", protoTCP, "10.0.0.5:1", "10.0.0.2:80", "yes"},
		{"any dst", protoTCP, "10.0.0.5:1", "10.0.0.2:81", "no"},
		{"marks src,src", protoTCP, "10.0.0.1:1", "10.0.0.2:81", "unknown"},
		{"missing src", protoTCP, "10.0.0.1:1", "10.0.0.2:81", "unknown"},
	} {
		negated := ""
		match, ok := strings.CutPrefix(tt.match, "! ")
		if ok {
			negated = "! "
		}
		name, directions, _ := strings.Cut(match, " ")
		d, err := iptables.Parse(strings.NewReader("*raw\n-A PREROUTING -m set "+negated+"--match-set "+name+" "+directions+" -j DROP\nCOMMIT\n"), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := New([]*iptables.Dump{d}, sets, worker(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := packet(tt.protocol, tt.source, tt.destination, "eth0")
		if tt.protocol == protoICMP {
			p.ICMPType = 8
		}
		r := m.Send(p, &State{}, nil)
		got := map[Verdict]string{Dropped: "yes", Stopped: "unknown"}[r.Verdict]
		if r.Verdict == Dropped && r.By == nil || got == "" {
			got = "no"
		}
		if got != tt.want {
			t.Errorf("%s of %s: %s, want %s", tt.match, p.String(), got, tt.want)
		}
	}
}
