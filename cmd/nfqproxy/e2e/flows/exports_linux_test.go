package flows

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	benchcluster "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// TestExportsOfADaemon: what flags promise to other tools is there: the daemon's metrics of
// the services that were asked for and of no others, and Hubble's API.
func TestExportsOfADaemon(t *testing.T) {
	t.Parallel()
	hubble := clustertest.RequireProgram(t, benchcluster.Hubble)
	const address = "127.0.0.1:4245"
	c := e2etest.NewClusterWith(t, []string{"--service-metrics", "default/so*"})
	c.Export("node-a", nil, "--hubble-bind-address", address)
	e2etest.Eventually(t, e2etest.Timeout, "the Hubble API", func() bool {
		conn, err := c.TryDial("node-a", "tcp", e2etest.AnyPort, address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	for _, to := range []string{"10.96.0.30:80", "10.96.0.20:80"} { // solo and web
		conn := c.Dial("shell", "tcp", e2etest.AnyPort, to)
		c.Ask(conn)
		c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
	}

	node := c.Host("node-a")
	_, text := c.Get("node-a", e2etest.MetricsPort, "/metrics")
	if !strings.Contains(text, `service="solo"`) || !strings.Contains(text, `endpoint="10.244.0.4:8080"`) {
		t.Errorf("no metrics of the service that was asked for:\n%s", text)
	}
	if strings.Contains(text, `service="web"`) {
		t.Error("metrics of a service that was not asked for")
	}

	cmd := exec.Command(hubble, "observe", "--server", address, "--last", "20", "--to-service", "default/solo", "-o", "compact")
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &complaints)
	}
	if !strings.Contains(out.String(), "default/solo") || strings.Contains(out.String(), "default/web") {
		t.Errorf("hubble observe prints\n%s%s", &out, &complaints)
	}
}
