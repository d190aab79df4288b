package otlp

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
)

// complaints receives the library's errors. Those of an environment that it cannot use are errors of
// the start: the library would go on with its defaults, without TLS's certificates for example.
type complaints struct {
	log *slog.Logger

	mu       sync.Mutex
	starting bool
	list     []string
}

// listenToLibrary sends the library's errors to the log, and returns those of the start.
func listenToLibrary(log *slog.Logger) *complaints {
	c := &complaints{log: log, starting: true}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { c.take(err.Error()) }))
	otel.SetLogger(logr.FromSlogHandler(c))
	return c
}

// end returns the errors of the start.
func (c *complaints) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting = false
	var errs []error
	for _, text := range c.list { // one for each signal
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

func (c *complaints) take(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.starting:
		c.log.Warn("OpenTelemetry: " + text)
	case !slices.Contains(c.list, text):
		c.list = append(c.list, text)
	}
}

// Enabled implements [slog.Handler].
func (c *complaints) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

// Handle implements [slog.Handler].
func (c *complaints) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += ": " + a.Value.String()
		return true
	})
	c.take(text)
	return nil
}

// WithAttrs implements [slog.Handler].
func (c *complaints) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements [slog.Handler].
func (c *complaints) WithGroup(string) slog.Handler { return c }
