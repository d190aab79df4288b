package viewapi

import (
	"net"
	"strings"
	"testing"
)

// TestListenPage: a page has a loopback address, and another port if the default is in use.
func TestListenPage(t *testing.T) {
	for _, address := range []string{"192.0.2.1:80", "127.0.0.1", ":80", "0.0.0.0:80", "example.org:80", "unix:/run/x"} {
		if l, err := ListenPage(address); err == nil || !strings.HasPrefix(err.Error(), "--page \""+address+"\": want a loopback address and a port") {
			t.Errorf("%s: %v, error %v", address, l, err)
		}
	}
	first, err := ListenPage("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	address := first.Addr().String()
	if _, err := ListenPage(address); err == nil || err.Error() != "--page "+address+": address already in use" {
		t.Errorf("in use: %v", err)
	}
	if l, err := net.Listen("tcp", DefaultPage); err == nil { // otherwise it is in use anyway
		defer l.Close()
	}
	other, err := ListenPage("")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if got := other.Addr().String(); got == DefaultPage || !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("a page at %s", got)
	}
}
