package observetest

import (
	"context"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Lab is an [labapi.Lab] that keeps what it is given. Its exported fields may be changed between requests.
type Lab struct {
	Status  labapi.Status
	Changes []string // the lines of each change
	Err     error    // of changes and faults

	mu       sync.Mutex
	requests []any
}

// Requests returns the changes, the faults and the numbers of removed faults, in their order.
func (l *Lab) Requests() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *Lab) note(request any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, request)
}

// LabStatus returns Status.
func (l *Lab) LabStatus(context.Context) (*labapi.Status, error) { return &l.Status, nil }

// Change returns Changes or Err.
func (l *Lab) Change(_ context.Context, c labapi.Change) ([]string, error) {
	l.note(c)
	return l.Changes, l.Err
}

// AddFault returns the fault with the number 7, or Err.
func (l *Lab) AddFault(_ context.Context, f labapi.Fault) (labapi.Fault, error) {
	l.note(f)
	f.ID, f.Text = 7, f.String()
	return f, l.Err
}

// RemoveFault returns the faults of Status, or Err.
func (l *Lab) RemoveFault(_ context.Context, id int) ([]labapi.Fault, error) {
	l.note(id)
	return l.Status.Faults, l.Err
}
