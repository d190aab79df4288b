package daemonset

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// tokenHeader has the daemon's token: the API server's proxy removes Authorization.
const tokenHeader = "X-Nfqproxy-Token"

const (
	idleTimeout = time.Minute // of a connection to a daemon
	// idleConnections are those to one daemon that wait for requests. Each costs the API server one, too.
	idleConnections = 2
	// refusalFor is how long a user who may not forward ports does not try again.
	refusalFor = 30 * time.Second
	maxError   = 64 << 10 // bytes of an error response
)

// channels are the two ways to a pod.
type channels struct {
	// forwarded is by port-forward. The host of a URL is a pod.
	forwarded *http.Transport
	// proxied is by the API server's proxy, pods/proxy.
	proxied http.RoundTripper

	mu sync.Mutex
	// refusal is why the user may not forward ports; nil: it is not known that he may not.
	refusal error
	until   time.Time // when it is tried again
}

func newChannels(f *forwarder, config *rest.Config) (*channels, error) {
	proxied, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	return &channels{proxied: proxied, forwarded: &http.Transport{
		DialContext: func(ctx context.Context, _, hostPort string) (net.Conn, error) {
			pod, text, err := net.SplitHostPort(hostPort)
			port, err2 := strconv.Atoi(text)
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			return f.dial(ctx, pod, port)
		},
		// The API server and the kubelet lead to the pod. Its certificate names the node, if anything, and its
		// authority is not known here; the API server's proxy does not verify it either.
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: idleConnections,
		DisableCompression: true, ResponseHeaderTimeout: 3 * observe.KeepAliveSeconds * time.Second,
	}}, nil
}

// refused returns why the user may not forward ports; nil: he may, or it is not known.
func (c *channels) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.until) {
		return c.refusal
	}
	return nil
}

func (c *channels) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal, c.until = err, time.Now().Add(refusalFor)
}

// RoundTrip sends a request to the node's daemon. Errors name the pod.
func (n *node) RoundTrip(r *http.Request) (*http.Response, error) {
	pod, err := n.running()
	if err != nil {
		return nil, err
	}
	at, err := addressOf(&pod.Spec)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	r = r.Clone(r.Context()) // its body is replaced
	for again := false; ; again = true {
		token, err := n.set.tokens.get(r.Context())
		if err != nil {
			return nil, err
		}
		if again && r.Body != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		response, err := n.send(r, pod, at, token)
		switch {
		case err != nil:
			return nil, named(pod, err)
		case response.StatusCode != http.StatusUnauthorized || !n.set.tokens.refused(token):
			return response, nil
		case !again:
			// It may have been revoked: the account was made anew.
			_ = response.Body.Close()
			continue
		}
		// An error of this node, and not of the request.
		defer response.Body.Close()
		var refusal observe.Error
		b, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
		_ = json.Unmarshal(b, &refusal)
		return nil, fmt.Errorf("pod %s refuses the token: %s", pod.Name, refusal.Message)
	}
}

// named adds the pod to an error that is not of all nodes.
func named(pod *corev1.Pod, err error) error {
	if _, ok := errors.AsType[*observe.Error](err); ok {
		return err
	}
	// Without its chain: a refused connection is the pod's or the API server's, and
	// has nothing to do with what the client takes it for.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("pod %s: %v", pod.Name, err) //nolint:errorlint // see above
}

// send sends a request by the way that is open.
func (n *node) send(r *http.Request, pod *corev1.Pod, at address, token string) (*http.Response, error) {
	c := n.set.channels
	refusal := c.refused()
	if at.loopback && refusal == nil {
		response, err := c.forward(r, pod, at, token)
		forbidden, ok := errors.AsType[errForbidden](err)
		if !ok {
			return response, err
		}
		refusal = n.set.forbidden("create", "pods/portforward", forbidden)
		c.refuse(refusal)
		if r.Body != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
	if !at.public {
		return nil, refusal
	}
	return n.proxy(r, pod, at, token, refusal)
}

// forward sends a request by port-forward.
func (c *channels) forward(r *http.Request, pod *corev1.Pod, at address, token string) (*http.Response, error) {
	var used *conn
	r = r.Clone(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		own := info.Conn
		if secure, ok := own.(*tls.Conn); ok {
			own = secure.NetConn()
		}
		used, _ = own.(*conn)
	}}))
	r.URL.Host, r.Host = net.JoinHostPort(pod.Name, strconv.Itoa(at.port)), "localhost"
	if at.tls {
		r.URL.Scheme = "https"
	}
	r.Header.Set(tokenHeader, token)
	response, err := c.forwarded.RoundTrip(r)
	if err != nil && r.Context().Err() == nil && used != nil {
		if failure := used.reason(); failure != nil { // net/http gives the text of the end only
			err = failure
		}
	}
	return response, err
}

// proxy sends a request by pods/proxy. refusal is why port-forward is not possible; nil: it does not lead
// to the address.
func (n *node) proxy(r *http.Request, pod *corev1.Pod, at address, token string, refusal error) (*http.Response, error) {
	name := pod.Name + ":" + strconv.Itoa(at.port)
	if at.tls {
		name = "https:" + name
	}
	base := n.set.client.CoreV1().RESTClient().Get().Namespace(n.set.Namespace).Resource("pods").Name(name).SubResource("proxy").URL()
	u := base.JoinPath(r.URL.EscapedPath())
	u.RawQuery = r.URL.RawQuery
	r = r.Clone(r.Context())
	r.URL, r.Host = u, ""
	r.Header.Set(tokenHeader, token)
	response, err := n.set.channels.proxied.RoundTrip(r)
	if err != nil || response.StatusCode < http.StatusBadRequest {
		return response, err
	}
	return n.ofAPIServer(response, r.Method, u, refusal)
}

// ofAPIServer returns an error response, or the error if it is the API server's own.
func (n *node) ofAPIServer(response *http.Response, method string, u *url.URL, refusal error) (*http.Response, error) {
	b, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	_ = response.Body.Close()
	if err != nil {
		return nil, err
	}
	var status metav1.Status
	if json.Unmarshal(b, &status) != nil || status.Kind != "Status" {
		response.Body = io.NopCloser(bytes.NewReader(b))
		return response, nil
	}
	if status.Code == http.StatusForbidden {
		if refusal != nil {
			return nil, refusal
		}
		verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodDelete: "delete"}[method]
		return nil, &observe.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("cannot %s pods/proxy in namespace %s, which the daemons' --flow-api requires (deploy/kubernetes/README.md): %s", verb, n.set.Namespace, status.Message)}
	}
	return nil, fmt.Errorf("API server, at %s: %s", u.Path, status.Message)
}
