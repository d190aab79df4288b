package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/nfqproxy/nfqproxy/bench/process"
	"github.com/nfqproxy/nfqproxy/bench/traffic"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func main() {
	// The sides of the traffic are this program, too, started in their namespaces.
	if len(os.Args) > 2 && os.Args[1] == trafficArgument {
		process.Exit("compare", side(os.Args[2]))
	}
	p, err := parsePlan(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	process.Isolated("compare", p.run)
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
	Steady *traffic.Steady
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
	case s.Steady != nil:
		result, err = s.Steady.Run(printer(wordBegan), printer(wordEnded))
	default:
		err = errors.New("nothing to do")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
