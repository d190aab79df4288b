package labapi

import (
	"fmt"
	"time"
)

// Duration is a time in JSON as Go writes it: "200ms" or "1m30s".
type Duration time.Duration

// String is the form in JSON.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the form of [Duration.String].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what time.ParseDuration does.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q: want a duration, as 200ms, 10s or 1m", text)
	}
	*d = Duration(v)
	return nil
}
