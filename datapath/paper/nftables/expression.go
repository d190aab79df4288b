package nftables

import (
	"strconv"
	"time"
)

// Expr is an expression: what a statement reads from the packet or from a set, or a constant.
type Expr interface{ print(p *printer) }

// LiteralKind is how a constant is written.
type LiteralKind uint8

// The kinds of literals.
const (
	Word   LiteralKind = iota // established, 10.0.0.1, 1h
	Number                    // 22, 0x00004000
	Quoted                    // "eth0"
)

// Literal is a constant: a symbol, an address, a number or a string, as it stands.
type Literal struct {
	Text string // without quotation marks
	Kind LiteralKind
}

// Number is the value of a number; ok is false for all else, and for numbers of more than 64 bits.
func (l Literal) Number() (n uint64, ok bool) {
	if l.Kind != Number {
		return 0, false
	}
	return parseNumber(l.Text)
}

// Duration is the value of a time such as 1h30m; a number is one of seconds.
func (l Literal) Duration() (d time.Duration, ok bool) { return parseDuration(l.Text) }

// parseNumber reads a decimal or hexadecimal number as nft does: a leading zero means nothing.
func parseNumber(s string) (uint64, bool) {
	base := 10
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		s, base = s[2:], 16
	}
	n, err := strconv.ParseUint(s, base, 64)
	return n, err == nil
}

// List are flags: established,related or (syn | ack).
type List []Expr

// Concat is a concatenation: ip saddr . tcp dport.
type Concat []Expr

// AnonymousSet is a set or map in a rule: { 22, 80-90 }.
type AnonymousSet struct{ Elements []Element }

// SetRef names a set or map: @blocked.
type SetRef string

// Wildcard is the element that all keys match: *.
type Wildcard struct{}

// Prefix is ADDRESS/LENGTH.
type Prefix struct {
	Address Expr
	Length  int
}

// Range is LOW-HIGH.
type Range struct{ Low, High Expr }

// Binary is an operation on bits: Op is one of & | ^ << >>. A disjunction of literals is a [List].
type Binary struct {
	Op          string
	Left, Right Expr
}

// Map looks Key up in Data, an [AnonymousSet] or a [SetRef].
type Map struct{ Key, Data Expr }

// Payload is a field of a header: tcp dport.
type Payload struct {
	Protocol, Field string // Field as JSON has it: "saddr ip" of arp
	Tunnel          string // vxlan, geneve, gre, gretap: the header is in a packet inside
}

// RawPayload are bits of the packet: @th,0,16.
type RawPayload struct {
	Base           string // "ll", "nh", "th", "ih"
	Offset, Length uint64 // in bits
}

// Exthdr is a field of an IPv6 extension header; without Field, whether it exists.
type Exthdr struct {
	Name, Field string
	Index       uint64 // of rt0 addr[1], srh sid[1]
}

// TCPOption is a field of a TCP option; without Field, whether the option exists.
type TCPOption struct{ Name, Field string }

// RawTCPOption are bits of a TCP option: tcp option @255,8,8.
type RawTCPOption struct{ Kind, Offset, Length uint64 }

// IPOption is a field of an IPv4 option; without Field, whether the option exists.
type IPOption struct{ Name, Field string }

// SCTPChunk is a field of an SCTP chunk; without Field, whether the chunk exists.
type SCTPChunk struct{ Name, Field string }

// Meta is a fact about the packet that is not in it: meta mark, iifname.
type Meta struct{ Key string }

// CT is a fact about the packet's connection.
type CT struct {
	Key       string
	Direction string // "original", "reply", or none
	Family    Family // of saddr and daddr, or none
}

// RT is a fact about the packet's route.
type RT struct {
	Key    string
	Family Family // of nexthop
}

// Fib is a look-up of the routing table.
type Fib struct {
	Flags  []string // "saddr", "daddr", "mark", "iif", "oif"
	Result string   // "oif", "oifname", "type"
	Check  bool     // the text has "check" in place of oif, as newer nft prints it: whether there is a route
}

// Socket is a fact about the socket that the packet belongs to.
type Socket struct {
	Key   string
	Level uint64 // of cgroupv2
}

// OSF is the operating system that the SYN looks like.
type OSF struct{ Key, TTL string }

// Numgen is a number generator: numgen random mod 2.
type Numgen struct {
	Mode        string // "inc" or "random"
	Mod, Offset uint64
}

// JHash is a hash of an expression.
type JHash struct {
	Of                Expr
	Mod, Seed, Offset uint64
	Seeded            bool // Seed is given
}

// SymHash is a hash of the connection, the same in both directions.
type SymHash struct{ Mod, Offset uint64 }

// IPsec is a field of the packet's transformation.
type IPsec struct {
	Direction string // "in" or "out"
	Number    uint64
	Family    Family // of saddr and daddr
	Key       string
}

// Unread is an expression that this package does not know, as JSON. In text it makes its statement [Unknown].
type Unread struct{ Text string }
