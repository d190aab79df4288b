package diagnose

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// TestHealthy: nothing is to be found in clusters in which all is right, not even a note.
func TestHealthy(t *testing.T) {
	files, err := filepath.Glob("testdata/healthy/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d clusters, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			objects, err := labfile.LoadOnce(nil, []string{file})
			if err != nil {
				t.Fatal(err)
			}
			if len(objects.Services) == 0 || len(objects.EndpointSlices) == 0 {
				t.Fatal("the cluster has no Services")
			}
			for _, f := range New(objects, servicetable.NodeConfig{}).Examine() {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestLabs: nothing is wrong in the built-in labs. Their Services without endpoints are marked, and why still finds
// the cause.
func TestLabs(t *testing.T) {
	empty := map[string]string{
		"dual-stack": "nobody-home.default", "kind": "nobody-home.default", "grafana-31577": "loki-gateway.loki",
		"kube-dns-hairpin": "healthmodel-replicaset-service.kube-system",
	}
	for _, lab := range labs.Names() {
		text, err := labs.File(lab)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := labfile.LoadOnce(bytes.NewReader(text), []string{"-"})
		if err != nil {
			t.Fatal(err)
		}
		c := New(objects, servicetable.NodeConfig{ClusterCIDRs: labfile.Of(objects).ClusterCIDRs})
		for _, f := range worth(c.Examine()) {
			if f.Ignored == "" {
				t.Errorf("lab %s: %+v", lab, f)
			}
		}
		if to := empty[lab]; to != "" {
			answer, err := c.Why(Question{From: labfile.Of(objects).Pods[0].Namespace + "/" + labfile.Of(objects).Pods[0].Name, To: to})
			if err != nil || answer.Works || answer.Cause.Code != NoEndpoints {
				t.Errorf("lab %s: %s: %+v, %v, want %s", lab, to, answer, err, NoEndpoints)
			}
		}
	}
}
