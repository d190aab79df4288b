package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode/utf16"
)

const ipsetSave = `create blocked hash:ip family inet hashsize 1024 maxelem 65536 timeout 300
add blocked 192.0.2.1 timeout 17
add blocked 192.0.2.4-192.0.2.9 comment "by hand, \"twice\""
create nets hash:net family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0x9c2ba0e4
add nets fd00::/64
add nets fd00::5 nomatch
create endpoints hash:ip,port family inet hashsize 1024 maxelem 65536
add endpoints 10.0.0.1,tcp:80
add endpoints 10.0.0.1,udp:53-54 packets 3 bytes 5
add endpoints 10.0.0.1,icmp:8/0
create netport hash:net,port family inet
add netport 10.0.0.0/8,sctp:9
create loop hash:ip,port,ip family inet hashsize 1024 maxelem 65536
add loop 10.0.0.1,tcp:80,10.0.0.1
create sources hash:ip,port,net family inet hashsize 1024 maxelem 65536
add sources 10.0.0.1,80,10.0.0.0/8
create macs hash:mac hashsize 1024 maxelem 65536
add macs 00:11:22:AA:BB:CC
create ports bitmap:port range 0-65535
add ports 30080
create hosts bitmap:ip range 10.0.0.0/24
add hosts 10.0.0.7
create all list:set size 8
add all blocked
`

