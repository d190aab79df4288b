// Command peer is one side of the load on a Service, in a pod.
//
//	peer serve PORT           sends back what it receives, in TCP and UDP
//	peer load TARGET PERIOD   makes a load until GET /stop at port 8081, and answers with the counts
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/e2e/load"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "peer: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		s, err := load.Listen(args[1])
		if err != nil {
			return err
		}
		return s.Serve()
	case len(args) == 3 && args[0] == "load":
		period, err := time.ParseDuration(args[2])
		if err != nil || period <= 0 {
			return fmt.Errorf("PERIOD %q: want a positive duration such as 10ms", args[2])
		}
		return serveCounts(load.Load{Target: args[1], Period: period, Held: load.Held})
	default:
		return fmt.Errorf("want serve PORT, or load TARGET PERIOD; got %q", args)
	}
}

// serveCounts makes the load, once.
func serveCounts(l load.Load) error {
	ctx, stop := context.WithCancel(context.Background())
	counts := sync.OnceValue(func() load.Counts { return l.Run(ctx) })
	go counts()
	http.HandleFunc("GET /stop", func(w http.ResponseWriter, _ *http.Request) {
		stop()
		_ = json.NewEncoder(w).Encode(counts())
	})
	return http.ListenAndServe(":8081", nil)
}
