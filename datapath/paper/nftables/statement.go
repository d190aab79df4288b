package nftables

import "time"

// Statement is one step of a rule.
type Statement interface {
	statement()
	print(p *printer)
}

// ObjectBody is what an [Object] holds.
type ObjectBody interface {
	// printBody prints the lines in the braces, each behind its indentation.
	printBody(p *printer)
}

// Match compares; the rule ends if it is false.
type Match struct {
	// Op is one of == != < > <= >=, "in" (one of the flags at right is set: tcp flags syn,ack) and "!" (none of
	// them is). A match without operator is "in" for flags, else "==".
	Op          string
	Left, Right Expr
	// Slash is set if the text has the mask of flags behind a slash: "tcp flags syn / syn,ack" is the same as
	// "tcp flags & (syn | ack) == syn", which Left and Right have. JSON does not tell.
	Slash bool
}

// Verdict ends the rule. It is also a value of verdict maps.
type Verdict struct {
	Kind  VerdictKind
	Chain string // of jump and goto
	// Rules are those of a chain without name: jump { ... }.
	Rules []*Rule
}

// VerdictKind is the kind of a verdict.
type VerdictKind string

// The verdicts. Queue as a verdict has no number; see the statement [Queue].
const (
	Accept   VerdictKind = "accept"
	Drop     VerdictKind = "drop"
	Continue VerdictKind = "continue"
	Return   VerdictKind = "return"
	Jump     VerdictKind = "jump"
	Goto     VerdictKind = "goto"
	Break    VerdictKind = "break"
)

// VerdictMap looks Key up in Data, an [AnonymousSet] or a [SetRef], and does the verdict found.
type VerdictMap struct{ Key, Data Expr }

// Mangle sets a field of the packet, or what Meta and CT name.
type Mangle struct{ Key, Value Expr }

// Reset removes a TCP option: reset tcp option fastopen.
type Reset struct{ Option Expr }

// NAT translates addresses.
type NAT struct {
	Kind          string // "snat", "dnat", "masquerade", "redirect"
	Family        Family // of the address, if given
	Address, Port Expr   // either may be nil; Address is both if it is a Concat, or a Map to concatenations
	Flags         []string
	Prefix        bool // Address maps networks to networks
	Spelled       bool // the text has "addr . port", as older nft prints it
}

// TProxy gives the packet to a socket of this host.
type TProxy struct {
	Family        Family
	Address, Port Expr
}

// Counter counts.
type Counter struct {
	Packets, Bytes uint64
	Given          bool // the text has numbers; nft -s leaves them out
}

// ObjectRef uses a named object: counter name "c", ct helper set "ftp".
type ObjectRef struct {
	Kind string // as [Object.Kind]
	Name Expr   // a Literal, or a Map that gives the name
}

// Quota is a limit of bytes altogether.
type Quota struct {
	Over     bool
	Size     uint64
	Unit     string // "bytes", "kbytes", "mbytes"
	Used     uint64
	UsedUnit string // empty: nothing is given
}

// Limit is a limit of packets or bytes by time.
type Limit struct {
	Over      bool
	Rate      uint64
	Unit      string // "packets", or "bytes", "kbytes", "mbytes"
	Per       string // "second" and so on
	Burst     uint64
	BurstUnit string // empty: no burst is given
	// Implied is set if the text gives no burst for a limit of packets, which is 5 then.
	Implied bool
}

// ConnLimit matches while the key has at most Count connections, or more with Over.
type ConnLimit struct {
	Over  bool
	Count uint64
}

// Last is when the rule or element was used.
type Last struct {
	Never bool          // not yet
	Used  time.Duration // this long ago
	Given bool          // the text tells; nft -s leaves it out
}

// Log logs.
type Log struct {
	Prefix         Expr // nil: none
	Group          *uint64
	Snaplen        uint64
	QueueThreshold uint64
	Level          string
	Flags          []string // "tcp sequence", "tcp options", "ip options", "skuid", "ether", "all"
}

// Reject drops the packet and tells the sender.
type Reject struct {
	With string // "tcp reset", "icmp", "icmpv6", "icmpx"; empty: the default
	Code Expr
	// Typed is set if the text has "type" in front of the code, as nft 1.0.0 prints it.
	Typed bool
}

// Notrack leaves the packet out of connection tracking.
type Notrack struct{}

// Queue gives the packet to a program.
type Queue struct {
	Number Expr     // a Literal, a Range, or what computes it; nil: 0
	Flags  []string // "bypass", "fanout"
	// To is set if the text has "to" in front of the number, as nft prints it for expressions.
	To bool
}

// Dup sends a copy to Address; in the family netdev that is the name of a device.
type Dup struct{ Address, Device Expr }

// Fwd sends the packet out of a device.
type Fwd struct {
	Family          Family
	Address, Device Expr
}

// Synproxy answers SYNs.
type Synproxy struct {
	MSS, WScale         *uint64
	Timestamp, SACKPerm bool
}

// SetStatement adds, updates or deletes an element of a set or map.
type SetStatement struct {
	Op      string // "add", "update", "delete"
	Set     string
	Element Element // Value for maps
}

// Meter is the older form of a set statement.
type Meter struct {
	Name    string
	Size    uint64
	Element Element
}

// FlowAdd moves the connection into a flowtable.
type FlowAdd struct{ Flowtable string }

// XT is a match or target of iptables that nft cannot show.
type XT struct {
	Type string // "match", "target", "watcher"; empty: an older nft does not tell
	Name string
	// Comment is the text of a comment in front of other statements, which is how nft shows the match comment.
	Comment string
	// Bare is set if the name has no quotation marks, and Commented for "# xt_NAME", both in the listings of older nft.
	Bare, Commented bool
}

// Unknown is a statement, or all to the end of its rule, that this package does not know.
type Unknown struct {
	Position
	Text string
	Err  error // what was expected instead; nil: the JSON has a text
}

// CTHelper is a connection tracking helper.
type CTHelper struct {
	Type, Protocol string
	L3Proto        string
}

// CTTimeout are timeouts of states, in the order of the text.
type CTTimeout struct {
	Protocol, L3Proto string
	Policy            []StateTimeout
	Seconds           bool // the text has numbers of seconds, as older nft prints them
}

// StateTimeout is the timeout of one state.
type StateTimeout struct {
	State   string
	Timeout time.Duration
}

// CTExpectation is the expectation of a connection.
type CTExpectation struct {
	Protocol, L3Proto string
	DPort             uint64
	Timeout           time.Duration
	Size              uint64
}

// Secmark is a security context.
type Secmark struct{ Context string }

func (Match) statement()        {}
func (Verdict) statement()      {}
func (VerdictMap) statement()   {}
func (Mangle) statement()       {}
func (Reset) statement()        {}
func (NAT) statement()          {}
func (TProxy) statement()       {}
func (Counter) statement()      {}
func (ObjectRef) statement()    {}
func (Quota) statement()        {}
func (Limit) statement()        {}
func (ConnLimit) statement()    {}
func (Last) statement()         {}
func (Log) statement()          {}
func (Reject) statement()       {}
func (Notrack) statement()      {}
func (Queue) statement()        {}
func (Dup) statement()          {}
func (Fwd) statement()          {}
func (Synproxy) statement()     {}
func (SetStatement) statement() {}
func (Meter) statement()        {}
func (FlowAdd) statement()      {}
func (XT) statement()           {}
func (Unknown) statement()      {}
