package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// eventBuffer is the number of events that may wait for output.
const eventBuffer = 1 << 16

// RunUp starts a lab in namespaces of its own and shows its decisions until interrupted. It
// returns the exit code.
func RunUp(o RunOptions) (int, error) { return runIsolated(o, true, up) }

// RunDemo starts a lab, demonstrates it and stops it. The exit code is 1 if a check failed.
func RunDemo(o RunOptions) (int, error) { return runIsolated(o, false, demonstrate) }

// runIsolated calls f in namespaces of its own, with a running lab. A public lab can be found
// by its name, which is unique.
func runIsolated(o RunOptions, public bool, f show) (int, error) {
	file, err := o.load()
	if err != nil {
		return 1, err
	}
	if o.NoHairpinMasquerade {
		file.Spec.Proxy.NoHairpinMasquerade = true
	}
	if o.Observe {
		observeAll(file.Spec)
	}
	return netns.Isolation{
		Prepare: func() ([]*os.File, error) {
			if !public {
				return nil, nil
			}
			return Reserve(file.Spec.Name, o.Page)
		},
		Main: func(inherited []*os.File) int {
			err := inside(file, inherited, o, f)
			if err != nil {
				fmt.Fprintln(o.Stderr, "nfqproxy:", err)
			}
			return exitcode.Of(err)
		},
	}.Run()
}

// show is the function that runs with a started lab.
type show func(context.Context, *Lab, []*decision.ServicePort, RunOptions) error

// inside is the part of runIsolated in the namespaces.
func inside(file *File, inherited []*os.File, o RunOptions, f show) (err error) {
	// A signal before this line ends the process, and with it everything in the namespaces.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	o.Stdout = newFolder(o.Stdout)
	writeGuesses(o.Stdout, file)
	lab, err := Up(ctx, file, Options{KubeProxy: o.KubeProxy})
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted before lab %s was up", file.Spec.Name)
		if lab != nil {
			err = errors.Join(err, lab.Close())
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	services, _ := servicetable.Build(&lab.Objects().Objects, servicetable.NodeConfig{})

	if len(inherited) == 0 {
		return f(ctx, lab, services, o)
	}
	serving, cancel := context.WithCancel(ctx)
	serve, err := lab.Open(inherited)
	if err == nil {
		var served errgroup.Group
		served.Go(func() error { return serve(serving, stop) })
		err = f(ctx, lab, services, o)
		cancel()
		err = errors.Join(err, served.Wait())
	}
	cancel()
	return err
}

// Reserve reserves a lab's name and the address of its page (empty: [DefaultPage] or, if that is in use, any port),
// outside of the lab's namespaces. The files are for [Lab.Open].
func Reserve(name, page string) ([]*os.File, error) {
	l, err := listen(name)
	if err != nil {
		return nil, err
	}
	p, err := listenPage(page)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return []*os.File{l, p}, nil
}

// Open prepares what [Reserve] has reserved; nothing: the lab is found from its hosts only. serve serves commands and the
// flow API until the context ends; a command to stop the lab calls down. It has to be called. The caller keeps the files.
func (l *Lab) Open(reserved []*os.File) (serve func(ctx context.Context, down func()) error, err error) {
	var listeners []net.Listener
	defer func() {
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
		}
	}()
	if err := os.RemoveAll(insideSocket); err != nil { // of a lab before, in the same namespaces
		return nil, err
	}
	inside, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: insideSocket})
	if err != nil {
		return nil, err
	}
	listeners = append(listeners, inside)
	flows, err := flowapi.Listen(flowapi.Address{Address: "unix:" + flowapi.DefaultSocket})
	if err != nil {
		return nil, err
	}
	listeners = append(listeners, flows)
	for _, socket := range reserved {
		l, err := net.FileListener(socket)
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
	}
	apis := []net.Listener{flows}
	if len(reserved) > 0 {
		apis = []net.Listener{listeners[3], flows}
	}
	serveFlows, err := l.OpenFlows(apis[0], apis[1:]...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, down func()) error {
		var served errgroup.Group
		served.Go(func() error { return serveFlows(ctx) })
		served.Go(func() error { return l.serveControl(ctx, inside, true, down) })
		if len(reserved) > 0 {
			served.Go(func() error { return l.serveControl(ctx, listeners[2].(*net.UnixListener), false, down) })
		}
		return served.Wait()
	}, nil
}

// styleFor is text.StyleFor with a column for the lab's nodes.
func styleFor(w io.Writer, s *Spec) text.Style {
	style := text.StyleFor(w)
	for i := range s.Nodes {
		style.NodeWidth = max(style.NodeWidth, len(s.Nodes[i].Name))
	}
	return style
}

// up shows events and decisions until the context ends.
func up(ctx context.Context, l *Lab, services []*decision.ServicePort, o RunOptions) error {
	w, s := o.Stdout, l.Spec()
	// Who reads that the lab is up, and then changes it, sees what comes of it.
	events := l.Subscribe(eventBuffer)
	fmt.Fprintf(w, "lab %s is up.\n\n", s.Name)
	if err := writeMap(w, s, services); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nWeb page: %s\n", l.FlowAPI.Page())
	fmt.Fprintln(w, "\nTry, in another terminal:")
	for _, line := range suggestions(s, services) {
		fmt.Fprintln(w, "  "+line)
	}
	if o.Walk.Shown() {
		fmt.Fprint(w, "\n"+legend)
	}
	fmt.Fprintln(w, "\nDecisions (Ctrl-C stops the lab):")

	var writing sync.Mutex
	var shown sync.WaitGroup
	shown.Go(func() {
		var lost uint64
		for e := range events.C {
			writing.Lock()
			showEvent(w, e, o)
			if n := events.Lost(); n > lost {
				fmt.Fprintf(w, "(%d events not shown: event buffer overflow)\n", n-lost)
				lost = n
			}
			writing.Unlock()
		}
	})
	style := styleFor(w, s)
	// Also those since the start of the daemons: whoever reads that the lab is up may connect before the streams begin.
	q := observe.FlowQuery{Follow: true, Limit: "0", Event: decisions, ServicesOnly: !o.All, Steps: o.Walk.Shown()}
	err := l.Observer.Flows(ctx, q, func(i observe.Item) error {
		writing.Lock()
		defer writing.Unlock()
		switch {
		case i.Record != nil:
			fmt.Fprintln(w, style.Line(i.Record))
			fmt.Fprint(w, style.Steps(i.Record.Steps, "    ", o.Walk))
		case i.Missed.IsLoss():
			fmt.Fprintf(w, "(%s)\n", text.Missed(i.Missed, nil))
		}
		return nil
	})
	events.Close()
	shown.Wait()
	fmt.Fprintf(w, "\nstopping lab %s.\n", s.Name)
	return err
}

// decisions are the events that decide a flow.
const decisions = "decided,rejected,dropped,failed,repeated"

func showEvent(w io.Writer, e Event, o RunOptions) {
	switch {
	case e.Changes != nil:
		for _, line := range e.Changes {
			fmt.Fprintf(w, "%s\n", line)
		}
	case e.Files != nil && e.Files.String() == "":
		fmt.Fprintln(w, "\nThe files are in force again.")
	case e.Files != nil:
		fmt.Fprintf(w, "\n%s\n", e.Files)
	case e.Died != nil:
		fmt.Fprintf(w, "%v\n", e.Died)
	case e.Log != "":
		if o.Logs {
			fmt.Fprintf(w, "%s  %s\n", e.Node, e.Log)
		}
	}
}
