package usage

import (
	"testing"

	"github.com/spf13/pflag"
)

func TestFlags(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Bool("takeover", false, "remove rules")
	Group(flags, "Start")
	flags.Bool("hidden", false, "")
	_ = flags.MarkHidden("hidden")
	Group(flags, "Empty")
	flags.Uint("queues", 1, "number of queues")
	Group(flags, "Queues")
	flags.Bool("help", false, "print help")
	const want = "      --help   print help\n\nStart:\n      --takeover   remove rules\n\nQueues:\n      --queues uint   number of queues (default 1)\n"
	if got := Flags(flags); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
