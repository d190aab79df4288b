package top

import (
	"math"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// shades distinguish the endpoints of a bar, also without colours.
var shades = []string{"█", "▒", "▓", "░"}

// spread is a bar of the endpoints' shares of the random selections.
func spread(s *observe.Service, width int) string {
	shares := make([]float64, 0, len(s.Endpoints))
	sum := 0.0
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		share := float64(e.Flows.Drawn)
		if s.Fit != nil || s.Balance != "" {
			share = e.Observed
		}
		shares = append(shares, share)
		sum += share
	}
	if sum == 0 {
		return ""
	}
	var b strings.Builder
	until, done := 0.0, 0
	for i, share := range shares {
		until += share / sum
		end := min(width, int(math.Round(until*float64(width))))
		b.WriteString(strings.Repeat(shades[i%len(shades)], end-done))
		done = end
	}
	return b.String()
}

// share is a bar of one endpoint's share, with a mark at the expected share.
func share(observed, expected float64, width int) string {
	bar := make([]rune, width)
	for i := range bar {
		bar[i] = '·'
		if i < int(math.Round(observed*float64(width))) {
			bar[i] = '█'
		}
	}
	if expected > 0 {
		bar[max(0, min(width, int(math.Round(expected*float64(width))))-1)] = '|'
	}
	return string(bar)
}
