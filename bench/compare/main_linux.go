package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

func main() {
	// The sides of the traffic are this program, too, started in their namespaces.
	if len(os.Args) > 2 && os.Args[1] == trafficArgument {
		exit(1, side(os.Args[2]))
	}
	p, err := parsePlan(os.Args[1:])
	if err != nil {
		exit(2, err)
	}
	code, err := netns.Isolation{Main: func([]*os.File) int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := p.run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "compare:", err)
			return 1
		}
		return 0
	}}.Run()
	if err != nil {
		exit(1, err)
	}
	os.Exit(code)
}

func exit(code int, err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "compare:", err)
	os.Exit(code)
}

// trafficArgument stands before the description of a side of the traffic.
const trafficArgument = "traffic"

// Words on the standard output of a side, one a line.
const (
	wordReady = "ready"
	wordBegan = "began"
	wordEnded = "ended"
)

// sideSpec is the task of a process. Exactly one field is set.
type sideSpec struct {
	Echo   uint16
	Load   *traffic.Load
	Stream *streamSpec
}

// startSide starts a side of the traffic. One that serves does so when this returns.
func startSide(in *netns.Namespace, s sideSpec) (*process.Process, error) {
	p, err := process.StartSelf(in, trafficArgument, s)
	if err == nil && s.Echo != 0 {
		err = p.Await(wordReady)
	}
	return p, err
}

// side is one side of the traffic. Its result, in JSON, is the last line.
func side(text string) error {
	var s sideSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	printer := func(word string) func() { return func() { fmt.Println(word) } }
	var result any
	var err error
	switch {
	case s.Echo != 0:
		traffic.Tune(traffic.EchoThreads)
		return traffic.Echo(s.Echo, printer(wordReady))
	case s.Load != nil:
		traffic.Tune(s.Load.Workers)
		result, err = s.Load.Run(printer(wordBegan), printer(wordEnded))
	case s.Stream != nil:
		traffic.Tune(1)
		result, err = traffic.Stream(s.Stream.To, s.Stream.Time, printer(wordBegan), printer(wordEnded))
	default:
		err = errors.New("nothing to do")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
