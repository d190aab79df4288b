package observe

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// parser keeps the first error.
type parser struct{ err error }

func (p *parser) fail(field, format string, a ...any) {
	if p.err == nil {
		p.err = badParameter(field, format, a...)
	}
}

// list reads values that are separated by commas. The errors of parse are what is expected.
func list[T any](p *parser, field, text string, parse func(string) (T, error)) []T {
	if text == "" {
		return nil
	}
	var l []T
	for s := range strings.SplitSeq(text, ",") {
		s = strings.TrimSpace(s)
		v, err := parse(s)
		switch {
		case s == "":
			p.fail(field, "%s %q: a value is empty: want values with commas between them", field, text)
			return nil
		case err != nil:
			p.fail(field, "%s %q: %v", field, s, err)
			return nil
		}
		l = append(l, v)
	}
	return l
}

// oneOf reads a value by its name.
func oneOf[T fmt.Stringer](values []T) func(string) (T, error) {
	return func(s string) (T, error) {
		var names []string
		for _, v := range values {
			if v.String() == s {
				return v, nil
			}
			names = append(names, v.String())
		}
		last := len(names) - 1
		var none T
		return none, fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
	}
}

// isName reports whether s has but characters that names of Kubernetes objects have.
func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && s[0] != '-' && s[0] != '.'
}

const nameWanted = "of lower-case letters, digits, . and -"

// parseName reads the name of a namespace or a node.
func parseName(of string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !isName(s) {
			return "", errors.New("want a " + of + "'s name, " + nameWanted)
		}
		return s, nil
	}
}

func parsePod(s string) (PodPattern, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok {
		namespace, name = "", s
	}
	if !isName(name) || ok && !isName(namespace) {
		return PodPattern{}, errors.New("want NAME or NAMESPACE/NAME, " + nameWanted)
	}
	return PodPattern{namespace, name}, nil
}

func parseService(s string) (ServicePattern, error) {
	rest, port, hasPort := strings.Cut(s, ":")
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		namespace, name = "", rest
	}
	switch {
	case !isName(name) || ok && !isName(namespace) || hasPort && (!ok || !isName(port)):
		return ServicePattern{}, errors.New("want NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT, " + nameWanted)
	case hasPort && strings.Trim(port, "0123456789") == "": // such names are not valid
		return ServicePattern{}, fmt.Errorf("want the port's name after the colon: filter by its number with port %s", port)
	}
	return ServicePattern{namespace, name, port}, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, errors.New("want a number from 1 to 65535")
	}
	return uint16(n), nil
}

func parseProtocol(s string) (decision.Protocol, error) {
	p, err := decision.ParseProtocol(s)
	if err != nil {
		return 0, errors.New("want TCP, UDP or SCTP")
	}
	return p, nil
}

var errNoAddress = errors.New("want an ADDRESS, a PREFIX such as 10.244.0.0/16, ADDRESS:PORT or [IPV6]:PORT")

// parseAddress reads ADDRESS, PREFIX or ADDRESS:PORT. Flows have no zones, and no
// IPv4-mapped addresses.
func parseAddress(s string) (AddressPattern, error) {
	var a netip.Addr
	var bits int
	var port uint16
	if ap, err := netip.ParseAddrPort(s); err == nil {
		a, bits, port = ap.Addr(), ap.Addr().BitLen(), ap.Port()
		if port == 0 {
			return AddressPattern{}, errors.New("invalid port 0: leave the port out to match any")
		}
	} else if a, err = netip.ParseAddr(s); err == nil {
		bits = a.BitLen()
	} else if prefix, err := netip.ParsePrefix(s); err == nil {
		a, bits = prefix.Addr(), prefix.Bits()
	} else {
		return AddressPattern{}, errNoAddress
	}
	switch {
	case a.Zone() != "":
		return AddressPattern{}, errors.New("remove the zone %" + a.Zone() + ": addresses of flows have none")
	case a.Is4In6() && bits < 96:
		return AddressPattern{}, errors.New("write it as an IPv4 prefix")
	case a.Is4In6():
		a, bits = a.Unmap(), bits-96
	}
	return AddressPattern{Prefix: netip.PrefixFrom(a, bits).Masked(), Port: port}, nil
}

// ParseEnd reads what parseAddress reads, and NAME or NAME:PORT as shown in lists of flows.
func ParseEnd(s string) (AddressPattern, error) {
	a, err := parseAddress(s)
	if err == nil {
		return a, nil
	}
	if n, ok := parseNamed(s); ok {
		return n, nil
	}
	if errors.Is(err, errNoAddress) {
		err = fmt.Errorf("%w, or the NAME of a pod, node or client", err)
	}
	return a, err
}

