package usage

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spf13/pflag"
)

func TestExitCode(t *testing.T) {
	failed := errors.New("1 check failed")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {No(nil), 0}, {failed, ExitError}, {No(failed), ExitNo}, {errors.Join(fmt.Errorf("demo: %w", No(failed)), failed), ExitNo},
	} {
		if got := ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
	if got := No(failed).Error(); got != failed.Error() {
		t.Errorf("message %q", got)
	}
}

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
