package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Get requests a page of a server in a namespace. The path begins with a slash; any status but 200
// is an error.
func Get(ctx context.Context, in *netns.Namespace, server netip.AddrPort, path string) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return in.Dial(ctx, network, netip.AddrPort{}, server)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.String()+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return page, err
}
