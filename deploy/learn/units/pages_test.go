package units_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/learn"
	"github.com/nfqproxy/nfqproxy/deploy/learn/units"
)

var update = flag.Bool("update", false, "write the pages of deploy/labs")

// TestPages: the pages of deploy/labs are made of the units' files.
func TestPages(t *testing.T) {
	course, err := learn.Load(units.Files(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for id, lab := range map[string]string{"3.1": "nodeport-30007", "3.5": "kube-dns-hairpin", "5.1": "grafana-31577"} {
		u, err := course.Unit(id)
		if err != nil || u.Reference() == "" {
			t.Errorf("unit %s has no reference (error %v)", id, err)
			continue
		}
		var page bytes.Buffer
		about := "This page is made of the files of unit " + id + " of the [course](../../docs/how-to/take-the-course.md): `nfqproxy learn " + id + "` plays it.\n" +
			"Its reference is about the lab [" + lab + "](" + lab + ".yaml)."
		if err := learn.WritePage(&page, u, about); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("../../labs", lab+".md")
		if *update {
			if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, page.Bytes()) {
			t.Errorf("%s is not what unit %s makes (error %v): go test ./deploy/learn/units -run TestPages -update", file, id, err)
		}
	}
}
