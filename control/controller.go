package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Source feeds a Controller with objects. [manifest.Source] is one.
type Source interface {
	// Run calls publish with all objects at first and then whenever they
	// changed, or with an error if they cannot be had at present. Of the two
	// exactly one is nil. Published objects are never changed. Calls do not
	// overlap. Run returns nil when the context ends or nothing can change any
	// more, and an error if it cannot go on.
	Run(ctx context.Context, publish func(*manifest.Objects, error)) error
}

// AddressSource feeds a Controller with the addresses that are local to the
// node: all of them at first, and then whenever they changed. Otherwise it is
// like [Source.Run]. The Controller keeps the published slices.
type AddressSource func(ctx context.Context, publish func([]netip.Addr)) error

// FixedAddresses is the AddressSource of a node whose addresses never change.
func FixedAddresses(addresses ...netip.Addr) AddressSource {
	return func(_ context.Context, publish func([]netip.Addr)) error {
		publish(addresses)
		return nil
	}
}

// Config is what a Controller needs. All but Node must be set.
type Config struct {
	Node      NodeConfig
	Objects   Source
	Addresses AddressSource
	// Publish takes each new table. It is called from one goroutine; while it
	// runs, no other table is made.
	Publish func(*decision.Table)
	Logger  *slog.Logger
}

// Validate says what is wrong with the configuration: all of it, joined.
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

	// What follows belongs to the goroutine of Run.

	objects   *manifest.Objects // the last good ones; nil: none yet
	failing   bool              // the last load was an error
	addresses []netip.Addr      // valid iff located
	located   bool              // there were addresses, if only an empty list
	last      *decision.Table   // nil: nothing published yet
	warned    map[string]bool   // the warnings that stand and are logged
}

// New makes a Controller. It fails with what Config.Validate says.
func New(config Config) (*Controller, error) {
	return newController(config, time.Now)
}

func newController(config Config, now func() time.Time) (*Controller, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	return &Controller{config: config, now: now}, nil
}

// Run runs both sources and publishes tables, their generations counted from 1,
// until the context ends; then it returns nil. Nothing is published before there
// were objects and addresses, nor when a change makes no difference to the table.
//
// If the objects cannot be had at first, or a source fails, Run ends with that
// error. Later, an error of the objects is logged and the last good table stays
// in force. Run waits for both sources to end. It may be called only once.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	inputs := make(chan func() error) // each takes over one input
	ends := make(chan end, 2)
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- {
			<-ends // what it fails with while being stopped is of no interest
		}
	}()
	start := func(what string, run func() error) {
		running++
		go func() { ends <- end{what, run()} }()
	}
	start("objects", func() error {
		return c.config.Objects.Run(ctx, func(o *manifest.Objects, err error) {
			send(ctx, inputs, func() error { return c.load(o, err) })
		})
	})
	start("addresses", func() error {
		return c.config.Addresses(ctx, func(a []netip.Addr) {
			send(ctx, inputs, func() error { c.addresses, c.located = a, true; return nil })
		})
	})

	for {
		select {
		case <-ctx.Done():
			return nil
		case take := <-inputs:
			if err := take(); err != nil {
				return err
			}
			c.rebuild()
		case e := <-ends:
			running--
			if err := c.ended(e); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// send hands over a value unless the controller is stopping.
func send[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	case <-ctx.Done():
	}
}

// end is the end of a source.
type end struct {
	what string
	err  error
}

// ended judges the end of a source: without an error it is all right if the
// source has given something, for then nothing more is needed.
func (c *Controller) ended(e end) error {
	gave := map[string]bool{"objects": c.objects != nil, "addresses": c.located}
	switch {
	case e.err != nil:
		return fmt.Errorf("source of %s: %w", e.what, e.err)
	case !gave[e.what]:
		return fmt.Errorf("source of %s: ended without any", e.what)
	}
	return nil
}

// load takes what the source of objects published. Only an error at first is
// returned.
func (c *Controller) load(objects *manifest.Objects, err error) error {
	log := c.config.Logger
	switch {
	case err == nil:
		if c.failing {
			log.Info("the objects can be loaded again")
		}
		c.objects, c.failing = objects, false
		return nil
	case c.objects == nil:
		return err
	}
	c.failing = true
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		if c.last == nil {
			log.Error("cannot load the objects; the last good ones stay in force", "error", line)
			continue
		}
		log.Error("cannot load the objects; the last good table stays in force", "generation", c.last.Generation(), "error", line)
	}
	return nil
}

// rebuild publishes a table if there is all it takes and it is not as the last.
func (c *Controller) rebuild() {
	if c.objects == nil || !c.located {
		return
	}
	services, warnings := Build(c.objects, c.config.Node)
	node := c.config.Node.node(nodeObject(c.objects.Nodes, c.config.Node.Name), c.addresses)
	var generation uint64 = 1
	changed := true
	if c.last != nil {
		generation = c.last.Generation() + 1
		changed = !reflect.DeepEqual(&node, c.last.Node()) || !sameServices(services, c.last.Services())
	}
	table, conflicts := decision.NewTable(generation, c.now(), node, services)
	for _, conflict := range conflicts {
		warnings = append(warnings, conflict.Error())
	}
	c.warn(warnings)
	if !changed {
		return
	}
	c.last = table
	c.config.Publish(table)
}

// sameServices says whether two tables have the same service ports. An empty
// list is the same as none.
func sameServices(a, b []*decision.ServicePort) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// warn logs the warnings that did not stand after the previous build. One that
// went away and comes back is logged again.
func (c *Controller) warn(warnings []string) {
	standing := make(map[string]bool, len(warnings))
	for _, w := range warnings {
		if !c.warned[w] && !standing[w] {
			c.config.Logger.Warn(w)
		}
		standing[w] = true
	}
	c.warned = standing
}
