package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Compact compacts etcd's history: clients cannot watch from, or list at, any resource
// version seen until now. etcd has to run.
//
// A running API server does not notice, as it serves watches out of its own cache.
// For a client to get the error that its resource version is too old (410 Gone, reason
// Expired) when it resumes its watch, the API server has to lose that cache:
//
//	c.APIServer.Kill()
//	c.Compact(ctx)
//	c.APIServer.Start(ctx)
func (c *Cluster) Compact(ctx context.Context) error {
	// The API server's new cache begins at the newest revision. Without this write,
	// that could be the last one a client has seen, which it could then continue from.
	key := base64.StdEncoding.EncodeToString([]byte("nfqproxy/compact"))
	var put struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := c.etcdCall(ctx, "put", map[string]any{"key": key, "value": key}, &put); err != nil {
		return fmt.Errorf("compacting etcd: %w", err)
	}
	request := map[string]any{"revision": put.Header.Revision, "physical": true}
	if err := c.etcdCall(ctx, "compaction", request, &struct{}{}); err != nil {
		return fmt.Errorf("compacting etcd at revision %s: %w", put.Header.Revision, err)
	}
	return nil
}

// etcdCall uses etcd's JSON gateway, which needs no client library.
func (c *Cluster) etcdCall(ctx context.Context, method string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	got, err := c.local.Do(post)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, 1<<20))
	if err != nil {
		return err
	}
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", got.Status, text)
	}
	return json.Unmarshal(text, response)
}
