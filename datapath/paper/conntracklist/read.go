// Package conntracklist reads the output of conntrack -L, and finds the entries that contradict a service table.
package conntracklist

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// Entry is a connection entry of the text. Its Status has the bits that the text shows: whether it was answered and is
// assured, and its translations, by its tuples. The ports of protocols without ports are 0.
type Entry struct {
	conntrack.State
	Line int // from 1
	// Offloaded: a flowtable or the network device forwards its packets, and its Timeout and state are not known.
	Offloaded bool
}

// Error is why a text could not be read.
type Error struct {
	Line, Column int // in bytes; both from 1
	Found        string
	Want         string
	// Cut: it is in the last line, which looks like an entry; those before it were read.
	Cut bool
}

func (e *Error) Error() string {
	found := "the line ends"
	if e.Found != "" {
		found = strconv.Quote(e.Found)
	}
	return fmt.Sprintf("line %d, column %d: %s: want %s", e.Line, e.Column, found, e.Want)
}

// ErrEvents is the error of a text that is a log of events, whose entries may have ended.
var ErrEvents = errors.New("these are events of conntrack -E: want the entries, which conntrack -L prints")

// ErrCounters is the error of a text that has what connection tracking counts.
var ErrCounters = errors.New("these are counters of conntrack -S: want the entries, which conntrack -L prints")

// event is in front of each line of such a text.
var event = regexp.MustCompile(`^[^=]*\[(NEW|UPDATE|DESTROY)\]\s`)

// maxLine is the length of the longest line that is read, in bytes.
const maxLine = 64 << 10

