package decision

import "testing"

// TestProtocolText: protocols are written as text and read back; other texts are no protocol.
func TestProtocolText(t *testing.T) {
	for p, want := range map[Protocol]string{0: "", TCP: "TCP", UDP: "UDP", SCTP: "SCTP"} {
		text, err := p.MarshalText()
		read := Protocol(1)
		if err := read.UnmarshalText(text); err != nil || read != p {
			t.Errorf("%q is read as %v: %v", text, read, err)
		}
		if err != nil || string(text) != want {
			t.Errorf("%v is written as %q, want %q: %v", p, text, want, err)
		}
	}
	var p Protocol
	if err := p.UnmarshalText([]byte("udp")); err != nil || p != UDP {
		t.Errorf("udp is read as %v: %v", p, err)
	}
	if err := p.UnmarshalText([]byte("icmp")); err == nil {
		t.Error("icmp is a protocol of services")
	}
}