func TestParseSets(t *testing.T) {
	sets, err := ParseSets(strings.NewReader(ipsetSave))
	if err != nil {
		t.Fatal(err)
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	seventeen := uint32(17)
	want := map[string][]Element{
		"blocked": {
			{Line: 2, Network: prefix("192.0.2.1/32"), Timeout: &seventeen},
			{Line: 3, Range: AddrRange{addr("192.0.2.4"), addr("192.0.2.9")}, Comment: `by hand, "twice"`},
		},
		"nets": {{Line: 5, Network: prefix("fd00::/64")}, {Line: 6, Network: prefix("fd00::5/128"), Nomatch: true}},
		"endpoints": {
			{Line: 8, Network: prefix("10.0.0.1/32"), Protocol: 6, Ports: PortRange{80, 80}},
			{Line: 9, Network: prefix("10.0.0.1/32"), Protocol: 17, Ports: PortRange{53, 54}, Options: []Token{
				{"packets", false, 34}, {"3", false, 42}, {"bytes", false, 44}, {"5", false, 50},
			}},
			{Line: 10, Network: prefix("10.0.0.1/32"), Protocol: 1, Ports: PortRange{0x800, 0x800}},
		},
		"netport": {{Line: 12, Network: prefix("10.0.0.0/8"), Protocol: 132, Ports: PortRange{9, 9}}},
		"loop":    {{Line: 14, Network: prefix("10.0.0.1/32"), Protocol: 6, Ports: PortRange{80, 80}, Second: prefix("10.0.0.1/32")}},
		"sources": {{Line: 16, Network: prefix("10.0.0.1/32"), Protocol: 6, Ports: PortRange{80, 80}, Second: prefix("10.0.0.0/8")}},
		"macs":    {{Line: 18, MAC: MACAddress{0, 0x11, 0x22, 0xaa, 0xbb, 0xcc}}},
		"ports":   {{Line: 20, Ports: PortRange{30080, 30080}}},
		"hosts":   {{Line: 22, Network: prefix("10.0.0.7/32")}},
		"all":     {{Line: 24, Member: "blocked"}},
	}
	for name, elements := range want {
		got := sets[name].Elements
		for i := range got {
			if got[i].Text == "" {
				t.Errorf("%s: an element without its text", name)
			}
			got[i].Text = ""
		}
		if !reflect.DeepEqual(got, elements) {
			t.Errorf("%s: %+v\nwant %+v", name, got, elements)
		}
	}
	if len(sets) != len(want) {
		t.Errorf("%d sets", len(sets))
	}
	if s := sets["blocked"]; s.Timeout == nil || *s.Timeout != 300 || s.Family != IPv4 || s.Line != 1 {
		t.Errorf("%+v", s)
	}
	if s := sets["hosts"]; s.First != addr("10.0.0.0") || s.Last != addr("10.0.0.255") {
		t.Errorf("%+v", s)
	}
	if s := sets["ports"]; s.FirstPort != 0 || s.LastPort != 65535 {
		t.Errorf("%+v", s)
	}
}

// TestParseSetsOfList compares ipset list with ipset save of the same sets.
func TestParseSetsOfList(t *testing.T) {
	const list = `Name: KUBE-CLUSTER-IP
Type: hash:ip,port
Revision: 6
Header: family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1
Size in memory: 408
References: 2
Number of entries: 2
Members:
10.96.0.1,tcp:443
10.96.0.10,udp:53

Name: blocked
Type: hash:ip
Header: family inet6 hashsize 1024 maxelem 65536 timeout 300
Members:
fd00::1 timeout 17

Name: empty
Type: bitmap:port
Header: range 0-65535
Number of entries: 0
Members:
`
	const save = `create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1
add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
add KUBE-CLUSTER-IP 10.96.0.10,udp:53
create blocked hash:ip family inet6 hashsize 1024 maxelem 65536 timeout 300
add blocked fd00::1 timeout 17
create empty bitmap:port range 0-65535
`
	text := func(sets map[string]*Set) map[string]string {
		all := make(map[string]string)
		for name, s := range sets {
			for _, e := range s.Elements {
				all[name] += fmt.Sprintln(e.Text, e.Network, e.Protocol, e.Ports, e.Timeout != nil)
			}
			all[name] += fmt.Sprint(s.Type, s.Family, s.Timeout != nil, s.LastPort)
		}
		return all
	}
	want, err := ParseSets(strings.NewReader(save))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSets(strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(text(got), text(want)) {
		t.Errorf("%v\nwant %v", text(got), text(want))
	}
	members := strings.Index(list, "10.96.0.10,udp")
	for _, cut := range []string{list[:members], list[:strings.Index(list, "Members")], list[:members] + list[strings.Index(list, "\nName: blocked"):]} {
		if _, err := ParseSets(strings.NewReader(cut)); err == nil || !strings.Contains(err.Error(), `the elements of set "KUBE-CLUSTER-IP" are missing`) {
			t.Errorf("%s: %v", cut, err)
		}
	}
}

func TestParseSetsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"create a what\n":                                `line 1, column 10: "what" is not a type of set`,
		"add a 10.0.0.1\n":                               `line 1, column 5: there is no set "a"`,
		"create a hash:ip\nadd a fd00::1\n":              `line 2, column 7: "fd00::1" is not an IPv4 address`,
		"create a hash:ip,port\nadd a 10.0.0.1,tcp:x\n":  `line 2, column 20: "x" is not a port`,
		"create a hash:ip,port\nadd a 10.0.0.1\n":        "line 2, column 7: \"10.0.0.1\" is not an element of a set of type hash:ip,port: want 2 parts",
		"create a hash:ip\ncreate a hash:ip\n":           "line 2, column 8: set a is there already",
		"create a list:set\nadd a b\n":                   `line 2, column 1: there is no set "b"`,
		"create a hash:ip\nflush a now\n":                "line 2, column 1: unknown command",
		"create a\n":                                     "line 1, column 1: unknown line",
		"create a hash:mac\nadd a 00-11\n":               `line 2, column 7: "00-11" is not an Ethernet address`,
		"create a bitmap:port range 5-3\n":               `line 1, column 28: "5-3" is not a range of ports`,
		"create a hash:ip timeout x\n":                   `line 1, column 26: "x" is not a number`,
		"create a hash:ip\nadd a 10.0.0.1 comment \"x\n": "line 2, column 24: a quote is opened and never closed",
	} {
		if _, err := ParseSets(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

// TestUnknownSetType is kept as text.
func TestUnknownSetType(t *testing.T) {
	sets, err := ParseSets(strings.NewReader("create a hash:ip,mark family inet\nadd a 10.0.0.1,0x5 timeout 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e := sets["a"].Elements; len(e) != 1 || e[0].Text != "10.0.0.1,0x5" || e[0].Timeout == nil {
		t.Errorf("%+v", e)
	}
}

// FuzzSets: whatever the text, sets are read without a panic, each element has what its set's type needs, and a mark of
// Windows in front, its line ends and its UTF-16 change nothing.
func FuzzSets(f *testing.F) {
	f.Add(ipsetSave)
	f.Add("create a hash:net,iface family inet6\nadd a fd00::/8,eth0 nomatch timeout 0\ncreate b list:set size 8\nadd b a\n")
	f.Add("create a hash:ip\nadd a 10.0.0.9-10.0.0.1\nadd a 10.0.0.0/33\nadd a ::1\n")
	f.Add("create a bitmap:ip range 10.0.0.9-10.0.0.1\ncreate a bitmap:port range 9-5\nadd a 7-\n")
	f.Add("create a hash:net,net\nadd a 0/0,10.0.0.1\ncreate p hash:ip,port\nadd p 10.0.0.1,icmp:echo-request\nadd p 10.0.0.1,tcp:http-9")
	f.Fuzz(func(t *testing.T, text string) {
		sets, err := ParseSets(strings.NewReader(text))
		if (sets == nil) == (err == nil) {
			t.Fatalf("sets %v and error %v", sets, err)
		}
		for name, s := range sets {
			for _, e := range s.Elements {
				if s.Name != name || e.Line <= s.Line || e.Text == "" {
					t.Errorf("%s: %+v", name, e)
				}
				parts := setTypes[s.Type]
				if len(parts) > 0 && (parts[0] == "ip" || parts[0] == "net") && !e.Network.IsValid() && !e.Range.First.IsValid() {
					t.Errorf("%s %s: %+v has no address", name, s.Type, e)
				}
			}
		}
		if !isPlain(text) {
			return
		}
		wide, _ := binary.Append([]byte("\xff\xfe"), binary.LittleEndian, utf16.Encode([]rune(text)))
		for _, other := range []string{"\ufeff" + text, strings.ReplaceAll(text, "\n", "\r\n"), string(wide)} {
			again, againErr := ParseSets(strings.NewReader(other))
			if (err == nil) != (againErr == nil) || err == nil && !reflect.DeepEqual(sets, again) {
				t.Errorf("%q: %v, %v", other, again, againErr)
			}
		}
	})
}

// isPlain reports whether a text is of printable ASCII.
func isPlain(text string) bool {
	for i := range len(text) {
		if (text[i] < ' ' || text[i] > '~') && text[i] != '\n' {
			return false
		}
	}
	return true
}
