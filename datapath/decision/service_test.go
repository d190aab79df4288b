package decision

import (
	"net/netip"
	"testing"
)

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

// TestChainNames holds names against those that kube-proxy gave to the same
// services on published nodes (kubeadm 1.22 with flannel; KinD 1.29).
func TestChainNames(t *testing.T) {
	for _, tt := range []struct {
		service   *ServicePort
		svc       string
		endpoints map[string]string
	}{
		{port("default/kubernetes:https", TCP, "10.96.0.1:443", 0), "KUBE-SVC-NPX46M4PTMTKRN6Y",
			map[string]string{"192.168.100.1:6443": "KUBE-SEP-EMMXYKITEUOEZBH3", "172.20.0.4:6443": "KUBE-SEP-AVE2LRPBNW6AJSYV"}},
		{port("kube-system/kube-dns:dns", UDP, "10.96.0.10:53", 0), "KUBE-SVC-TCOU7JCQXEZGVUNU",
			map[string]string{"10.244.0.5:53": "KUBE-SEP-LPGSDLJ3FDW46N4W", "10.244.2.21:53": "KUBE-SEP-2NK74F4BXH6S2KMP"}},
		{port("kube-system/kube-dns:dns-tcp", TCP, "10.96.0.10:53", 0), "KUBE-SVC-ERIFXISQEP7F7OF4",
			map[string]string{"10.244.0.5:53": "KUBE-SEP-LASJGFFJP3UOS6RQ", "10.244.0.2:53": "KUBE-SEP-IT2ZTR26TO4XFPTO"}},
		{port("kube-system/kube-dns:metrics", TCP, "10.96.0.10:9153", 0), "KUBE-SVC-JD5MR3NA4I4DYORP",
			map[string]string{"10.244.0.5:9153": "KUBE-SEP-FVQSBIWR5JTECIVC"}},
		{port("default/my-nginx-svc", TCP, "10.98.69.149:3000", 0), "KUBE-SVC-NE3M6G7FP5C7DVRO",
			map[string]string{"10.244.3.38:80": "KUBE-SEP-DSBJGVCOU4RGUKVK"}},
		{port("default/my-nginx-service", TCP, "10.96.118.136:80", 30080), "KUBE-SVC-OL4YPD43MBS7WVHD",
			map[string]string{"10.244.1.2:80": "KUBE-SEP-ULMINKU752SDK7IQ", "10.244.2.2:80": "KUBE-SEP-S4QGHWZAQRZ7NT5K"}},
	} {
		if got := tt.service.ServiceChain(); got != tt.svc {
			t.Errorf("%s: chain %s, want %s", tt.service.Name, got, tt.svc)
		}
		for ep, want := range tt.endpoints {
			if got := tt.service.EndpointChain(netip.MustParseAddrPort(ep)); got != want {
				t.Errorf("%s -> %s: chain %s, want %s", tt.service.Name, ep, got, want)
			}
		}
	}
	nginx := port("default/my-nginx-service", TCP, "10.96.118.136:80", 30080)
	if got, want := nginx.ExternalChain(), "KUBE-EXT-OL4YPD43MBS7WVHD"; got != want {
		t.Errorf("external chain %s, want %s", got, want)
	}
}
