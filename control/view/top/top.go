// Package top shows services and flows full screen and live: a list of services, the endpoints of
// a service, its recent flows, and the details of a flow.
package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// Options configure the screen. The zero value is valid.
type Options struct {
	Style text.Style
	// Query selects the services.
	Query observe.ServiceQuery
	// Zone is the time zone; nil: the local one.
	Zone *time.Location
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Run shows the observer's services and flows on a terminal until the user quits or the context ends.
func Run(ctx context.Context, o observe.Observer, terminal io.Reader, screen io.Writer, options Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // the streams
	p := tea.NewProgram(New(ctx, o, options),
		tea.WithContext(ctx), tea.WithInput(terminal), tea.WithOutput(screen), tea.WithoutSignalHandler())
	_, err := p.Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}
