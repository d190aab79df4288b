package apiserver

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// TestRequests: what the client sends, where and in which encoding.
func TestRequests(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, _ := url.QueryUnescape(r.URL.RawQuery)
		got = append(got, fmt.Sprintf("%s %s?%s %s>%s", r.Method, r.URL.Path, query, r.Header.Get("Content-Type"), r.Header.Get("Accept")))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	const protobuf, both = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	for _, tt := range []struct {
		connection    Connection
		sent, accepts string
	}{
		{Connection{Master: server.URL}, protobuf, both},
		{Connection{Master: server.URL, ClientConnection: proxyconfig.ClientConnection{ContentType: "application/json", AcceptContentTypes: "application/json"}}, "application/json", "application/json"},
	} {
		client, _, err := tt.connection.Connect(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, options := t.Context(), metav1.ListOptions{ResourceVersion: "7", AllowWatchBookmarks: true}
		got = nil
		_, _ = cache.ToListerWatcherWithContext(client.ListWatch("services", "!l", "f=1")).ListWithContext(ctx, options)
		_, _ = cache.ToListerWatcherWithContext(client.ListWatch("nodes", "", "")).WatchWithContext(ctx, options)
		_, _ = cache.ToListerWatcherWithContext(client.ListWatch("endpointslices", "l", "")).ListWithContext(ctx, options)
		_ = client.CreateEvent(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}})
		_ = client.PatchEvent(ctx, "shop", "e", []byte("{}"))
		_, _ = client.ReviewToken(ctx, &authenticationv1.TokenReview{})
		want := []string{
			"GET /api/v1/services?allowWatchBookmarks=true&fieldSelector=f=1&labelSelector=!l&resourceVersion=7 >" + tt.accepts,
			"GET /api/v1/nodes?allowWatchBookmarks=true&resourceVersion=7&watch=true >" + tt.accepts,
			"GET /apis/discovery.k8s.io/v1/endpointslices?allowWatchBookmarks=true&labelSelector=l&resourceVersion=7 >" + tt.accepts,
			"POST /apis/events.k8s.io/v1/namespaces/shop/events? " + tt.sent + ">" + tt.accepts,
			"PATCH /apis/events.k8s.io/v1/namespaces/shop/events/e? application/strategic-merge-patch+json>" + tt.accepts,
			"POST /apis/authentication.k8s.io/v1/tokenreviews? " + tt.sent + ">" + tt.accepts,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
	}
}
