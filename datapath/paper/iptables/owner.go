package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// Owner is "-m owner": the owner of the socket that sent a packet (xt_owner.c). A packet without a
// socket matches iff all given tests are negated.
type Owner struct {
	SocketExists Condition[bool]
	UID, GID     Condition[Range[uint32]]
	// SupplementaryGroups: GID is also compared with them.
	SupplementaryGroups bool
}

// ids reads an option with the number of a user or group, or a range of them, or a name. Only the
// host knows the numbers of names, but root's.
func (s *section) ids(name string) Condition[Range[uint32]] {
	o, ok := s.find(name)
	if !ok {
		return Condition[Range[uint32]]{}
	}
	text := o.values[0].Text
	r, number := parseAnyRange[uint32](text, "-")
	if !number && text != "root" {
		s.lose(fmt.Sprintf("%s %.40s has a name, whose number the host knows", name, text))
	}
	return Condition[Range[uint32]]{Given: true, Negated: o.negated, Value: r}
}

var _ = addMatch(&module{
	name: "owner",
	shapes: map[string]shape{
		"--uid-owner": notOne, "--gid-owner": notOne, "--socket-exists": notFlag, "--suppl-groups": flag,
	},
	phrases: map[string]phrase{"owner": ownerPhrase},
	build: func(s *section) Match {
		m := Owner{
			SocketExists: flagCondition(s, "--socket-exists"),
			UID:          s.ids("--uid-owner"), GID: s.ids("--gid-owner"),
			SupplementaryGroups: s.has("--suppl-groups"),
		}
		if !m.SocketExists.Given && !m.UID.Given && !m.GID.Given {
			s.miss("--uid-owner, --gid-owner or --socket-exists")
		}
		return m
	},
})

func (Owner) module() string { return "owner" }
func (m Owner) write(w *words) {
	writeFlag(w, "--socket-exists", m.SocketExists)
	ids := func(r Range[uint32]) string { return r.text("-") }
	writeCondition(w, "--uid-owner", m.UID, ids)
	writeCondition(w, "--gid-owner", m.GID, ids)
	w.flag(m.SupplementaryGroups, "--suppl-groups")
}

func (m Owner) reads() Facts {
	if m.UID.Given || m.GID.Given {
		return FactSender | FactOwner
	}
	return FactSender
}

// test is owner_mt (xt_owner.c).
func (m Owner) test(c *Context) Truth {
	o := c.Packet.Owner
	if o == nil {
		return truthOf(!m.SocketExists.fails(false) && !m.UID.fails(false) && !m.GID.fails(false))
	}
	return truthOf(!m.SocketExists.fails(true) && !m.UID.fails(m.UID.Value.Contains(o.UID)) && !m.GID.fails(m.inGroup(o)))
}

func (m Owner) inGroup(o *SocketOwner) bool {
	return m.GID.Value.Contains(o.GID) || m.SupplementaryGroups && slices.ContainsFunc(o.Groups, m.GID.Value.Contains)
}

func (m Owner) whyNot(c *Context) string {
	o := c.Packet.Owner
	switch {
	case o == nil:
		return "no program on this host sent it"
	case m.UID.fails(m.UID.Value.Contains(o.UID)):
		return isNot(fmt.Sprintf("its user is %d", o.UID), idText(m.UID.Value), m.UID.Negated)
	case m.GID.Given:
		return isNot(fmt.Sprintf("its group is %d", o.GID), idText(m.GID.Value), m.GID.Negated)
	}
	return ""
}

// idText is a range of users or groups.
func idText(r Range[uint32]) string { return strings.Replace(r.text("-"), "-", " to ", 1) }

// Socket is "-m socket": whether the host has a socket for the packet (xt_socket.c).
type Socket struct {
	Transparent   bool // only one with IP_TRANSPARENT
	NoWildcard    bool // also one that listens on all addresses
	RestoreSkmark bool // set the packet's mark to the socket's
}

var _ = addMatch(&module{
	name:    "socket",
	shapes:  map[string]shape{"--transparent": flag, "--nowildcard": flag, "--restore-skmark": flag},
	phrases: map[string]phrase{"socket": flagsPhrase("socket", "")},
	build: func(s *section) Match {
		return Socket{s.has("--transparent"), s.has("--nowildcard"), s.has("--restore-skmark")}
	},
})

func (Socket) module() string { return "socket" }
func (m Socket) write(w *words) {
	w.flag(m.Transparent, "--transparent")
	w.flag(m.NoWildcard, "--nowildcard")
	w.flag(m.RestoreSkmark, "--restore-skmark")
}

func (Socket) reads() Facts { return FactSockets }

// test is socket_mt (xt_socket.c).
func (m Socket) test(c *Context) Truth {
	found, wildcard, transparent := c.Host.Listener()
	return truthOf(found && (m.NoWildcard || !wildcard) && (!m.Transparent || transparent))
}

func (Socket) whyNot(*Context) string { return "no known socket matches it" }

// ownerPhrase reads "owner socket exists owner UID match 0-100 ! owner GID match 5
// incl. suppl. groups".
func ownerPhrase(w *wording, negated bool) bool {
	w.load("owner")
	loaded := len(w.args)
	given := make(map[string]bool)
	w.at--
	for {
		at := w.at
		not := w.word("!") || negated
		negated = false
		option := ""
		switch {
		case w.word("owner", "socket", "exists"):
			option = "--socket-exists"
		case w.word("owner", "UID", "match"):
			option = "--uid-owner"
		case w.word("owner", "GID", "match"):
			option = "--gid-owner"
		}
		if option == "" || given[option] {
			w.at = at
			break
		}
		given[option] = true
		if option == "--socket-exists" {
			w.emit(not, option)
			continue
		}
		id, ok := w.next()
		if !ok {
			return false
		}
		known := w.ownerID(not, option, id)
		if option == "--gid-owner" && w.word("incl.", "suppl.", "groups") && known {
			w.emit(false, "--suppl-groups")
		}
	}
	if len(w.args) == loaded {
		w.args = w.args[:loaded-2] // all were unknown names
	}
	return len(given) > 0
}

// ownerID emits a test of a user or group; it returns false for an unknown name.
func (w *wording) ownerID(negated bool, option string, id Token) bool {
	if id.Text == "root" { // 0 on every system
		id.Text, w.names = "0", true
	}
	if _, ok := parseAnyRange[uint32](id.Text, "-"); ok {
		w.emit(negated, option, id)
		return true
	}
	w.names = true
	kind := map[string]string{"--uid-owner": "user", "--gid-owner": "group"}[option]
	w.notes["users"] = "users and groups are listed by name, and names have other numbers on other hosts: a rule with one cannot be evaluated"
	w.unknownName(kind+" name "+id.Text, negated, Token{Text: "owner", Column: id.Column})
	return false
}
