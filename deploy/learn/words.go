package learn

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String is what the check wants, in words.
func (c *Check) String() string {
	s := c.Text
	switch {
	case s != "":
		return s
	case c.Flow != nil:
		s = c.Flow.String()
	case c.Request != nil:
		s = c.Request.String()
	case c.Entry != nil:
		s = c.Entry.String()
	case c.Rule != nil:
		s = fmt.Sprintf("%s has a rule with %s", c.Rule.On, c.Rule.Matches)
	case c.Route != nil:
		s = c.Route.String()
	case c.Object != nil:
		s = c.Object.String()
	case c.Run != nil:
		s = "this succeeds"
		if c.Run.On != "" {
			s += " on " + c.Run.On
		}
		s += ": " + strings.TrimSpace(c.Run.Text)
	}
	if c.Not {
		s = "not: " + s
	}
	return s
}

// words joins pairs of a word and a value, without those that have no value.
func words(pairs ...string) string {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+" "+pairs[i+1])
		}
	}
	return strings.Join(parts, ", ")
}

func (c *FlowCheck) String() string {
	s := "a flow"
	if c.Count > 1 {
		s = fmt.Sprintf("%d flows", c.Count)
	}
	masquerade := ""
	if c.Masquerade != nil {
		masquerade = "no"
		if *c.Masquerade {
			masquerade = "yes"
		}
	}
	if w := words("to", c.Service, "to", c.To, "from", c.From, "endpoint", c.Endpoint, "on node", c.Node, "protocol", c.Protocol, "verdict", c.Verdict,
		"reason", c.Reason, "entry", c.Entry, "masqueraded:", masquerade, "because of", c.MasqueradeReason, "state", c.State); w != "" {
		s += " " + w
	}
	return s
}

func (c *RequestCheck) String() string {
	s, fails, answered := "a request", " fails: ", " is answered"
	if c.Count > 1 {
		s, fails, answered = fmt.Sprintf("%d requests", c.Count), " fail: ", " are answered"
	}
	s += fmt.Sprintf(" from %s to %s", c.From, c.To)
	if c.Error != "" {
		return s + fails + c.Error
	}
	s += answered
	if len(c.By) > 0 {
		s += " by " + strings.Join(c.By, " or ")
	}
	if c.Client != "" {
		s += ", and the server sees the client address " + c.Client
	}
	return s
}

func (c *EntryCheck) String() string {
	answered := ""
	if c.Answered {
		answered = "yes"
	}
	s := fmt.Sprintf("the connection table of %s has an entry", c.On)
	if w := words("protocol", c.Protocol, "from", c.From, "to", c.To, "replies from", c.ReplyFrom, "replies to", c.ReplyTo, "state", c.State, "answered:", answered); w != "" {
		s += ": " + w
	}
	return s
}

func (c *RouteCheck) String() string {
	return fmt.Sprintf("the route of %s to %s leads %s", c.On, c.To, words("via", c.Via, "through device", c.Dev))
}

func (c *ObjectCheck) String() string {
	s := fmt.Sprintf("the lab has the %s %s/%s", c.Kind, cmp.Or(c.Namespace, "default"), c.Name)
	for _, path := range slices.Sorted(maps.Keys(c.Has)) {
		s += fmt.Sprintf(", %s %s", path, c.Has[path])
	}
	return s
}
