package ipvs

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Error is why a text could not be read.
type Error struct {
	Line, Column int // in bytes; both from 1
	Found        string
	Want         string
}

func (e *Error) Error() string {
	found := e.Found
	if found == "" {
		found = "the line ends"
	} else {
		found = strconv.Quote(found)
	}
	return fmt.Sprintf("line %d, column %d: %s: want %s", e.Line, e.Column, found, e.Want)
}

// maxText is the size of the largest text that is read: 100,000 virtual servers have less.
const maxText = 256 << 20

// Read reads the output of ipvsadm -Sn, or of ipvsadm -Ln with or without --stats, --rate, --thresholds or
// --persistent-conn; without its heading, as grep leaves it, ipvsadm -Ln without these. An error is that of r, or an [*Error].
func Read(r io.Reader) (*State, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxText+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxText:
		return nil, fmt.Errorf("the text is larger than %d MiB", maxText>>20)
	}
	s := &reader{state: &State{Format: Save}, known: make(map[identity]*VirtualServer), knownReal: make(map[realIdentity]bool)}
	for line := range strings.Lines(string(text)) {
		s.number++
		if bold := strings.TrimSpace(line); strings.HasPrefix(bold, "**") {
			line = strings.Trim(bold, "*")
		}
		s.words = split(line)
		s.end = len(strings.TrimRight(line, "\r\n")) + 1
		if len(s.words) == 0 || strings.HasPrefix(s.words[0].text, "#") {
			continue
		}
		if slices.Contains(gaps, s.words[0].text) && len(s.words) == 1 {
			s.gap()
			continue
		}
		all := s.words
		s.line()
		switch cut := !strings.HasSuffix(line, "\n") && s.titled && all[0].text == "->"; {
		case s.err == nil:
		case cut:
			s.gap()
		case !s.masked(all):
			return nil, s.err
		}
		s.err = nil
	}
	if !s.began {
		return nil, errors.New("no virtual servers and no heading: want the output of ipvsadm -Sn or ipvsadm -Ln")
	}
	if s.headless {
		s.gap()
	}
	s.state.Servers = slices.DeleteFunc(s.state.Servers, func(v *VirtualServer) bool {
		unknown := len(v.Real) == 0 && slices.Contains(s.state.Excerpt, v.String())
		if unknown {
			s.hide(v)
		}
		return unknown
	})
	s.state.index = s.known
	return s.state, nil
}

// gaps stand for lines that are left out: that of grep -A, and of people.
var gaps = []string{"--", "...", "[...]", "…"}

// gap ends a part of a listing: what the last virtual server has further is not in the text.
func (s *reader) gap() {
	all := s.state.Servers
	s.orphans = s.titled
	if len(all) == 0 || !s.titled {
		return
	}
	last := all[len(all)-1]
	if name := last.String(); !slices.Contains(s.state.Excerpt, name) {
		s.state.Excerpt = append(s.state.Excerpt, name)
	}
	if len(last.Real) == 0 {
		s.state.Servers = all[:len(all)-1]
		s.hide(last)
	}
}

// hide leaves a virtual server out, of which the text shows no real servers.
func (s *reader) hide(v *VirtualServer) {
	delete(s.known, v.identity())
	s.state.Hidden = append(s.state.Hidden, v)
}

// hidden is an address or a port of which somebody masked a part.
var hidden = regexp.MustCompile(`^\[?[0-9a-f.:]*[xX*#]+[0-9a-fxX.:*#]*\]?(:[0-9xX*#]+)?$`)

// masked reports whether a row of a listing has a masked address. Such a real server is missing, and such a virtual server with
// those below it.
func (s *reader) masked(words []word) bool {
	if !s.titled || len(words) < 2 || !hidden.MatchString(words[1].text) {
		return false
	}
	name := words[0].text + " " + words[1].text
	if n := len(s.state.Servers); words[0].text == "->" {
		if s.orphans || n == 0 {
			return true
		}
		name = s.state.Servers[n-1].String()
	} else {
		s.orphans = true
	}
	if !slices.Contains(s.state.Excerpt, name) {
		s.state.Excerpt = append(s.state.Excerpt, name)
	}
	return true
}

// IsLine reports whether a line is one of the output of ipvsadm.
func IsLine(line string) bool {
	words := strings.Fields(line)
	if len(words) < 2 {
		return false
	}
	switch words[0] {
	case "TCP", "UDP", "SCTP", "FWM":
		return strings.Contains(words[1], ":") || words[0] == "FWM"
	case "->", "→", "Prot":
		return true
	case "IP":
		return words[1] == "Virtual"
	case "-A", "-a":
		return len(words) > 2 && (words[1] == "-t" || words[1] == "-u" || words[1] == "-f" || words[1] == "--sctp-service")
	}
	return false
}

// Looks reports whether a text, or its beginning, is the output of ipvsadm.
func Looks(text string) bool {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 {
			return words[0] == "-A" && len(words) > 2 && (words[1] == "-t" || words[1] == "-u" || words[1] == "-f" || words[1] == "--sctp-service") ||
				strings.HasPrefix(line, "IP Virtual Server version") || words[0] == "Prot" && len(words) > 1 && words[1] == "LocalAddress:Port"
		}
	}
	return false
}

