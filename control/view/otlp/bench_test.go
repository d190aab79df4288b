package otlp

import (
	"context"
	"log/slog"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// BenchmarkRequest makes a request of the records of one batch, without sending it.
func BenchmarkRequest(b *testing.B) {
	x, err := Open(Config{Endpoint: "http://127.0.0.1:1", Signals: []string{Logs, Traces}, Sample: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	records := make([]*flow.Record, batch)
	for i := range records {
		records[i] = record()
	}
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for _, p := range x.pipes {
		b.Run(p.signal, func(b *testing.B) {
			for b.Loop() {
				_ = p.request(records)(ctx)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/record")
		})
	}
}
