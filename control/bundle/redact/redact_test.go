package redact

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func keyOf(r *rand.Rand) (k Key) {
	for i := range k {
		k[i] = byte(r.Uint32())
	}
	return k
}

// common is how many bits two addresses begin with together.
func common(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return a.BitLen()
}

// random is an address; some are near another one, so that pairs have prefixes of all lengths in common.
func random(r *rand.Rand, near netip.Addr) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	a := netip.AddrFrom16(b)
	if near.Is4() {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	if a.Is4In6() {
		return near
	}
	p, _ := near.Prefix(r.IntN(near.BitLen() + 1))
	front, host := p.Addr().AsSlice(), a.AsSlice()
	for bit := p.Bits(); bit < a.BitLen(); bit++ {
		front[bit/8] |= host[bit/8] & (0x80 >> (bit % 8))
	}
	a, _ = netip.AddrFromSlice(front)
	return a
}

// TestAddresses: pseudonyms have as many first bits in common as their addresses, stay in the special networks, and keep
// their last byte.
func TestAddresses(t *testing.T) {
	draws := rand.New(rand.NewPCG(1, 2))
	changed := 0
	for range 20 {
		r := New(keyOf(draws))
		for _, start := range []string{"10.244.1.2", "8.8.4.4", "192.168.7.1", "100.64.1.1", "127.0.0.1", "fd00:10:244::5", "2001:db8::1", "fe80::1", "::1"} {
			a := netip.MustParseAddr(start)
			for range 100 {
				b := random(draws, a)
				p, q := r.Address(a), r.Address(b)
				if common(p, q) != common(a, b) {
					t.Fatalf("%s and %s have %d bits in common, %s and %s %d", a, b, common(a, b), p, q, common(p, q))
				}
				if p != r.Address(a) {
					t.Fatalf("%s has two pseudonyms", a)
				}
				for _, n := range append(kept, marked...) {
					if n.Contains(b) != n.Contains(q) {
						t.Fatalf("%s is in %s: %t, and its pseudonym %s: %t", b, n, n.Contains(b), q, n.Contains(q))
					}
				}
				x, y := b.AsSlice(), q.AsSlice()
				if x[len(x)-1] != y[len(y)-1] {
					t.Fatalf("%s became %s", b, q)
				}
				if b != q {
					changed++
				}
				a = b
			}
		}
	}
	if changed < 10_000 {
		t.Errorf("only %d of 18000 addresses have another pseudonym", changed)
	}
}

// TestText: the forms in which programs print addresses.
func TestText(t *testing.T) {
	r := New(Key{1})
	at := func(text string) string { return r.Address(netip.MustParseAddr(text)).String() }
	masked := func(text string) string {
		p := netip.MustParsePrefix(text)
		return netip.PrefixFrom(r.Address(p.Addr()), p.Bits()).Masked().String()
	}
	hw := func(text string) string {
		a, _ := net.ParseMAC(text)
		return r.MAC(a).String()
	}
	node := r.Name("node-7.corp.example.net")
	short := strings.TrimSuffix(node, ".example")
	for text, want := range map[string]string{
		"-A X -s 10.244.0.0/16 -d 10.244.1.2/32 -j DNAT --to-destination 10.244.3.4:80": "-A X -s " + masked("10.244.0.0/16") + " -d " + at("10.244.1.2") + "/32 -j DNAT --to-destination " + at("10.244.3.4") + ":80",
		"inet 172.20.0.2/16 brd":                                        "inet " + at("172.20.0.2") + "/16 brd",
		"-s 10.8.0.0/255.255.0.0":                                       "-s " + strings.TrimSuffix(masked("10.8.0.0/16"), "/16") + "/255.255.0.0",
		"--to-destination [fd00::5]:80":                                 "--to-destination [" + at("fd00::5") + "]:80",
		"ip6 daddr fd00:10::/64 ::/0 ::1":                               "ip6 daddr " + masked("fd00:10::/64") + " ::/0 ::1",
		"10.1.0.5-10.1.0.9:80":                                          at("10.1.0.5") + "-" + at("10.1.0.9") + ":80",
		`{"addr": "10.244.0.0", "len": 16}`:                             `{"addr": "` + strings.TrimSuffix(masked("10.244.0.0/16"), "/16") + `", "len": 16}`,
		`"addr":"fd00:7::","len":48`:                                    `"addr":"` + strings.TrimSuffix(masked("fd00:7::/48"), "/48") + `","len":48`,
		`["10.9.0.9", "10.1.0.1"]`:                                      `["` + at("10.9.0.9") + `", "` + at("10.1.0.1") + `"]`,
		"src=10.0.0.1 dst=::ffff:10.0.0.2, via src:10.0.0.3.":           "src=" + at("10.0.0.1") + " dst=::ffff:" + at("10.0.0.2") + ", via src:" + at("10.0.0.3") + ".",
		"fe80::fc:ff:fe00:1%eth0 dev eth0 lladdr 02:fc:00:00:00:01":     at("fe80::fc:ff:fe00:1") + "%eth0 dev eth0 lladdr " + hw("02:fc:00:00:00:01"),
		"link/ether 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff":            "link/ether 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff",
		":KUBE-SEP-A1B2 - [0:0]\n[12:345] -A FEED -m mark 0x4000/0xff":  ":KUBE-SEP-A1B2 - [0:0]\n[12:345] -A FEED -m mark 0x4000/0xff",
		"v1.8.9.10.11 x10.20.30.40 12:30:59 1.2.3.4.5":                  "v1.8.9.10.11 x10.20.30.40 12:30:59 1.2.3.4.5",
		"127.0.0.1 0.0.0.0/0 224.0.0.251 255.255.255.255 169.254.20.10": "127.0.0.1 0.0.0.0/0 224.0.0.251 255.255.255.255 169.254.20.10",
		"Linux node-7.corp.example.net 6.1, node-7 and node-77":         "Linux " + node + " 6.1, " + short + " and node-77",
		"ip-10-0-12-34.ec2.internal":                                    "ip-" + strings.ReplaceAll(at("10.0.12.34"), ".", "-") + ".ec2.internal",
	} {
		if got := r.Text(text, true); got != want {
			t.Errorf("%s\nhave %s\nwant %s", text, got, want)
		}
	}
}

