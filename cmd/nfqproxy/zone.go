package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// zoneFlags say in which zone times are shown.
type zoneFlags struct {
	utc  bool
	name string
}

func (f *zoneFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.utc, "utc", false, "times in UTC, and not in the local time zone")
	flags.StringVar(&f.name, "time-zone", "", "times in this zone: Europe/Vienna, for example")
}

// location is the zone; nil: the local one.
func (f *zoneFlags) location() (*time.Location, error) {
	switch {
	case f.utc && f.name != "":
		return nil, errors.New("--utc and --time-zone: give one of them")
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
