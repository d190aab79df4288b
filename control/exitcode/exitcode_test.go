package exitcode

import (
	"errors"
	"fmt"
	"testing"
)

func TestOf(t *testing.T) {
	failed := errors.New("1 check failed")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {Negative(nil), 0}, {failed, Error}, {Negative(failed), No}, {errors.Join(fmt.Errorf("demo: %w", Negative(failed)), failed), No},
	} {
		if got := Of(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
	if got := Negative(failed).Error(); got != failed.Error() {
		t.Errorf("message %q", got)
	}
}
