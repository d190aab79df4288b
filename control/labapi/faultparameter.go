package labapi

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// maxConnections and maxDelay are the greatest values of these parameters.
const (
	maxConnections = 1 << 20
	maxDelay       = Duration(time.Minute)
)

// faultField is a field of [Fault] that is a parameter of kinds.
type faultField struct {
	name, kind, example string
	options             []string
	want                string                     // its form, for a message
	set                 func(*Fault, string) error // reads a text
	given               func(*Fault) bool
	valid               func(*Fault) bool // of one that is given; nil: what can be read is valid
}

// read sets the parameter of a fault to a text. The error is what the text should be.
func (p *faultField) read(f *Fault, text string) error {
	if p.set(f, text) != nil || p.valid != nil && !p.valid(f) {
		return errors.New(p.want)
	}
	return nil
}

// faultFields are those of all kinds.
var faultFields = []faultField{
	durationField("delay", "200ms", func(f *Fault) *Duration { return &f.Delay }),
	durationField("jitter", "50ms", func(f *Fault) *Duration { return &f.Jitter }),
	{
		name: "percent", kind: ParameterNumber, example: "20", want: "a number above 0, up to 100",
		set: func(f *Fault, text string) (err error) {
			f.Percent, err = strconv.ParseFloat(text, 64)
			return err
		},
		given: func(f *Fault) bool { return f.Percent != 0 },
		valid: func(f *Fault) bool { return f.Percent > 0 && f.Percent <= 100 },
	},
	{
		name: "to", kind: ParameterText, example: "10.244.1.2", want: "an address or CIDR",
		set: func(f *Fault, text string) (err error) {
			f.To, err = addressOrCIDR(text)
			return err
		},
		given: func(f *Fault) bool { return f.To.IsValid() },
	},
	{
		name: "port", kind: ParameterNumber, example: "80", want: "a port from 1 to 65535",
		set: func(f *Fault, text string) error {
			n, err := strconv.ParseUint(text, 10, 16)
			f.Port = uint16(n)
			return err
		},
		given: func(f *Fault) bool { return f.Port != 0 },
		valid: func(f *Fault) bool { return f.Port != 0 },
	},
	{
		name: "protocol", kind: ParameterChoice, options: []string{"tcp", "udp", "sctp"}, want: "tcp, udp or sctp",
		set: func(f *Fault, text string) (err error) {
			f.Protocol, err = decision.ParseProtocol(text)
			return err
		},
		given: func(f *Fault) bool { return f.Protocol != 0 },
		valid: func(f *Fault) bool {
			return slices.Contains([]decision.Protocol{decision.TCP, decision.UDP, decision.SCTP}, f.Protocol)
		},
	},
	{
		name: "reject", kind: ParameterFlag, want: "true or false",
		set: func(f *Fault, text string) (err error) {
			f.Reject, err = strconv.ParseBool(text)
			return err
		},
		given: func(f *Fault) bool { return f.Reject },
	},
	{
		name: "via", kind: ParameterText, example: "172.20.0.1", want: "an address",
		set: func(f *Fault, text string) (err error) {
			f.Via, err = kubeaddr.Parse(text)
			return err
		},
		given: func(f *Fault) bool { return f.Via.IsValid() },
	},
	addressPortField("from", "10.244.1.9:40000", func(f *Fault) *netip.AddrPort { return &f.From }),
	addressPortField("endpoint", "10.244.1.99:53", func(f *Fault) *netip.AddrPort { return &f.Endpoint }),
	{
		name: "connections", kind: ParameterNumber, example: "100", want: "a number up to " + strconv.Itoa(maxConnections),
		set: func(f *Fault, text string) error {
			n, err := strconv.ParseUint(text, 10, 32)
			f.Connections = uint32(n)
			return err
		},
		given: func(f *Fault) bool { return f.Connections != 0 },
		valid: func(f *Fault) bool { return f.Connections <= maxConnections },
	},
}

func durationField(name, example string, of func(*Fault) *Duration) faultField {
	return faultField{
		name: name, kind: ParameterText, example: example, want: "a duration from 1us to 1m",
		set:   func(f *Fault, text string) error { return of(f).UnmarshalText([]byte(text)) },
		given: func(f *Fault) bool { return *of(f) != 0 },
		valid: func(f *Fault) bool { return *of(f) >= Duration(time.Microsecond) && *of(f) <= maxDelay },
	}
}

func addressPortField(name, example string, of func(*Fault) *netip.AddrPort) faultField {
	return faultField{
		name: name, kind: ParameterText, example: example, want: "ADDRESS:PORT",
		set: func(f *Fault, text string) (err error) {
			*of(f), err = netip.ParseAddrPort(text)
			return err
		},
		given: func(f *Fault) bool { return of(f).IsValid() },
		valid: func(f *Fault) bool { return of(f).Port() != 0 },
	}
}

func addressOrCIDR(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return kubeaddr.ParsePrefix(text)
	}
	a, err := kubeaddr.Parse(text)
	return netip.PrefixFrom(a, a.BitLen()), err
}

// faultFieldOf finds a parameter by its name; nil: there is none.
func faultFieldOf(name string) *faultField {
	i := slices.IndexFunc(faultFields, func(p faultField) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return &faultFields[i]
}

// FaultParameterNames are the names of the parameters of all kinds.
func FaultParameterNames() (names []string) {
	for _, p := range faultFields {
		names = append(names, p.name)
	}
	return names
}
