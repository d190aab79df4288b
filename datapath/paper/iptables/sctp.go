package iptables

import (
	"math/bits"
	"slices"
	"strings"
)

// SCTP is "-m sctp".
type SCTP struct {
	Source, Destination Ports
	Chunks              Condition[ChunkTest]
}

// ChunkTest compares the chunks of a packet with a set of types.
type ChunkTest struct {
	Mode ChunkMode
	// Types is sorted by Type, each one once; nil is the empty set (NONE). ALL is all
	// 256.
	Types []ChunkType
}

// ChunkMode is the condition on the packet's chunks (xt_sctp.h).
type ChunkMode uint8

// The modes.
const (
	ChunksAny  ChunkMode = iota // SCTP_CHUNK_MATCH_ANY: one of the packet's chunks is in the set
	ChunksAll                   // SCTP_CHUNK_MATCH_ALL: each type of the set is in the packet
	ChunksOnly                  // SCTP_CHUNK_MATCH_ONLY: all of the packet's chunks are in the set
)

var chunkModes = []string{"any", "all", "only"}

func (m ChunkMode) String() string { return nameOf(chunkModes, m) }

// ChunkType is a type of chunk, perhaps with flags: a chunk matches if flags&FlagMask == Flags.
type ChunkType struct {
	Type, FlagMask, Flags uint8
}

// chunkNames are in the order of libxt_sctp.c; flags are the letters of bit 7 to bit 0.
var chunkNames = []struct {
	name   string
	number uint8
	flags  string
}{
	{"DATA", 0, "----IUBE"}, {"INIT", 1, ""}, {"INIT_ACK", 2, ""}, {"SACK", 3, ""}, {"HEARTBEAT", 4, ""},
	{"HEARTBEAT_ACK", 5, ""}, {"ABORT", 6, "-------T"}, {"SHUTDOWN", 7, ""}, {"SHUTDOWN_ACK", 8, ""},
	{"ERROR", 9, ""}, {"COOKIE_ECHO", 10, ""}, {"COOKIE_ACK", 11, ""}, {"ECN_ECNE", 12, ""}, {"ECN_CWR", 13, ""},
	{"SHUTDOWN_COMPLETE", 14, "-------T"}, {"I_DATA", 64, "----IUBE"}, {"RE_CONFIG", 130, ""}, {"PAD", 132, ""},
	{"ASCONF", 193, ""}, {"ASCONF_ACK", 128, ""}, {"FORWARD_TSN", 192, ""}, {"I_FORWARD_TSN", 194, ""},
}

var _ = addMatch(&module{
	name:    "sctp",
	implied: protoSCTP,
	shapes:  with(portShapes, map[string]shape{"--chunk-types": notTwo}),
	phrases: map[string]phrase{"sctp": transport("sctp")},
	build: func(s *section) Match {
		s.needs(s.name, "-m sctp", protoSCTP)
		m := SCTP{Source: s.ports("--sport", aPort), Destination: s.ports("--dport", aPort)}
		if o, ok := s.find("--chunk-types"); ok {
			m.Chunks = Condition[ChunkTest]{true, o.negated, ChunkTest{
				Mode: value(s, o.values[0], kind[ChunkMode]{"a mode", "all, any or only", func(t string) (ChunkMode, bool) {
					i := slices.Index(chunkModes, strings.ToLower(t))
					return ChunkMode(max(i, 0)), i >= 0
				}}),
				Types: value(s, o.values[1], kind[[]ChunkType]{"a list of chunk types", "ALL, NONE or types like INIT,DATA:UBe", parseChunks}),
			}}
		}
		return m
	},
})

