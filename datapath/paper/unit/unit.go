// Package unit writes durations, sizes and probabilities for people.
package unit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration formats a duration with at most three digits, without spaces: 340µs,
// 12.1ms, 5m2s, 3d4h.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d == 0:
		return "0"
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d)
	case d < time.Millisecond:
		return digits(float64(d)/float64(time.Microsecond)) + "µs"
	case d < time.Second:
		return digits(float64(d)/float64(time.Millisecond)) + "ms"
	case d < time.Minute:
		return digits(d.Seconds()) + "s"
	case d < time.Hour:
		return pair(d, time.Minute, "m", time.Second, "s")
	case d < 24*time.Hour:
		return pair(d, time.Hour, "h", time.Minute, "m")
	}
	return pair(d, 24*time.Hour, "d", time.Hour, "h")
}

// pair formats a duration in two units; the smaller one is left out if it is zero.
func pair(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// Seconds formats a duration that is given in seconds, as records have them.
func Seconds(s float64) string { return Duration(time.Duration(s * float64(time.Second))) }

// Bytes formats a size in powers of ten, without spaces: 245B, 10.5MB.
func Bytes(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	const units = "kMGTPE"
	f, unit := float64(n)/1000, 0
	for ; f >= 999.5 && unit < len(units)-1; unit++ {
		f /= 1000
	}
	return digits(f) + units[unit:unit+1] + "B"
}

// Probability formats a probability with its significant digits.
func Probability(p float64) string { return strconv.FormatFloat(p, 'g', 3, 64) }

// digits formats a number below 1000 with three digits, without trailing zeros.
func digits(f float64) string {
	places := 0
	switch {
	case f < 9.995:
		places = 2
	case f < 99.95:
		places = 1
	}
	text := fmt.Sprintf("%.*f", places, f)
	if places > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
