package cli

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestLocalServer: the commands use the daemon's socket where there is one.
func TestLocalServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api")
	if got := localServer(socket); got != forwardedServer {
		t.Errorf("without a socket: %s", got)
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := localServer(socket); got != forwardedServer {
		t.Errorf("with another file: %s", got)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := localServer(socket); got != "unix:"+socket {
		t.Errorf("with the socket: %s", got)
	}
}

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
