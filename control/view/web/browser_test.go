package web_test

import (
	"flag"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

var (
	screenshots = flag.String("web.screenshots", "", "make screenshots of the page and put them into this directory")
	measure     = flag.Bool("web.measure", false, "run the benchmark of the page, which takes minutes")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(webtest.Tests{M: m}.Run())
}

// page is the page of a fake, in a tab of a browser.
type page struct {
	*webtest.Page
	base   string
	server *httptest.Server
}

// open shows the page of a fake, at an address behind #; empty: the flows.
func open(t testing.TB, f *fake, at string) *page {
	t.Helper()
	server := httptest.NewServer(f.handler())
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	if at == "" {
		at = "#/flows"
	}
	return &page{webtest.Open(t, server.URL+"/"+at), server.URL, server}
}
