package servicetable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// AddressSource feeds a Controller with the addresses that are local to the
// node: all of them at first, and then whenever they changed. Otherwise it is
// like the Run of a [Source]. The Controller keeps the published slices.
type AddressSource func(ctx context.Context, publish func([]netip.Addr)) error

// Config configures a Controller. All fields but Node must be set.
type Config struct {
	Node      NodeConfig
	Objects   Source
	Addresses AddressSource
	// Publish applies each new table, and returns when it is in force. It is called from one
	// goroutine; while it runs, no other table is built.
	Publish func(*decision.Table)
	// MinSyncPeriod is the minimum time between two tables; 0: none. As the work for a table is
	// in proportion to the change, there is little reason to wait: changes that arrive while one
	// is built go into the next in any case.
	MinSyncPeriod time.Duration
	Logger        *slog.Logger
	// Progress is notified of the progress of changes.
	Progress Progress
	// Warned is called for each warning that is logged.
	Warned func(Warning)
}

// Progress is notified of the progress of changes. Its methods are called by the
// Controller's goroutine.
type Progress interface {
	// Queued: changes of this number of objects arrived.
	Queued(services, endpointSlices int)
	// Taken: a sync with all of them begins.
	Taken()
	// Updated: they are in force, or had no effect.
	Updated(Sync)
}

// Sync is the result of a batch of changes.
type Sync struct {
	Table *decision.Table // in force now; the previous one if nothing changed
	// Services and EndpointSlices count the objects that came in since the previous
	// sync; they may be the same as before.
	Services, EndpointSlices int
	// Began is when the table began to be made.
	Began time.Time
	// Triggers are the trigger times of the changes of the slices
	// (annotation endpoints.kubernetes.io/last-change-trigger-time), by their family, as
	// far as that was after the Controller's start.
	Triggers map[decision.Family][]time.Time
	// Origins are the Services of which objects came in since the previous sync.
	Origins map[decision.ServiceName]Origin
}

// Origin describes the changes of a Service's objects that go into a table.
type Origin struct {
	// Received is when the first of the changed objects reached the Controller.
	Received time.Time
	// Triggered is the oldest trigger time of the changed EndpointSlices; zero: not known. A Service has none,
	// and an EndpointSlice that kept the one of an earlier change does not count.
	Triggered time.Time
}

// Validate returns all errors in the configuration, joined.
func (c *Config) Validate() error {
	var errs []error
	missing := func(field string, isNil bool) {
		if isNil {
			errs = append(errs, fmt.Errorf("%s: missing", field))
		}
	}
	missing("objects", c.Objects == nil)
	missing("addresses", c.Addresses == nil)
	missing("publish", c.Publish == nil)
	missing("logger", c.Logger == nil)
	missing("progress", c.Progress == nil)
	missing("warned", c.Warned == nil)
	if err := c.Node.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Controller makes a new table whenever the objects or the node's addresses
// change in a way that the table shows.
type Controller struct {
	config Config
	now    func() time.Time
	// requests are changes by hand.
	requests chan request

	// What follows belongs to the goroutine of Run.

	builder   *builder
	owners    *Owners
	loaded    bool         // there were objects
	addresses []netip.Addr // valid iff located
	located   bool         // there were addresses, if only an empty list
	last      *decision.Table
	started   time.Time
	pending   Sync // what came in since the last table was made
	// The warnings that stand and are logged.
	nodeWarnings, conflicts []Warning
}

// New returns a Controller, or the error of Config.Validate.
func New(config Config) (*Controller, error) {
	return newController(config, time.Now)
}

func newController(config Config, now func() time.Time) (*Controller, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	return &Controller{config: config, now: now, requests: make(chan request), builder: newBuilder(config.Node), owners: new(Owners)}, nil
}

// Run runs both sources and publishes tables, their generations counted from 1,
// until the context ends; then it returns nil. It publishes no table before it has
// objects and addresses, nor when a change has no effect on the table.
//
// If a source fails, Run ends with its error. Run waits for both sources to end. It may be
// called only once.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	inputs := make(chan func()) // each takes over one input
	ends := make(chan end, 2)
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- {
			<-ends // what it fails with while being stopped is of no interest
		}
	}()
	input := func(take func()) { // unless the controller is stopping
		select {
		case inputs <- take:
		case <-ctx.Done():
		}
	}
	start := func(what string, gave *bool, run func() error) {
		running++
		go func() { ends <- end{what, gave, run()} }()
	}
	start("objects", &c.loaded, func() error {
		return c.config.Objects.Run(ctx, func(u Update) {
			received := c.now()
			input(func() {
				c.loaded = true
				c.note(u, received)
				c.owners.update(u)
				c.builder.apply(u)
			})
		})
	})
	start("addresses", &c.located, func() error {
		return c.config.Addresses(ctx, func(a []netip.Addr) {
			input(func() {
				c.addresses, c.located = a, true
				c.config.Progress.Queued(0, 0)
			})
		})
	})

	c.started = c.now()
	var soonest time.Time    // for the next table
	var due <-chan time.Time // nil: nothing waits for it
	sync := func() {
		due = nil
		if c.rebuild() {
			soonest = time.Now().Add(c.config.MinSyncPeriod)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-c.requests:
			err := r.change()
			if err == nil {
				sync()
			}
			r.done <- err
		case take := <-inputs:
			take()
			switch wait := time.Until(soonest); {
			case wait <= 0:
				sync()
			case due == nil:
				due = time.After(wait)
			}
		case <-due:
			sync()
		case e := <-ends:
			running--
			switch {
			case ctx.Err() != nil:
				return nil
			case e.err != nil:
				return fmt.Errorf("source of %s: %w", e.what, e.err)
			case !*e.gave:
				return fmt.Errorf("source of %s: ended without data", e.what)
			}
		}
	}
}

