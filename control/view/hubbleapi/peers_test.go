package hubbleapi

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPeerAddresses(t *testing.T) {
	nodes := map[string][]netip.Addr{
		"both": {netip.MustParseAddr("fd00::1"), netip.MustParseAddr("172.20.0.2")}, "v6": {netip.MustParseAddr("fd00::2")}, "none": nil,
	}
	each := func(each func(string, []netip.Addr)) {
		for name, addresses := range nodes {
			each(name, addresses)
		}
	}
	for listen, want := range map[string]map[string]string{
		"0.0.0.0:4244":    {"both": "172.20.0.2:4244", "v6": "[fd00::2]:4244"},
		"172.20.0.2:4245": {"both": "172.20.0.2:4245", "v6": "[fd00::2]:4245"},
		"[fd00::1]:4244":  {"both": "[fd00::1]:4244", "v6": "[fd00::2]:4244"},
		"[::]:4244":       {"both": "[fd00::1]:4244", "v6": "[fd00::2]:4244"},
	} {
		p := Peers{each, netip.MustParseAddrPort(listen)}
		if have := p.addresses(); !maps.Equal(have, want) {
			t.Errorf("%s: %v, want %v", listen, have, want)
		}
	}
}

func TestPeerChanges(t *testing.T) {
	var have []string
	for _, c := range changes(map[string]string{"a": "1", "b": "2", "c": "3"}, map[string]string{"a": "1", "b": "4", "d": "5"}) {
		have = append(have, strings.Join([]string{c.GetType().String(), c.GetName(), c.GetAddress()}, " "))
	}
	if want := []string{"PEER_DELETED c 3", "PEER_UPDATED b 4", "PEER_ADDED d 5"}; !slices.Equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
}

func TestServerName(t *testing.T) {
	if name := ServerName("ip-10-0-0-1.eu.example"); name != "ip-10-0-0-1-eu-example.default.hubble-grpc.cilium.io" {
		t.Error(name)
	}
}

func TestCheckTLS(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		address string
		files   TLS
		want    string
	}{
		{"127.0.0.1:4245", TLS{}, ""},
		{"[::1]:4245", TLS{}, ""},
		{"localhost:4245", TLS{}, `--hubble-bind-address "localhost:4245": want an address and a port`},
		{"127.0.0.1:0", TLS{}, "want an address and a port"},
		{"0.0.0.0:4244", TLS{}, "reachable from other machines: give --hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca"},
		{"0.0.0.0:4244", TLS{CertFile: "a", KeyFile: "b"}, "give all or none"},
		{"127.0.0.1:4244", TLS{ClientCAFile: "a"}, "give all or none"},
		{"0.0.0.0:4244", TLS{"/none/a", "/none/b", "/none/c"}, "--hubble-tls-cert /none/a, --hubble-tls-key /none/b: open /none/a"},
		{"0.0.0.0:4244", TLS{empty, empty, empty}, "--hubble-tls-cert " + empty},
	} {
		err := c.files.Check(c.address)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %+v: error %v, want %q", c.address, c.files, err, c.want)
		}
	}
}