// parseDestination reads what parseAddress does. Lists show the service as the destination,
// for which there is another field.
func parseDestination(s string) (AddressPattern, error) {
	a, err := parseAddress(s)
	if n, ok := parseNamed(s); err != nil && ok {
		err = fmt.Errorf("%w; for a service use service %s", err, n.Name)
	}
	return a, err
}

// parseNamed reads NAME, NAMESPACE/NAME or either with a port. What has no letters is no name
// but an address with a mistake.
func parseNamed(s string) (AddressPattern, bool) {
	name, portText, hasPort := strings.Cut(s, ":")
	if _, err := parsePod(name); err != nil || !strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") {
		return AddressPattern{}, false
	}
	if !hasPort {
		return AddressPattern{Name: name}, true
	}
	port, err := parsePort(portText)
	return AddressPattern{Name: name, Port: port}, err == nil
}

// time reads a time, or how long ago it was.
func (p *parser) time(field, s string, now time.Time) time.Time {
	if s == "" {
		return time.Time{}
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t
	}
	ago, err := time.ParseDuration(s)
	if err != nil || ago < 0 {
		p.fail(field, "%s %q: want how long ago, such as 5m or 1h30m, or a time such as 2026-01-02T15:04:05Z", field, s)
		return time.Time{}
	}
	return now.Add(-ago)
}

func (p *parser) limit(q FlowQuery) int {
	switch q.Limit {
	case "0":
		return All
	case "":
		switch {
		case !q.Follow:
			return DefaultLimit
		case q.Since != "":
			return All
		}
		return 0
	}
	return p.number("limit", q.Limit, "0 is all that are known")
}

// number parses a number greater than 0; zero is the meaning of 0.
func (p *parser) number(field, s, zero string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 || s[0] == '+' {
		p.fail(field, "%s %q: want a number; %s", field, s, zero)
		return 0
	}
	return int(n)
}

func (p *parser) serviceKey(field, s string) ServiceKey {
	if s == "" {
		return ServiceKey{}
	}
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] != "IPv4" && parts[2] != "IPv6" {
		p.fail(field, "%s %q: want the field next of an earlier response", field, s)
		return ServiceKey{}
	}
	name, port, _ := strings.Cut(parts[1], ":")
	return ServiceKey{decision.ServicePortName{Namespace: parts[0], Name: name, Port: port}, parts[2]}
}

// QueryOf reads parameters of the flow API into a query, whose fields are of two types: bool and string. Each
// parameter must be known and given once; one for a bool without a value means true. The query's own Parse validates the
// values. The error is an [*Error].
func QueryOf[Q any](v url.Values) (Q, error) {
	var q, none Q
	r := reflect.ValueOf(&q).Elem()
	var known []string
	for i := range r.NumField() {
		known = append(known, strings.ToLower(r.Type().Field(i).Name))
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		i := slices.Index(known, name)
		switch {
		case i < 0 && len(known) == 0:
			return none, badParameter(name, "parameter %q: this path has no parameters", name)
		case i < 0:
			return none, badParameter(name, "parameter %q: want %s", name, strings.Join(known, ", "))
		case len(v[name]) > 1:
			return none, badParameter(name, "%s is given %d times: give it once, a list with commas", name, len(v[name]))
		}
		text := v.Get(name)
		if f := r.Field(i); f.Kind() == reflect.String {
			f.SetString(text)
			continue
		}
		switch text {
		case "", "true":
			r.Field(i).SetBool(true)
		case "false":
		default:
			return none, badParameter(name, "%s %q: want true or false", name, text)
		}
	}
	return q, nil
}

// AfterOf reads the parameter after of the flow API, a hold's generation, as [QueryOf] does; 0: not given.
func AfterOf(v url.Values) (uint64, error) {
	q, err := QueryOf[struct{ After string }](v)
	if err != nil || q.After == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(q.After, 10, 64)
	if err != nil {
		return 0, badParameter("after", "after %q: want a generation of the hold, a number", q.After)
	}
	return n, nil
}

// ServiceOf reads the parameter service of the flow API, NAMESPACE/NAME; empty: not given.
func ServiceOf(v url.Values) (string, error) {
	q, err := QueryOf[struct{ Service string }](v)
	if err != nil || q.Service == "" {
		return "", err
	}
	_, err = parseServiceName(q.Service)
	return q.Service, err
}

func badParameter(name, format string, a ...any) error {
	return &Error{http.StatusBadRequest, name, fmt.Sprintf(format, a...)}
}
