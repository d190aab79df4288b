package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Config configures a control plane. The zero value: on loopback, without controllers.
type Config struct {
	// Dir takes data, keys, kubeconfigs and logs. Empty: a temporary directory,
	// which Close removes. Do not use one directory twice.
	Dir string
	// Namespace is where the processes run, and must outlive the Cluster. Nil: the
	// network namespace of this process. Its lo has to be up.
	Namespace *netns.Namespace
	// Addresses of the namespace by which clients elsewhere reach the API server: its
	// certificate names them beside the loopback addresses and the first of each
	// ServiceCIDR. It listens on all IPv4 addresses, and on IPv6 too if one of these
	// is. The first one of the family of the first ServiceCIDR that is not loopback
	// becomes the endpoint of the service "kubernetes", which has none otherwise.
	Addresses []netip.Addr
	// ServiceCIDRs are one range, or two of different families. Empty:
	// 10.96.0.0/16 and fd00:10:96::/108.
	ServiceCIDRs []netip.Prefix
	// Controllers for kube-controller-manager to run, by its names:
	// endpointslice-controller, node-lifecycle-controller and so on. Empty: it is
	// not started.
	Controllers []string
	// Kubelets join this control plane: the API server authorizes them as nodes and connects to
	// them, Pods have service accounts, Nodes get taints, and kube-scheduler runs. It needs
	// Controllers ("*" are those that a cluster has by default); they wait as long for a
	// silent node as they do by default.
	Kubelets bool
	// Further flags, which override those above.
	EtcdFlags, APIServerFlags, ControllerManagerFlags []string
}

// Cluster is a control plane. Its methods may be called concurrently.
type Cluster struct {
	Etcd      *Component
	APIServer *Component
	// ControllerManager is nil without Controllers. It reconnects to the API server by
	// itself.
	ControllerManager *Component
	// Scheduler is nil without Kubelets.
	Scheduler *Component

	config  Config
	remove  bool // Dir at the end
	ca      *authority
	admin   string // token
	ports   ports
	client  kubernetes.Interface
	local   *http.Client
	etcdURL string
}

// Start starts a control plane and returns when the API server is ready and has
// the default namespace and the service "kubernetes". ctx bounds the start only.
// The processes end with Close or with this process, however that ends.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c, err := prepare(config)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func prepare(config Config) (_ *Cluster, err error) {
	if len(config.ServiceCIDRs) == 0 {
		config.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/108")}
	}
	c := &Cluster{config: config}
	if config.Dir == "" {
		if c.config.Dir, err = os.MkdirTemp("", "nfqproxy-cluster-"); err != nil {
			return nil, err
		}
		c.remove = true
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	if c.config.Dir, err = filepath.Abs(c.config.Dir); err != nil {
		return nil, err
	}
	if c.ports, err = c.choosePorts(); err != nil {
		return nil, err
	}
	if err := c.writeIdentities(); err != nil {
		return nil, err
	}
	if c.client, err = kubernetes.NewForConfig(c.protobufConfig()); err != nil {
		return nil, err
	}
	c.local = c.localClient()
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd)
	return c, c.defineComponents()
}

func (c *Cluster) start(ctx context.Context) error {
	for _, component := range []*Component{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler} {
		if component == nil {
			continue
		}
		if err := component.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close kills all processes and waits for their end. The error lists processes that had
// exited unexpectedly.
func (c *Cluster) Close() error {
	err := errors.Join(c.Scheduler.close(), c.ControllerManager.close(), c.APIServer.close(), c.Etcd.close())
	if c.remove {
		err = errors.Join(err, os.RemoveAll(c.config.Dir))
	}
	return err
}

// Client is a client with all rights, which the server does not throttle and which
// does not throttle itself.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// RESTConfig is what Client is made of, for further clients. It reaches the API
// server from any namespace.
func (c *Cluster) RESTConfig() *rest.Config {
	config := &rest.Config{
		Host:            c.URL(netip.Addr{}),
		BearerToken:     c.admin,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.certPEM},
		QPS:             -1,
	}
	if c.config.Namespace != nil {
		config.Dial = c.dial
	}
	return config
}

func (c *Cluster) protobufConfig() *rest.Config {
	config := c.RESTConfig()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// URL is that of the API server at one of its addresses; the zero Addr stands for
// 127.0.0.1.
func (c *Cluster) URL(at netip.Addr) string {
	if !at.IsValid() {
		at = loopback
	}
	return "https://" + netip.AddrPortFrom(at, c.ports.api).String()
}

// probeAPIServer succeeds when the API server is ready and the objects are there that
// it makes itself.
func (c *Cluster) probeAPIServer(ctx context.Context) error {
	if _, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		if _, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	_, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	return err
}

// AddNode makes a Node object with an address.
func (c *Cluster) AddNode(ctx context.Context, name string, address netip.Addr) error {
	_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}},
	}, metav1.CreateOptions{})
	return err
}

// writers is how many objects are made or changed at once.
const writers = 16

// Each calls f with the numbers from first up to, but without, end: several at once, until one
// fails.
func Each(ctx context.Context, first, end int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := first; i < end && ctx.Err() == nil; i++ {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}

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
