package nftrules

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// kind is a data type of nftables: how its constants become bytes. All numbers are in network byte order here, also those
// that the kernel keeps in the machine's.
type kind struct {
	size  int // in bytes
	names map[string]uint64
	// parse reads constants that are neither a number nor one of the names; nil: there are none.
	parse func(text string) ([]byte, bool)
	// bits: constants are flags.
	bits bool
	// text is a value for people; nil: its name or number.
	text func(b []byte) string
}

var (
	kindNumber1  = &kind{size: 1}
	kindNumber2  = &kind{size: 2}
	kindNumber4  = &kind{size: 4}
	kindNumber8  = &kind{size: 8}
	kindBool     = &kind{size: 1, names: map[string]uint64{"exists": 1, "missing": 0, "true": 1, "false": 0}}
	kindAddr4    = &kind{size: 4, parse: parseAddr4, text: addrText}
	kindAddr6    = &kind{size: 16, parse: parseAddr6, text: addrText}
	kindEther    = &kind{size: 6, parse: parseEther, text: etherText}
	kindPort     = &kind{size: 2, parse: parsePort, text: decimal}
	kindProtocol = &kind{size: 1, parse: parseProtocol, text: protocolText}
	kindMark     = &kind{size: 4, text: hexadecimal}
	kindDevice   = &kind{size: rules.DeviceSize, parse: parseName, text: nameText}
	kindString   = &kind{size: rules.DeviceSize, parse: parseName, text: nameText}
	kindPriority = &kind{size: 4, names: map[string]uint64{"none": 0, "root": math.MaxUint32}, parse: parsePriority}
	kindGroup    = &kind{size: 4, names: map[string]uint64{"default": 0}}
	kindUser     = &kind{size: 4, names: map[string]uint64{"root": 0}, text: decimal}
	kindFamily   = &kind{size: 1, names: map[string]uint64{"ipv4": 2, "ipv6": 10}}
	kindEtherty  = &kind{size: 2, names: map[string]uint64{"ip": 0x0800, "arp": 0x0806, "ip6": 0x86dd, "vlan": 0x8100, "8021q": 0x8100, "8021ad": 0x88a8}}
	kindFlags    = &kind{size: 1, bits: true, names: map[string]uint64{"fin": 1, "syn": 2, "rst": 4, "psh": 8, "ack": 16, "urg": 32, "ecn": 64, "cwr": 128}}
	kindState    = &kind{size: 4, bits: true, names: map[string]uint64{"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}}
	kindStatus   = &kind{size: 4, bits: true, names: map[string]uint64{
		"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512,
	}}
	kindDirection = &kind{size: 1, names: map[string]uint64{"original": 0, "reply": 1}}
	kindECN       = &kind{size: 1, names: map[string]uint64{"not-ect": 0, "ect1": 1, "ect0": 2, "ce": 3}}
	kindDSCP      = &kind{size: 1, names: dscpNames()}
	kindPktType   = &kind{size: 1, names: map[string]uint64{"host": 0, "unicast": 0, "broadcast": 1, "multicast": 2, "other": 3}}
	kindFib       = &kind{size: 4, names: map[string]uint64{
		"unspec": 0, "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5, "blackhole": 6, "unreachable": 7, "prohibit": 8,
	}}
	kindDeviceTy = &kind{size: 2, names: map[string]uint64{"ether": 1, "ppp": 512, "loopback": 772, "ipgre": 778, "sit": 776, "ipip": 768, "ipip6": 769}}
	kindICMP     = &kind{size: 1, names: map[string]uint64{
		"echo-reply": 0, "destination-unreachable": 3, "source-quench": 4, "redirect": 5, "echo-request": 8, "router-advertisement": 9,
		"router-solicitation": 10, "time-exceeded": 11, "parameter-problem": 12, "timestamp-request": 13, "timestamp-reply": 14,
		"info-request": 15, "info-reply": 16, "address-mask-request": 17, "address-mask-reply": 18,
	}}
	kindICMP6 = &kind{size: 1, names: map[string]uint64{
		"destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4, "echo-request": 128, "echo-reply": 129,
		"mld-listener-query": 130, "mld-listener-report": 131, "mld-listener-done": 132, "mld-listener-reduction": 132,
		"nd-router-solicit": 133, "nd-router-advert": 134, "nd-neighbor-solicit": 135, "nd-neighbor-advert": 136, "nd-redirect": 137,
		"router-renumbering": 138, "ind-neighbor-solicit": 141, "ind-neighbor-advert": 142, "mld2-listener-report": 143,
	}}
	kindICMPCode = &kind{size: 1, names: map[string]uint64{
		"net-unreachable": 0, "host-unreachable": 1, "prot-unreachable": 2, "port-unreachable": 3, "frag-needed": 4,
		"net-prohibited": 9, "host-prohibited": 10, "admin-prohibited": 13,
	}}
	kindICMP6Code = &kind{size: 1, names: map[string]uint64{
		"no-route": 0, "admin-prohibited": 1, "addr-unreachable": 3, "port-unreachable": 4, "policy-fail": 5, "reject-route": 6,
	}}
)

// kindLabel are the labels of a connection, by the numbers of their bits.
var kindLabel = &kind{size: 16, parse: func(text string) ([]byte, bool) {
	n, err := strconv.ParseUint(text, 0, 7)
	b := make([]byte, 16)
	b[15-n/8] = 1 << (n % 8)
	return b, err == nil
}, text: func(b []byte) string {
	var set []string
	for n := range 128 {
		if b[15-n/8]&(1<<(n%8)) != 0 {
			set = append(set, strconv.Itoa(n))
		}
	}
	return strings.Join(set, ",")
}}

func dscpNames() map[string]uint64 {
	names := map[string]uint64{"ef": 46, "va": 44, "lephb": 1, "be": 0, "df": 0}
	for i := range uint64(8) {
		names["cs"+strconv.FormatUint(i, 10)] = 8 * i
	}
	for class := range uint64(4) {
		for drop := range uint64(3) {
			names["af"+strconv.FormatUint(10*(class+1)+drop+1, 10)] = 8*(class+1) + 2*(drop+1)
		}
	}
	return names
}

// number is a number of the kind's size.
func (k *kind) number(n uint64) ([]byte, bool) {
	if k.size < 8 && n >= 1<<(8*k.size) {
		return nil, false
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	if k.size <= 8 {
		return append([]byte(nil), b[8-k.size:]...), true
	}
	return append(make([]byte, k.size-8), b[:]...), true
}

// constant is the value of a literal.
func (k *kind) constant(l nftables.Literal) ([]byte, bool) {
	if n, ok := k.names[l.Text]; ok {
		return k.number(n)
	}
	if k.parse != nil {
		if b, ok := k.parse(l.Text); ok {
			return b, true
		}
	}
	if n, ok := (nftables.Literal{Text: l.Text, Kind: nftables.Number}).Number(); ok {
		return k.number(n)
	}
	return nil, false
}

// describe is a value in words.
func (k *kind) describe(b []byte) string {
	n := numberOf(b)
	switch {
	case k.bits:
		var set []string
		for bit := uint64(1); bit != 0 && bit <= n; bit <<= 1 {
			for name, of := range k.names {
				if of == bit && n&bit != 0 {
					set = append(set, name)
				}
			}
		}
		if set != nil {
			return strings.Join(set, ",")
		}
	case k.text != nil:
		return k.text(b)
	}
	best := ""
	for name, of := range k.names {
		if of == n && (best == "" || name < best) {
			best = name
		}
	}
	if best != "" {
		return best
	}
	return strconv.FormatUint(n, 10)
}

func numberOf(b []byte) (n uint64) {
	for _, c := range b[max(0, len(b)-8):] {
		n = n<<8 | uint64(c)
	}
	return n
}

func decimal(b []byte) string     { return strconv.FormatUint(numberOf(b), 10) }
func hexadecimal(b []byte) string { return "0x" + strconv.FormatUint(numberOf(b), 16) }

func parseAddr4(text string) ([]byte, bool) {
	a, err := netip.ParseAddr(text)
	return a.AsSlice(), err == nil && a.Is4()
}

func parseAddr6(text string) ([]byte, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is6() || a.Zone() != "" {
		return nil, false
	}
	return a.AsSlice(), true
}

func addrText(b []byte) string {
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

func parseEther(text string) ([]byte, bool) {
	m, err := iptables.ParseMAC(text)
	return m[:], err == nil
}

func etherText(b []byte) string { return iptables.MACAddress(b).String() }

func parsePort(text string) ([]byte, bool) {
	p, ok := iptables.ServicePort(text)
	return []byte{byte(p >> 8), byte(p)}, ok
}

// parsePriority reads a handle of traffic control, major:minor in hexadecimal (nftables, src/meta.c).
func parsePriority(text string) ([]byte, bool) {
	major, minor, ok := strings.Cut(text, ":")
	a, err := strconv.ParseUint("0"+major, 16, 16)
	b, other := strconv.ParseUint("0"+minor, 16, 16)
	return binary.BigEndian.AppendUint32(nil, uint32(a)<<16|uint32(b)), ok && err == nil && other == nil
}

func parseProtocol(text string) ([]byte, bool) {
	n, ok := iptables.ParseProtocol(text)
	return []byte{n}, ok
}

func protocolText(b []byte) string { return strings.ToLower(iptables.ProtocolName(b[0])) }

func parseName(text string) ([]byte, bool) {
	b := make([]byte, rules.DeviceSize)
	copy(b, text)
	return b, len(text) < rules.DeviceSize
}

func nameText(b []byte) string {
	name, _, _ := strings.Cut(string(b), "\x00")
	if name == "" {
		return "no device"
	}
	return name
}

// most is the greatest number of the kind.
func (k *kind) most() []byte {
	b, _ := (&kind{size: k.size}).number(math.MaxUint64 >> (64 - 8*min(k.size, 8)))
	for i := range b {
		b[i] = 0xff
	}
	return b
}