func parseChunks(text string) ([]ChunkType, bool) {
	switch strings.ToUpper(text) {
	case "":
		return nil, true
	case "ALL":
		all := make([]ChunkType, 256)
		for i := range all {
			all[i].Type = uint8(i)
		}
		return all, true
	case "NONE":
		return nil, true
	}
	var types []ChunkType
	for word := range strings.SplitSeq(text, ",") {
		name, flags, _ := strings.Cut(word, ":")
		i := slices.IndexFunc(chunkNames, func(c struct {
			name   string
			number uint8
			flags  string
		}) bool {
			return strings.EqualFold(c.name, name)
		})
		if i < 0 {
			return nil, false
		}
		t := ChunkType{Type: chunkNames[i].number}
		for _, letter := range []byte(flags) {
			at := strings.IndexByte(chunkNames[i].flags, letter&^0x20)
			if letter == '-' || at < 0 {
				return nil, false
			}
			bit := uint8(1) << (7 - at)
			if t.FlagMask |= bit; letter&0x20 == 0 {
				t.Flags |= bit // a capital: must be set
			}
		}
		if slices.ContainsFunc(types, func(o ChunkType) bool { return o.Type == t.Type }) {
			return nil, false
		}
		types = append(types, t)
	}
	slices.SortFunc(types, func(a, b ChunkType) int { return int(a.Type) - int(b.Type) })
	return types, true
}

// String is "INIT", or "DATA:UBe" with the relevant flags.
func (t ChunkType) String() string {
	for _, c := range chunkNames {
		if c.number != t.Type {
			continue
		}
		if t.FlagMask == 0 || c.flags == "" {
			return c.name
		}
		text := []byte(c.name + ":")
		for mask := t.FlagMask; mask != 0; {
			at := bits.LeadingZeros8(mask)
			bit := uint8(0x80) >> at
			mask &^= bit
			if t.Flags&bit != 0 {
				text = append(text, c.flags[at])
			} else {
				text = append(text, c.flags[at]|0x20)
			}
		}
		return string(text)
	}
	return decimal(t.Type)
}

// String is "any INIT,DATA".
func (t ChunkTest) String() string { return t.Mode.String() + " " + t.typesText() }

func (t ChunkTest) typesText() string {
	switch len(t.Types) {
	case 0:
		return "NONE"
	case 256:
		return "ALL"
	}
	var names []string
	for _, c := range t.Types {
		names = append(names, c.String())
	}
	return strings.Join(names, ",")
}

func (SCTP) module() string { return "sctp" }
func (m SCTP) write(w *words) {
	m.Source.write(w, "--sport")
	m.Destination.write(w, "--dport")
	if m.Chunks.Given {
		w.option(m.Chunks.Negated, "--chunk-types", m.Chunks.Value.Mode.String(), m.Chunks.Value.typesText())
	}
}

func (m SCTP) reads() Facts {
	if m.Chunks.Given {
		return FactChunks
	}
	return 0
}

func (m SCTP) test(c *Context) Truth {
	return matchPorts(m.Source, m.Destination, c).And(truthOf(!m.Chunks.fails(m.Chunks.Value.matches(c.Packet.Chunks))))
}

func (m SCTP) whyNot(c *Context) string { return wrongPort(m.Source, m.Destination, c) }

// matches is match_packet (xt_sctp.c).
func (t ChunkTest) matches(there []ChunkType) bool {
	found := make([]bool, len(t.Types))
	for _, c := range there {
		i := slices.IndexFunc(t.Types, func(w ChunkType) bool { return w.Type == c.Type })
		meant := i >= 0 && c.Flags&t.Types[i].FlagMask == t.Types[i].Flags
		switch {
		case meant && t.Mode == ChunksAny:
			return true
		case meant:
			found[i] = true
		case t.Mode == ChunksOnly:
			return false
		}
	}
	switch t.Mode {
	case ChunksAny:
		return false
	case ChunksAll:
		return !slices.Contains(found, false)
	}
	return true
}

// chunks reads "! any 0x0000:UBe,0x0001" or the same with names.
func (w *wording) chunks() bool {
	negated := w.word("!")
	mode, ok1 := w.next()
	list, ok2 := w.next()
	if !ok1 || !ok2 || mode.Text != "any" && mode.Text != "all" && mode.Text != "only" {
		return false
	}
	var names []string
	for item := range strings.SplitSeq(list.Text, ",") {
		name, flags, flagged := strings.Cut(item, ":")
		if n, ok := number[uint8](name); ok {
			name = ChunkType{Type: n}.String()
		}
		if flagged {
			name += ":" + flags
		}
		names = append(names, name)
	}
	list.Text = strings.Join(names, ",")
	if _, ok := parseChunks(list.Text); !ok {
		return false
	}
	w.emit(negated, "--chunk-types", mode, list)
	return true
}
