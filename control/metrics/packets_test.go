package metrics

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// TestPacketCounts: upstream's e2e test "should update metric for tracking accepted packets destined
// for localhost nodeports" finds a counter without labels, and wants it to be there before the
// first packet.
func TestPacketCounts(t *testing.T) {
	m := New("")
	var log bytes.Buffer
	h := m.Handler(HandlerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	const invalid, localhost = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
	if body := ask(h, "/metrics", "").Body.String(); strings.Contains(body, invalid) || strings.Contains(body, localhost) {
		t.Error("there are counters before they can be read")
	}
	var packets uint64
	var failure error
	m.ReadPackets(func() (uint64, uint64, error) { return 7, packets, failure })
	for packets = range uint64(2) {
		body := ask(h, "/metrics", "").Body.String()
		for _, want := range []string{
			"\n# TYPE " + invalid + " counter\n" + invalid + " 7\n",
			"\n# TYPE " + localhost + " counter\n" + localhost + " " + string('0'+rune(packets)) + "\n",
		} {
			if !strings.Contains(body, want) {
				t.Errorf("no %q in\n%s", want, body)
			}
		}
	}
	failure = errors.New("the kernel is busy")
	w := ask(h, "/metrics", "")
	if body := w.Body.String(); w.Code != http.StatusOK || strings.Contains(body, invalid) || strings.Contains(body, localhost) || !strings.Contains(body, "nfqproxy_build_info") {
		t.Errorf("%d, want 200 and all other metrics:\n%s", w.Code, body)
	}
	if !strings.Contains(log.String(), "the kernel is busy") {
		t.Errorf("the log says %q", log.String())
	}
}
