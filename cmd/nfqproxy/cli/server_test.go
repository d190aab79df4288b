package cli

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

func TestBlameFlag(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("protocol", "", "")
	flags.String("token-file", "", "")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("connection refused"), "connection refused"},
		{&observe.Error{Status: 404, Message: "no flow"}, "no flow"},
		{&observe.Error{Status: 400, Field: "id", Message: "id: none"}, "id: none"},
		{&observe.Error{Status: 400, Field: "protocol", Message: `protocol "tpc": want TCP`}, `--protocol "tpc": want TCP`},
		{&observe.Error{Status: 400, Field: "flow.protocol", Message: `flow.protocol "tpc": want TCP`}, `--protocol "tpc": want TCP`},
		{&observe.Error{Status: 400, Field: "flow.protocol", Message: `protocol "tpc": want TCP`}, `--protocol "tpc": want TCP`},
		{&observe.Error{Status: 400, Field: "protocol", Message: "want TCP"}, "--protocol: want TCP"},
		{&observe.Error{Status: 401, Message: "a token is missing"}, "a token is missing (give --token-file)"},
	} {
		if got := blameFlag(flags, tt.err).Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
