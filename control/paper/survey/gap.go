package survey

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// gap is what the rules do not show, so that the end of a path is not known: the kind of gap and, if there may be many of
// the kind, which one.
type gap struct{ text, about string }

// stoppedAt is why a walk did not come to its end.
func stoppedAt(w *netfilter.Way) gap {
	if w.Why != "" {
		return gap{text: w.Why}
	}
	if w.By == nil {
		return gap{text: "the walk ended for an unknown reason"}
	}
	if w.Unknown != nil {
		return gap{"it is not known whether a rule matches", w.By.String()}
	}
	if jump, ok := w.By.Target.(iptables.Jump); ok {
		return gap{"rules jump to a chain that is not in the file", jump.Chain}
	}
	return gap{"the effect of a rule is not known", w.By.String()}
}

// unknownEnds counts the connections that have a gap of one kind on a way.
type unknownEnds struct {
	text        string
	connections int
	last        *connection
	about       []string
}

// countUnknown counts a connection whose end is not known. Its ends come one after the other.
func (s *surveyor) countUnknown(e *end) {
	i := slices.IndexFunc(s.unknown, func(u *unknownEnds) bool { return u.text == e.reason.text })
	if i < 0 {
		i = len(s.unknown)
		s.unknown = append(s.unknown, &unknownEnds{text: e.reason.text})
	}
	u := s.unknown[i]
	if u.last != e.connection {
		u.last, u.connections = e.connection, u.connections+1
	}
	if about := e.reason.about; about != "" && !slices.Contains(u.about, about) {
		u.about = append(u.about, about)
	}
}

// gaps lists what is not known of connections.
func (s *surveyor) gaps() {
	for _, u := range s.unknown {
		about := ""
		if len(u.about) > 0 {
			about = ": " + nearest.Few(u.about)
		}
		s.skip("the end of %s: %s%s", quantity.Count(u.connections, "connection"), u.text, about)
	}
}
