package observe

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestPacket: package resolve tests the rest of what may be wrong with an address.
func TestPacket(t *testing.T) {
	for _, tt := range []struct {
		question              flow.Question
		source, to            string // want
		invalid, errorMessage string // the field, and a part of the message
	}{
		{flow.Question{Protocol: "tcp", Source: "10.244.1.9:77", Destination: "10.96.0.20:80", InInterface: "eth0"}, "10.244.1.9:77", "10.96.0.20:80", "", ""},
		{flow.Question{Protocol: "UDP", Source: "fd00::1", Destination: "[fd00::2]:53", Local: true}, "[fd00::1]:40000", "[fd00::2]:53", "", ""},
		{flow.Question{Source: "10.0.0.1", Destination: "10.0.0.2:80"}, "", "", "protocol", "protocol is missing"},
		{flow.Question{Protocol: "tcp", Destination: "10.0.0.2:80"}, "", "", "source", "source is missing"},
		{flow.Question{Protocol: "tcp", Source: "10.0.0.1"}, "", "", "destination", "destination is missing"},
		{flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.0.0.2"}, "", "", "destination", `destination "10.0.0.2": a port is missing`},
		{flow.Question{Protocol: "tcp", Source: "pod/default/shell", Destination: "10.0.0.2:80"}, "", "", "source", "not an address"},
		{flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "service/default/web:80"}, "", "", "destination", `"service/default/web" is not an address`},
		{flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "[fd00::2]:80"}, "", "", "destination", "one address family"},
		{flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.0.0.2:80", Local: true, InInterface: "eth0"}, "", "", "inInterface", "no input interface"},
	} {
		p, err := Packet(tt.question)
		if tt.invalid != "" {
			if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusBadRequest || e.Field != tt.invalid || !strings.Contains(e.Message, tt.errorMessage) {
				t.Errorf("%+v: error %v, want %s: %s", tt.question, err, tt.invalid, tt.errorMessage)
			}
			continue
		}
		if err != nil || p.Source.String() != tt.source || p.Destination.String() != tt.to || p.Local != tt.question.Local || p.InInterface != tt.question.InInterface {
			t.Errorf("%+v: %+v, %v", tt.question, p, err)
		}
	}
}
