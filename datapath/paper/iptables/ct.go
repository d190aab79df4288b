package iptables

import (
	"fmt"
	"strings"
)

// CT is "-j CT": options of connection tracking for the packet's connection.
type CT struct {
	NoTrack bool // do not track it
	// Helper and Timeout are names; empty: none.
	Helper, Timeout string
	Events          CtEvents // 0: not given
	ExpectEvents    CtEvents // 0: not given; only EventNew
	Zone            CtZone
}

// CtZone is the conntrack zone of a packet.
type CtZone struct {
	Given    bool // the others are valid iff it is set
	Zone     uint16
	FromMark bool // the zone is the packet's mark, and Zone is not valid (XT_CT_ZONE_MARK)
	// Original and Reply: the zone counts in that direction only; neither: in both.
	Original, Reply bool
}

// CtEvents is a set of events that are sent to listeners.
type CtEvents uint16

// The events: bit n is IPCT_... n (nf_conntrack_common.h).
const (
	EventNew CtEvents = 1 << iota
	EventRelated
	EventDestroy
	EventReply
	EventAssured
	EventProtoinfo
	EventHelper
	EventMark
	EventNATSeqInfo
	EventSecmark
)

var eventNames = bitNames{
	{uint32(EventNew), "new"}, {uint32(EventRelated), "related"}, {uint32(EventDestroy), "destroy"},
	{uint32(EventReply), "reply"}, {uint32(EventAssured), "assured"}, {uint32(EventProtoinfo), "protoinfo"},
	{uint32(EventHelper), "helper"}, {uint32(EventMark), "mark"}, {uint32(EventNATSeqInfo), "natseqinfo"},
	{uint32(EventSecmark), "secmark"},
}

// String is "new,destroy".
func (e CtEvents) String() string { return eventNames.text(uint32(e)) }

var _ = addTarget(&target{
	name: "CT", table: "raw",
	shapes: map[string]shape{
		"--notrack": flag, "--helper": one, "--timeout": one, "--ctevents": one, "--expevents": one,
		"--zone": one, "--zone-orig": one, "--zone-reply": one,
	},
	phrases: map[string]phrase{"CT": ctPhrase},
	build: func(s *section) Target {
		t := CT{
			NoTrack: s.has("--notrack"),
			Helper:  optional(s, "--helper", keptText(15), ""), Timeout: optional(s, "--timeout", keptText(31), ""),
			Events:       optional(s, "--ctevents", someOf[CtEvents]("a list of events", eventNames), 0),
			ExpectEvents: optional(s, "--expevents", someOf[CtEvents]("a list of events", eventNames[:1]), 0),
		}
		if o, ok := s.last("--zone", "--zone-orig", "--zone-reply"); ok {
			t.Zone = CtZone{Given: true, Original: s.has("--zone-orig"), Reply: s.has("--zone-reply")}
			if t.Zone.Original && t.Zone.Reply {
				t.Zone.Original, t.Zone.Reply = false, false
			}
			if t.Zone.FromMark = strings.EqualFold(o.values[0].Text, "mark"); !t.Zone.FromMark {
				t.Zone.Zone = value(s, o.values[0], kind[uint16]{"a zone", "0 to 65535, or mark", number[uint16]})
			}
		}
		return t
	},
})

func (CT) name() string { return "CT" }
func (t CT) write(w *words) {
	w.flag(t.NoTrack, "--notrack")
	for _, o := range []struct{ name, value string }{
		{"--helper", t.Helper}, {"--timeout", t.Timeout},
		{"--ctevents", t.Events.String()}, {"--expevents", t.ExpectEvents.String()},
	} {
		if o.value != "" {
			w.bare(o.name, o.value)
		}
	}
	if !t.Zone.Given {
		return
	}
	zone := decimal(t.Zone.Zone)
	if t.Zone.FromMark {
		zone = "mark"
	}
	switch {
	case t.Zone.Original:
		w.bare("--zone-orig", zone)
	case t.Zone.Reply:
		w.bare("--zone-reply", zone)
	default:
		w.bare("--zone", zone)
	}
}

func (t CT) effect(*Context) string {
	switch {
	case t.NoTrack:
		return isIgnored
	case t.Zone.Given && !t.Zone.FromMark:
		return fmt.Sprintf("its connection is of zone %d", t.Zone.Zone)
	case t.Helper != "":
		return "its connection gets the helper " + t.Helper
	}
	return "CT is applied"
}

const isIgnored = "connection tracking will ignore it"

// Notrack is "-j NOTRACK", the older spelling of "-j CT --notrack".
type Notrack struct{}

var _ = addTarget(&target{name: "NOTRACK", table: "raw", build: func(*section) Target { return Notrack{} }})

func (Notrack) name() string { return "NOTRACK" }
func (Notrack) write(*words) {}

func (Notrack) effect(*Context) string { return isIgnored }

func ctPhrase(w *wording, _ bool) bool {
	if w.word("NOTRACK") { // "-j NOTRACK" is the target CT, too
		w.args[len(w.args)-1].Text = "NOTRACK"
		return true
	}
	return w.word("CT") && w.at < len(w.words) && w.options("--", targets["CT"].shapes)
}
