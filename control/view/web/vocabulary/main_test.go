package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestPageHasAllWords: the page's words are those of Go.
func TestPageHasAllWords(t *testing.T) {
	const file = "../static/js/vocabulary.js"
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, script(flow.Words())) {
		t.Errorf("%s differs from the words of package flow: run go generate ./control/view/web", file)
	}
}
