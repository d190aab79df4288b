package cluster

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

func TestCluster(t *testing.T) {
	Require(t)
	netns.Require(t)
	begin := time.Now()
	c, err := Start(t.Context(), Config{Dir: t.TempDir(), Controllers: []string{"endpointslice-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(begin))
	begin = time.Now()
	c.APIServer.Kill()
	t.Log(time.Since(begin))
	begin = time.Now()
	c.APIServer.Start(t.Context())
	t.Log(time.Since(begin))
	begin = time.Now()
	t.Log(c.APIServer.Stop())
	t.Log(time.Since(begin))
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	t.Log(c.Etcd.tail())
	t.Log(c.APIServer.tail())
	t.Log(c.ControllerManager.tail())
}
