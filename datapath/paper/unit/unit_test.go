package unit

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 999: "999ns", 1000: "1µs", 12345: "12.3µs", 340 * time.Microsecond: "340µs",
		1500 * time.Microsecond: "1.5ms", time.Second: "1s", 12300 * time.Millisecond: "12.3s",
		time.Minute: "1m", 5*time.Minute + 2*time.Second: "5m2s", 3*time.Hour + 5*time.Minute: "3h5m", 76 * time.Hour: "3d4h",
		-2 * time.Second: "-2s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
	if got := Seconds(0.0123); got != "12.3ms" {
		t.Errorf("got %s", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 999: "999B", 1000: "1kB", 1234: "1.23kB", 10502634: "10.5MB", 999_499: "999kB", 999_500: "1MB",
		1<<64 - 1: "18.4EB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