// TestChains: names of chains of endpoints do not give addresses away, and are those of the pseudonyms.
func TestChains(t *testing.T) {
	const rules = `:KUBE-SEP-ULMINKU752SDK7IQ - [0:0]
-A KUBE-SEP-ULMINKU752SDK7IQ -p tcp -m comment --comment "default/my-nginx-service" -m tcp -j DNAT --to-destination 10.244.1.2:80
-A KUBE-SVC-X -m comment --comment "other" -j KUBE-SEP-AAAAAAAAAAAAAAAA
`
	r := New(Key{3})
	r.Learn(rules)
	endpoint := netip.AddrPortFrom(r.Address(netip.MustParseAddr("10.244.1.2")), 80).String()
	got := r.Text(rules, false)
	if want := "KUBE-SEP-" + hash("default/my-nginx-servicetcp"+endpoint, 16); strings.Count(got, want) != 2 {
		t.Errorf("no chain %s:\n%s", want, got)
	}
	for _, gone := range []string{"ULMINKU752SDK7IQ", "AAAAAAAAAAAAAAAA", "10.244.1.2"} {
		if strings.Contains(got, gone) {
			t.Errorf("%s is still there:\n%s", gone, got)
		}
	}
	for name, address := range map[string]string{
		"endpoint-SVLGPL42-default/web/tcp/http__10.244.1.2/8080":               "10.244.1.2",
		"affinity-EILKEAWN-default/various-1/udp/__fd00.10.244.2..3/8001":       "fd00:10:244:2::3",
		"endpoint-AAAAAAAA-default/web/tcp/http__10.244.1.2/80...":              "",
		"endpoint-AAAAAAAA-default/a-name-that-is-too-long/tcp/http__10.244...": "",
	} {
		got := r.Text(name, false)
		if address == "" {
			if strings.Contains(got, "10.244") || strings.Contains(got, "AAAAAAAA") {
				t.Errorf("%s became %s", name, got)
			}
			continue
		}
		p := strings.ReplaceAll(r.Address(netip.MustParseAddr(address)).String(), ":", ".")
		_, front, _ := strings.Cut(name[9:], "-")
		front, _, _ = strings.Cut(front, "__")
		port := name[strings.LastIndex(name, "/"):]
		if want := name[:9] + hash(front+"__"+p+port, 8) + "-" + front + "__" + p + port; got != want {
			t.Errorf("%s\nhave %s\nwant %s", name, got, want)
		}
	}
}

// TestRanges: a range stays one, with its ends in order.
func TestRanges(t *testing.T) {
	draws := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		r := New(keyOf(draws))
		for _, text := range []string{"10.1.0.5-10.9.3.9", `"range": ["10.1.0.5", "10.9.3.9"]`} {
			found := dotted.FindAllString(r.Text(text, true), -1)
			if len(found) != 2 || !netip.MustParseAddr(found[0]).Less(netip.MustParseAddr(found[1])) {
				t.Fatalf("%s became %s", text, r.Text(text, true))
			}
		}
	}
}

// FuzzText: no text makes it fail, and one without addresses and names stays as it is.
func FuzzText(f *testing.F) {
	for _, text := range []string{"10.0.0.1/8-", "fd00::/", "::", "1.2.3.4:", "[::1]:80", "a:b:c:d:e:f", "00:11:22:33:44:55", "1::2-3::4", "0.0.0.0/0.0.0.0"} {
		f.Add(text)
	}
	r := New(Key{2})
	r.Name("node-7")
	f.Fuzz(func(t *testing.T, text string) {
		got := r.Text(text, true)
		if !strings.ContainsAny(text, ".:-\x00") && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
