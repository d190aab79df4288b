package top_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/top"
)

// TestRunEnds: when the user quits, and with the context; neither is an error.
func TestRunEnds(t *testing.T) {
	var screen bytes.Buffer
	if err := top.Run(t.Context(), observetest.NewCluster(), strings.NewReader("q"), &screen, top.Options{}); err != nil {
		t.Errorf("after q: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	keyboard, typist := io.Pipe()
	defer typist.Close()
	screen.Reset()
	if err := top.Run(ctx, observetest.NewCluster(), keyboard, onceShown{&screen, stop}, top.Options{}); err != nil {
		t.Errorf("after the context's end: %v", err)
	}
}

// onceShown does something with the first write.
type onceShown struct {
	to *bytes.Buffer
	do func()
}

func (w onceShown) Write(b []byte) (int, error) {
	w.do()
	return w.to.Write(b)
}
