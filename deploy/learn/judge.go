package learn

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// maxTimeout is the longest timeout of a check's request.
const maxTimeout = 10 * time.Second

// Judge reports whether an answer is right, where the right one is text: of a script, a command or a held flow, or, for all
// others, of the answer itself.
func (a *Answer) Judge(given, text string) bool {
	if right, known := a.fixed(given); known {
		return right
	}
	return sameAnswer(given, text)
}

// fixed judges an answer that needs no script, command or held flow; known reports whether it is one.
func (a *Answer) fixed(given string) (right, known bool) {
	switch {
	case len(a.Is) > 0:
		for _, is := range a.Is {
			right = right || sameAnswer(given, is)
		}
	case a.Matches != "":
		re, err := regexp.Compile("^(?i:" + a.Matches + ")$")
		right = err == nil && re.MatchString(normal(given))
	case a.Number != nil:
		n, err := parseNumber(given)
		right = err == nil && math.Abs(n-a.Number.Value) <= a.Number.Within+1e-9
	default:
		return false, false
	}
	return right, true
}

// Text is a right answer that depends on nothing else, for solutions and books; empty: none is known.
func (a *Answer) Text() string {
	switch {
	case len(a.Is) > 0:
		return a.Is[0]
	case a.Number != nil:
		return strconv.FormatFloat(a.Number.Value, 'g', -1, 64)
	}
	return ""
}

// normal returns an answer without what does not count: surrounding spaces, repeated spaces and quotes.
func normal(s string) string {
	return strings.TrimSpace(strings.Trim(strings.Join(strings.Fields(s), " "), "\"'`"))
}

// sameAnswer compares answers as a person would: 0.50 and 0.5 are the same, and so are YES and yes.
func sameAnswer(a, b string) bool {
	a, b = normal(a), normal(b)
	if strings.EqualFold(a, b) {
		return true
	}
	x, errX := parseNumber(a)
	y, errY := parseNumber(b)
	return errX == nil && errY == nil && math.Abs(x-y) < 1e-9
}

// parseNumber reads 0.5, 50% or 1/2.
func parseNumber(s string) (float64, error) {
	s = strings.Replace(normal(s), ",", ".", 1)
	if n, ok := strings.CutSuffix(s, "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
		return f / 100, err
	}
	if above, below, ok := strings.Cut(s, "/"); ok {
		x, err := strconv.ParseFloat(strings.TrimSpace(above), 64)
		if err != nil {
			return 0, err
		}
		y, err := strconv.ParseFloat(strings.TrimSpace(below), 64)
		if err == nil && y == 0 {
			err = fmt.Errorf("%s: division by zero", s)
		}
		return x / y, err
	}
	return strconv.ParseFloat(s, 64)
}

// WrongReason is why a given answer is wrong, if the unit has that.
func (q *Question) WrongReason(given string) string {
	for _, w := range q.Wrong {
		if sameAnswer(given, w.Answer) {
			return w.Because
		}
	}
	return ""
}

// AnsweredState of a [FlowCheck]: replies were seen, whatever the flow's state is now.
const AnsweredState = "answered"

// Query selects the flows of the check that the flow API can select.
func (c *FlowCheck) Query() observe.FlowQuery {
	state := c.State
	if state == AnsweredState {
		state = "" // of flows that have been answered, most are closed
	}
	return observe.FlowQuery{
		Service: c.Service, Source: c.From, Destination: c.To, Endpoint: c.Endpoint, Node: c.Node, Protocol: c.Protocol,
		Verdict: c.Verdict, Reason: c.Reason, State: state, Limit: "0",
	}
}

// ParseAddress reads ADDRESS or ADDRESS:PORT; port 0: none is given. Empty text is no address.
func ParseAddress(s string) (netip.Addr, uint16, error) {
	if s == "" {
		return netip.Addr{}, 0, nil
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr(), a.Port(), nil
	}
	a, err := kubeaddr.Parse(s)
	if err != nil {
		return a, 0, fmt.Errorf("%q: want ADDRESS or ADDRESS:PORT", s)
	}
	return a, 0, nil
}
