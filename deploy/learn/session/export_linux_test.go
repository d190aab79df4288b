package session

import (
	"context"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Check evaluates a check in the lab of the unit that is under way.
func (s *Session) Check(ctx context.Context, c *learn.Check, since time.Time) (met bool, detail string) {
	return s.work.check(ctx, c, since)
}

// ProveWithin is Prove with other times that a line and the end of a step may take.
func ProveWithin(ctx context.Context, u *learn.Unit, line, end time.Duration) error {
	return proof{unit: u, line: line, end: end}.run(ctx)
}