// reader is the state of Read.
type reader struct {
	state     *State
	known     map[identity]*VirtualServer
	knownReal map[realIdentity]bool
	number    int // of the line
	words     []word
	end       int   // the column after the line
	err       error // of the line
	began     bool
	titled    bool // the heading of a listing was read
	// headless: the text is a listing, and the heading is not there.
	headless bool
	// orphans: real servers below are of a virtual server that is left out.
	orphans bool
}

// word is a word of a line.
type word struct {
	text   string
	column int
}

// split splits a line at white space.
func split(line string) (words []word) {
	start := -1
	for i := 0; i <= len(line); i++ {
		space := i == len(line) || line[i] == ' ' || line[i] == '\t' || line[i] == '\r' || line[i] == '\n'
		switch {
		case space && start >= 0:
			words = append(words, word{line[start:i], start + 1})
			start = -1
		case !space && start < 0:
			start = i
		}
	}
	return words
}

// fail keeps the first error of a line, at a word. The line ends there.
func (s *reader) fail(w word, want string, args ...any) {
	if s.err == nil {
		s.err = &Error{Line: s.number, Column: w.column, Found: w.text, Want: fmt.Sprintf(want, args...)}
	}
	s.words = nil
}

// take removes the next word of the line.
func (s *reader) take(want string) word {
	if len(s.words) == 0 {
		s.fail(word{column: s.end}, "%s", want)
		return word{}
	}
	w := s.words[0]
	s.words = s.words[1:]
	return w
}

// peek is the next word of the line; empty: there is none.
func (s *reader) peek() string {
	if len(s.words) == 0 {
		return ""
	}
	return s.words[0].text
}

// line reads a line by its first word.
func (s *reader) line() {
	first := s.words[0]
	saved := strings.HasPrefix(first.text, "-") && first.text != "->"
	switch {
	case saved && s.titled:
		s.fail(first, "a virtual server or a real server of the listing: give one output of ipvsadm")
	case saved:
		s.began = true
		s.command()
	case !s.titled && len(s.state.Servers) > 0:
		s.fail(first, "-A or -a, as in the lines before")
	default:
		s.began = true
		s.row()
	}
}

// add adds a virtual server, if its line has no error.
func (s *reader) add(at word, v *VirtualServer) {
	if first := s.known[v.identity()]; first != nil {
		s.fail(at, "another virtual server: %s is in line %d, too", first, first.Line)
	}
	if s.err != nil {
		return
	}
	v.Line, v.format = s.number, s.state.Format
	s.known[v.identity()] = v
	s.state.Servers = append(s.state.Servers, v)
}

// addReal adds a real server, if its line has no error.
func (s *reader) addReal(at word, v *VirtualServer, r RealServer) {
	key := realIdentity{v, r.Address}
	switch {
	case s.err != nil:
	case r.Address.Addr().Is6() != v.IPv6 && r.Forward != Tunnel:
		s.fail(at, "an address of the family of %s", v)
	case s.knownReal[key]:
		s.fail(at, "another real server: %s has this one already", v)
	default:
		s.knownReal[key] = true
		r.Line = s.number
		v.Real = append(v.Real, r)
	}
}

// address reads an address with a port: 10.96.0.1:443 or [fd00::1]:443. With portless the port may be missing.
func (s *reader) address(w word, portless bool) netip.AddrPort {
	a, err := netip.ParseAddrPort(w.text)
	if err == nil && a.Addr().Zone() == "" {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	if plain, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(w.text, "["), "]")); err == nil && portless && plain.Zone() == "" {
		return netip.AddrPortFrom(plain.Unmap(), 0)
	}
	s.fail(w, "an address and a port in numbers, like 10.96.0.1:443 or [fd00::1]:443 (ipvsadm prints names without -n)")
	return netip.AddrPort{}
}

// integer reads a number from 0 to the given one.
func (s *reader) integer(most uint32, what string) uint32 {
	w := s.take(what)
	n, err := strconv.ParseUint(w.text, 10, 32)
	if err != nil || n > uint64(most) {
		s.fail(w, "%s, from 0 to %d", what, most)
	}
	return uint32(n)
}

// netmask reads the mask of persistence: 255.255.255.0, or the length of a prefix for IPv6.
func (s *reader) netmask(v *VirtualServer) {
	w := s.take("a netmask")
	if v.IPv6 {
		n, err := strconv.ParseUint(w.text, 10, 8)
		if err != nil || n < 1 || n > 128 {
			s.fail(w, "the length of a prefix, from 1 to 128")
		}
		v.ClientBits = int(n)
		return
	}
	a, err := netip.ParseAddr(w.text)
	if err != nil || !a.Is4() {
		s.fail(w, "a netmask, like 255.255.255.0")
		return
	}
	b := a.As4()
	mask := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v.ClientBits = bits.LeadingZeros32(^mask)
	if mask<<v.ClientBits != 0 || v.ClientBits == 0 {
		s.fail(w, "a netmask of ones and then zeros, like 255.255.255.0")
	}
}

// flags reads the flags of a scheduler, separated by commas.
func flags(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// method is the forwarding method of a listing.
func (s *reader) method() Forward {
	const want = "a forwarding method: Masq, Route, Tunnel or Local"
	w := s.take(want)
	i := slices.Index(forwardNames, w.text)
	if i < 0 {
		s.fail(w, want)
	}
	return Forward(max(0, i))
}