// Read reads the output of conntrack -L, with or without -o extended, id, timestamp and labels, or /proc/net/nf_conntrack:
// one entry a line. Lines after the first entry that cannot have one, such as sentences between entries, are left out. An error
// is that of r, [ErrEvents], [ErrCounters], or an [*Error].
func Read(r io.Reader) ([]Entry, error) {
	var entries []Entry
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	number := 0
	for lines.Scan() {
		number++
		text := lines.Text()
		// conntrack prints its last line to standard error: "conntrack v1.4.7 (conntrack-tools): 3 flow entries have been shown."
		if strings.TrimSpace(text) == "" || strings.HasPrefix(text, "conntrack v") || len(entries) > 0 && !strings.Contains(text, "=") {
			continue
		}
		if event.MatchString(text) {
			return nil, ErrEvents
		}
		if strings.HasPrefix(text, "cpu=") {
			return nil, ErrCounters
		}
		p := parser{text: text, line: number}
		e := p.entry()
		switch {
		case p.err == nil:
			entries = append(entries, e)
		case len(entries) > 0 && IsLine(text) && !lines.Scan():
			p.err.Cut = true
			return entries, p.err
		default:
			return nil, p.err
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	return entries, nil
}

// IsLine reports whether a line begins like an entry.
func IsLine(line string) bool { return entryBegins.MatchString(line) }

var entryBegins = regexp.MustCompile(`^(\[\d+\.\d+\]\s+)?(ipv[46]\s+(2|10)\s+)?[a-z]\w*\s+\d+\s.*\bsrc=`)

// parser reads one line, up to the first error.
type parser struct {
	text string
	line int
	err  *Error
	// at is where the next word begins, and from where the last one did.
	at, from int
}

// next is the next word; empty: the line has ended.
func (p *parser) next() string {
	for p.at < len(p.text) && isSpace(p.text[p.at]) {
		p.at++
	}
	p.from = p.at
	for p.at < len(p.text) && !isSpace(p.text[p.at]) {
		p.at++
	}
	return p.text[p.from:p.at]
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// fail keeps the first error, at the last word.
func (p *parser) fail(want string) {
	if p.err == nil {
		p.err = &Error{Line: p.line, Column: p.from + 1, Found: p.text[p.from:p.at], Want: want}
	}
}

// number reads a number.
func (p *parser) number(word string, bits int, want string) uint64 {
	n, err := strconv.ParseUint(word, 10, bits)
	if err != nil {
		p.fail(want)
	}
	return n
}

// tuple is one direction, as it is read.
type tuple struct {
	source, destination netip.Addr
	ports               [2]uint16
}

func (t *tuple) of(protocol uint8) conntrack.Tuple {
	return conntrack.Tuple{Source: netip.AddrPortFrom(t.source, t.ports[0]), Destination: netip.AddrPortFrom(t.destination, t.ports[1]), Protocol: protocol}
}

// entry reads a line (nfct_snprintf of libnetfilter_conntrack, ct_seq_show of nf_conntrack_standalone.c):
//
//	[ipv4 2] tcp 6 431999 ESTABLISHED src=A dst=A sport=N dport=N [packets=N bytes=N] [[UNREPLIED]] src=A ... [[ASSURED]] mark=N use=N
func (p *parser) entry() Entry {
	e := Entry{Line: p.line}
	protocol, word := p.protocol()
	state := ""
	for ; p.err == nil && word != "" && !strings.HasPrefix(word, "src="); word = p.next() {
		switch {
		case word[0] >= '0' && word[0] <= '9':
			e.Timeout = uint32(p.number(word, 32, "the time in seconds until the entry ends"))
		case strings.HasPrefix(word, "zone"):
			p.property(&e, word)
		case strings.Contains(word, "="): // of GRE: timeout=30, stream_timeout=180
		default:
			state = word
		}
	}
	var tuples [2]tuple
	directions := 0
	answered := true
	for ; p.err == nil && word != ""; word = p.next() {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case key == "src" && ok && directions == 2:
			p.fail("mark=, use= or the end of the line: both directions were read")
		case key == "src" && ok:
			directions++
		case word == "[UNREPLIED]":
			answered = false
			continue
		case word == "[ASSURED]":
			e.Status |= conntrack.StatusAssured
			continue
		case word == "[OFFLOAD]", word == "[HW_OFFLOAD]":
			e.Offloaded = true
			continue
		case !ok:
			continue // [start=...], labels
		}
		t := &tuples[max(0, directions-1)]
		switch key {
		case "src":
			t.source = p.address(value)
		case "dst":
			t.destination = p.address(value)
		case "sport":
			t.ports[0] = uint16(p.number(value, 16, "a port"))
		case "dport":
			t.ports[1] = uint16(p.number(value, 16, "a port"))
		case "packets", "bytes":
			p.count(&e, directions, key, value)
		default:
			p.property(&e, word)
		}
	}
	for _, t := range tuples {
		if !t.source.IsValid() || !t.destination.IsValid() || t.source.Is4() != t.destination.Is4() {
			p.fail("src= and dst= of both directions, of one address family")
		}
	}
	if tuples[0].source.Is4() != tuples[1].source.Is4() {
		p.fail("both directions of one address family")
	}
	if ported := protocol == protoTCP || protocol == protoUDP || protocol == protoSCTP; ported && (tuples[0].ports[1] == 0 || tuples[1].ports[1] == 0) {
		p.fail("sport= and dport= of both directions: the line is cut off")
	}
	e.Original, e.Reply = tuples[0].of(protocol), tuples[1].of(protocol)
	if answered {
		e.Status |= conntrack.StatusSeenReply
	}
	if e.Reply.Source != e.Original.Destination {
		e.Status |= conntrack.StatusDestinationNAT
	}
	if e.Reply.Destination != e.Original.Source {
		e.Status |= conntrack.StatusSourceNAT
	}
	e.setState(protocol, state)
	return e
}

// protocol reads the beginning of the line, and returns the first word after it.
func (p *parser) protocol() (protocol uint8, next string) {
	const want = "a connection entry, like tcp 6 431999 ESTABLISHED src=... (conntrack -L prints them)"
	word := p.next()
	if len(word) > 1 && word[0] == '[' && word[1] >= '0' && word[1] <= '9' { // -o timestamp
		word = p.next()
	}
	if word == "ipv4" || word == "ipv6" {
		if n := p.next(); n != "2" && n != "10" {
			p.fail("the number of the address family: 2 or 10")
		}
		word = p.next()
	}
	if word == "" || word[0] < 'a' || word[0] > 'z' {
		p.fail(want)
	}
	protocol = uint8(p.number(p.next(), 8, want))
	return protocol, p.next()
}

func (p *parser) address(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		p.fail("an address")
	}
	return a.Unmap()
}

// count reads a counter of a direction.
func (p *parser) count(e *Entry, direction int, key, value string) {
	n := p.number(value, 64, "a number")
	c := &e.Sent
	if direction == 2 {
		c = &e.Received
	}
	e.HasCounters = true
	if key == "packets" {
		c.Packets = n
	} else {
		c.Bytes = n
	}
}

// property reads what is not of a direction. Properties that are not known are skipped.
func (p *parser) property(e *Entry, word string) {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "mark":
		e.Mark = uint32(p.number(value, 32, "a mark"))
	case "zone", "zone-orig":
		e.Zone = uint16(p.number(value, 16, "a zone"))
	}
}

// setState sets the state of TCP and SCTP, by the kernel's name.
func (e *Entry) setState(protocol uint8, name string) {
	switch protocol {
	case protoTCP:
		for s := conntrack.TCPNone; s <= conntrack.TCPSynSent2; s++ {
			if s.String() == name {
				e.TCP = s
			}
		}
	case protoSCTP:
		for s := conntrack.SCTPNone; s <= conntrack.SCTPHeartbeatAcked; s++ {
			if s.String() == name {
				e.SCTP = s
			}
		}
	}
}

const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)
