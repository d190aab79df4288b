package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// zoneFlags select the time zone of the output.
type zoneFlags struct {
	utc  bool
	name string
}

func (f *zoneFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.utc, "utc", false, "show times in UTC instead of the local time zone")
	flags.StringVar(&f.name, "time-zone", "", "show times in this zone, for example Europe/Vienna")
}

// location is the zone; nil: the local one.
func (f *zoneFlags) location() (*time.Location, error) {
	switch {
	case f.utc && f.name != "":
		return nil, errors.New("--utc and --time-zone cannot be used together: give one of them")
	case f.utc:
		return time.UTC, nil
	case f.name == "":
		return nil, nil
	}
	zone, err := time.LoadLocation(f.name)
	if err != nil {
		return nil, fmt.Errorf("--time-zone %q: want the name of a zone, for example Europe/Vienna, Local or UTC: %w", f.name, err)
	}
	return zone, nil
}
