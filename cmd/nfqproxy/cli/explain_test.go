package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const clusterFile = "../../../datapath/flow/testdata/cluster.yaml"

// TestExplainAnswersLineByLine: a program that asks over a pipe gets its answer before
// it asks again.
func TestExplainAnswersLineByLine(t *testing.T) {
	questions, ask := io.Pipe()
	answer, answers := io.Pipe()
	done := make(chan int, 1)
	var stderr strings.Builder
	go func() {
		code := run(t.Context(), []string{"explain", "--objects", clusterFile, "--node", "node-a", "--packets", "-", "-o", "json"}, questions, answers, &stderr)
		_ = answers.Close()
		done <- code
	}()
	lines := bufio.NewScanner(answer)
	for port := 1; port <= 3; port++ {
		source := fmt.Sprintf("10.244.1.9:%d", port)
		fmt.Fprintf(ask, `{"protocol":"tcp","source":%q,"destination":"10.96.0.50:80"}`+"\n", source)
		if !lines.Scan() {
			t.Fatalf("no answer to question %d", port)
		}
		var r flow.Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Source != source || r.Version != flow.Version || len(r.Steps) == 0 {
			t.Fatalf("answer %s, %v", lines.Bytes(), err)
		}
	}
	_ = ask.Close()
	if code := <-done; code != 0 || stderr.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

// TestExplainJSON: what a program relies on, by the names that the schema gives.
func TestExplainJSON(t *testing.T) {
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{
		"explain", "--objects", clusterFile, "--node", "node-a", "--cluster-cidr", "10.244.0.0/16", "--seed", "1",
		"--protocol", "tcp", "--source", "10.244.1.2", "--destination", "10.96.0.20:80", "-o", "json",
	}, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(stdout.String()), &r); err != nil || strings.Count(stdout.String(), "\n") != 1 {
		t.Fatalf("%v: %s", err, stdout.String())
	}
	for field, want := range map[string]string{
		"verdict": "dnat", "service": "default/web:http", "protocol": "TCP",
		"source": "10.244.1.2:40000", "destination": "10.96.0.20:80", "endpoint": "10.244.1.2:8080",
		"candidates": "[map[endpoint:10.244.1.2:8080 probability:0.5] map[endpoint:10.244.2.2:8080 probability:0.5]]",
		"excluded":   "[map[endpoint:10.244.2.3:8080 reason:not-ready] map[endpoint:[fd00:10:244:1::2]:8080 reason:other-family] map[endpoint:[fd00:10:244:2::2]:8080 reason:other-family]]",
		"masquerade": "true", "masqueradeReason": "hairpin",
	} {
		if got := fmt.Sprint(r[field]); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
	steps, ok := r["steps"].([]any)
	if !ok || len(steps) != 6 {
		t.Fatalf("steps %v", r["steps"])
	}
	for _, s := range steps {
		for _, field := range []string{"table", "chain", "rule", "outcome", "text"} {
			if text, ok := s.(map[string]any)[field].(string); !ok || text == "" {
				t.Errorf("%s is missing in step %v", field, s)
			}
		}
	}
}