// Owners returns the owners of addresses, as far as the objects contain them.
func (c *Controller) Owners() *Owners { return c.owners }

// end is the end of a source.
type end struct {
	what string
	gave *bool // something: then nothing more is needed
	err  error
}

// note records an update for the next Sync, before the builder takes it over.
func (c *Controller) note(u Update, received time.Time) {
	p := &c.pending
	p.Services += len(u.Services)
	p.EndpointSlices += len(u.EndpointSlices)
	origin := func(k decision.ServiceName, triggered time.Time) {
		o, known := p.Origins[k]
		if !known {
			o.Received = received
		}
		if o.Triggered.IsZero() || !triggered.IsZero() && triggered.Before(o.Triggered) {
			o.Triggered = triggered
		}
		set(&p.Origins, k, o)
	}
	for name := range u.Services {
		origin(decision.ServiceName(name), time.Time{})
	}
	for name, slice := range u.EndpointSlices {
		before := c.builder.owned[name]
		if before != nil {
			origin(before.owner(), time.Time{})
		}
		if slice == nil {
			continue
		}
		triggered := slice.triggered()
		if slice.family != 0 && triggered.After(c.started) {
			set(&p.Triggers, slice.family, append(p.Triggers[slice.family], triggered))
		}
		if before != nil && before.trigger == slice.trigger {
			triggered = time.Time{}
		}
		if slice.service != "" {
			origin(slice.owner(), triggered)
		}
	}
	c.config.Progress.Queued(len(u.Services), len(u.EndpointSlices))
}

// rebuild publishes a table if it differs from the last, and reports whether all inputs are there.
func (c *Controller) rebuild() bool {
	if !c.loaded || !c.located {
		return false
	}
	c.config.Progress.Taken()
	sync := c.pending
	c.pending, sync.Began = Sync{}, c.now()
	changes, warnings := c.builder.build()
	node := c.config.Node.node(c.builder.node(), c.addresses)
	before := cmp.Or(c.last, new(decision.Table))
	sync.Table = before
	changed := c.last == nil || len(changes) > 0 || !reflect.DeepEqual(&node, before.Node())
	if changed {
		sync.Table = before.Next(sync.Began, node, changes...)
	}
	c.warn(sync.Table, before, warnings)
	if changed {
		c.last = sync.Table
		c.config.Publish(sync.Table)
	}
	c.config.Progress.Updated(sync)
	return true
}

// warn logs the warnings about Services, which are new, and those about the node and
// conflicts that did not stand before. One that went away and comes back is logged
// again.
func (c *Controller) warn(table, before *decision.Table, services []Warning) {
	warn := func(w Warning) {
		c.config.Logger.Warn(w.Text)
		c.config.Warned(w)
	}
	warnNew := func(standing *[]Warning, now []Warning) {
		for i, w := range now {
			if !slices.Contains(*standing, w) && !slices.Contains(now[:i], w) {
				warn(w)
			}
		}
		*standing = now
	}
	var node []Warning
	for _, text := range c.builder.nodeWarnings() {
		node = append(node, Warning{Text: text})
	}
	warnNew(&c.nodeWarnings, node)
	for _, w := range services {
		warn(w)
	}
	if !table.SameConflicts(before) {
		var conflicts []Warning
		for _, conflict := range table.Conflicts() {
			conflicts = append(conflicts, Warning{conflict.Loser.Name.Service(), conflict.Error()})
		}
		warnNew(&c.conflicts, conflicts)
	}
}
